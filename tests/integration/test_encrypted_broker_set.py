"""A broker set with failover in which every connection is encrypted: clients, members, replication, name server and etcd."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from ariane import ClientSettings, Producer, ProducerSettings, SendStatus
from ariane.errors import ConnectionLost
from ariane.model.message import Message
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from etcd_cluster import PROGRAM, REASON, EtcdCluster
from failover_processes import broker_set
from tls_files import TestAuthority

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason=REASON),
    pytest.mark.long(
        "tests/integration/test_broker_set_failover.py::test_a_killed_master_is_replaced_and_returns_without_its_last_records",
        "tests/integration/test_encrypted_cluster.py::test_a_slave_that_encrypts_its_requests_encrypts_replication",
    ),
]


def test_a_set_that_encrypts_every_connection_fails_over(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    files = authority.files("server")
    trust = ssl.create_default_context(cafile=str(authority.path))
    etcd = EtcdCluster(tmp_path, 1, f"--cert-file={files.cert}", f"--key-file={files.key}", scheme="https")
    etcd.members[0].tls = trust
    name_server = {
        "tls_server_mode": "enforcing", "tls_server_cert_path": files.cert, "tls_server_key_path": files.key,
        "tls_test_mode_enable": "false",
    }  # fmt: skip
    broker = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": files.cert,
        "tls.server.keyPath": files.key,
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": authority.path,
        "haTls": "true",
        "failoverCaFile": authority.path,
    }
    client = ClientSettings(use_tls=True, tls_ca_file=authority.path)

    async def work() -> None:
        async with (
            asyncio.timeout(300),
            broker_set(
                tmp_path / "set", etcd.urls, name_server_settings=name_server, tls=trust, minInSyncReplicas=2, **broker
            ) as (brokers, namesrv),
            # A new master acknowledges once the third member follows it, and the killed one has left the set.
            Producer(namesrv, "p", settings=ProducerSettings(send_timeout=30), client=client) as producer,
        ):
            former = await brokers.master()
            assert (await producer.send(Message(topic="TBW102", body=b"1"))).status is SendStatus.SEND_OK
            brokers.members[former].kill()
            await brokers.master(other_than=former)
            assert (await producer.send(Message(topic="TBW102", body=b"2"))).status is SendStatus.SEND_OK
            brokers.members[former].start()
            await brokers.complete(3)
            texts = [member.log.read_text() for member in brokers.members.values()]
            followed = [line for text in texts for line in text.splitlines() if "Following the leader at" in line]
            assert len(followed) >= 4
            assert all(line.endswith(", encrypted") for line in followed)
            assert not [text for text in texts if "is not encrypted" in text]
            async with ConnectionPool() as plain:
                for member in brokers.members.values():
                    with pytest.raises(ConnectionLost):
                        await plain.request(member.addr, RequestCode.GET_BROKER_RUNTIME_INFO)

    etcd.start()
    try:
        asyncio.run(work())
    finally:
        etcd.stop()
