"""Name servers with accounts: Java brokers of 4.9.4, which do not sign, and of 5.3.3, which do; Java clients that read routes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
from pathlib import Path

import pytest

from ariane.broker.broker import Broker
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.testing import java
from ariane.testing.cluster_servers import broker_config
from tls_files import TestAuthority

ACCOUNTS = """
accounts:
- {accessKey: broker-account, secretKey: broker-secret, brokers: [broker-a, broker-b]}
- {accessKey: certified-account, secretKey: unused-secret, brokers: [broker-a], clientCertificate: java-broker}
- {accessKey: client-account, secretKey: client-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
"""
WHITE = "globalWhiteRemoteAddresses: [127.0.0.1]"
SIGNING_5X = {
    "brokerName": "broker-b",
    "innerClientAuthenticationCredentials": '{"accessKey":"broker-account","secretKey":"broker-secret"}',
    "authenticationMetadataProvider": "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider",
}
SIGNED = "account=client-account:client-secret"
COUNT = 8


def name_server(home: Path, accounts: str = "", **settings: object) -> NameServer:
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(accounts)
    paths = {"kv_config_path": str(home / "kv.json"), "rocketmq_home": str(home)}
    config = {"acl_enable": bool(accounts), "bind_address": "127.0.0.1", "listen_port": 0, **paths, **settings}
    return NameServer(NameServerConfig(**config))  # type: ignore[arg-type]


def registered(server: NameServer) -> set[str]:
    return set(server.routes.clusters().broker_addr_table)


def test_java_brokers_register_with_the_accounts_they_can_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One broker of each release, at all name servers. Those of 4.9.4 have no signature; certificates and addresses do instead."""
    if reason := java.V5.available():
        pytest.skip(f"Java peers: {reason}")
    authority = TestAuthority(tmp_path)
    files, own = authority.files("server"), authority.files("java-broker")
    certificates = {
        "tls_server_cert_path": files.cert,
        "tls_server_key_path": files.key,
        "tls_server_trust_cert_path": files.trust,
        "tls_server_need_client_auth": "optional",
        "tls_server_auth_client": True,
    }
    encrypted = {
        "tls.server.mode": "disabled",
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.config.file": tmp_path / "none",
        "tls.client.certPath": own.cert,
        "tls.client.keyPath": own.key,
    }
    servers = {
        "open": name_server(tmp_path / "open"),
        "accounts": name_server(tmp_path / "accounts", ACCOUNTS),
        "addresses": name_server(tmp_path / "addresses", ACCOUNTS + WHITE),
        "certificates": name_server(tmp_path / "certificates", ACCOUNTS, **certificates),
    }

    def start_brokers(names: str, open_to: contextlib.ExitStack) -> None:
        jvm = [*java.quick_start(), *(f"-D{key}={value}" for key, value in encrypted.items())]
        for broker in (
            java.broker(tmp_path / "a", names, jvm_args=jvm),
            java.V5.broker(tmp_path / "b", names, properties=SIGNING_5X),
        ):
            open_to.callback(open_to.enter_context(broker).process.kill)

    async def work() -> dict[str, set[str]]:
        async with contextlib.AsyncExitStack() as stack:
            for server in servers.values():
                await stack.enter_async_context(server)
            with contextlib.ExitStack() as brokers:
                names = ";".join(server.addr for server in servers.values())
                await asyncio.to_thread(start_brokers, names, brokers)
                deadline = time.monotonic() + 30  # a broker is ready when it has registered with one of them
                while (found := {name: registered(server) for name, server in servers.items()}) != expected:
                    if time.monotonic() > deadline:
                        break
                    await asyncio.sleep(0.1)
                return found

    expected = {
        "open": {"broker-a", "broker-b"},
        "accounts": {"broker-b"},
        "addresses": {"broker-a", "broker-b"},
        "certificates": {"broker-a", "broker-b"},
    }
    with caplog.at_level(logging.WARNING):
        assert asyncio.run(work()) == expected
    assert "Denied REGISTER_BROKER" in caplog.text


def test_java_clients_sign_the_reads_of_routes(tmp_path: Path) -> None:
    """Producer and consumer of 4.9.4, as at a broker with accounts; without an account they find no route."""
    account = {"access_key": "broker-account", "secret_key": "broker-secret"}

    async def work() -> None:
        server = name_server(tmp_path / "names", ACCOUNTS, acl_read_enable=True)
        home = {"acl_enable": True, "rocketmq_home": str(tmp_path / "names"), **account}
        async with server, Broker(broker_config(tmp_path / "store", server.addr, broker_name="broker-a", **home)):
            assert registered(server) == {"broker-a"}

            async def run(program: str, *arguments: str, status: int = 0) -> list[str]:
                return await asyncio.to_thread(java.run, program, [server.addr, *arguments], status=status)

            refused = run("ariane.peers.Produce", "T", "P", "1", status=2)
            sent = java.events(await run("ariane.peers.Produce", "T", "P", str(COUNT), SIGNED))
            consume = run("ariane.peers.Consume", "T", "G", "*", str(COUNT), "60", SIGNED)
            received, printed = await asyncio.gather(consume, refused)
            bodies = {base64.b64decode(event["body"]) for event in java.events(received)}
            assert bodies == {f"message {number}".encode() for number in range(COUNT)}
            assert len(sent) == COUNT
            assert any("No route info of this topic" in line for line in printed)

    asyncio.run(work())
