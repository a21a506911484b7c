"""A broker that accepts encrypted connections only: its registration, and plain sends and pulls of clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from ariane.broker.replication.slave_sync import MasterFeatures, check_master
from ariane.client import LitePullConsumer, Producer
from ariane.client.instance.send_types import SendStatus
from ariane.client.instance.settings import ClientSettings
from ariane.errors import ArianeError, ConfigError, ConnectionLost
from ariane.kernels import implementation
from ariane.model.message import Message
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.streams import open_stream
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests.routing import KvTableBody
from ariane.testing import AsyncLocalCluster

TRUSTING = ClientSettings(use_tls=True, tls_verify="false")
COUNT = 300


@pytest.fixture(params=["python", "native"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Select the kernels of the broker."""
    monkeypatch.setenv(implementation.VARIABLE, request.param)
    implementation.selected.cache_clear()
    try:
        implementation.selected()
    except ConfigError as error:
        pytest.skip(str(error))
    yield str(request.param)
    monkeypatch.undo()
    implementation.selected.cache_clear()


def test_messages_arrive_unchanged(kernels: str) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tls_server_mode="enforcing") as cluster:
            bodies = [b"%d" % number * (1 + number * 37 % 4000) for number in range(COUNT)]
            async with (
                Producer(cluster.namesrv, "p", client=TRUSTING) as producer,
                LitePullConsumer(cluster.namesrv, "g", {"t": "*"}, start="first", client=TRUSTING) as consumer,
            ):
                await asyncio.gather(*(producer.send(Message(topic="t", body=body)) for body in bodies))
                received: list[bytes] = []
                while len(received) < COUNT:
                    received += [message.body for message in await consumer.poll(timeout=20)]
                assert sorted(received) == sorted(bodies)
            # Also those ports that no client of this test has used.
            host, _, port = cluster.broker.addr.rpartition(":")
            async with ConnectionPool() as plain:
                for number in (int(port), int(port) - 2):
                    with pytest.raises(ConnectionLost):
                        await plain.request(f"{host}:{number}", RequestCode.GET_BROKER_CONFIG)

    asyncio.run(work())


def test_a_plain_client_gets_no_answer_from_the_broker() -> None:
    async def work() -> None:
        async with (
            AsyncLocalCluster(tls_server_mode="enforcing") as cluster,
            Producer(cluster.namesrv, "p") as producer,
        ):
            with pytest.raises(ArianeError):
                await producer.send(Message(topic="t", body=b"x"))

    asyncio.run(work())


# --- replication ---

REPLICATED = {"tls_server_mode": "enforcing", "broker_role": "SYNC_MASTER"}


async def wait_replicated(cluster: AsyncLocalCluster) -> None:
    """Send until the slave has acknowledged a message."""
    async with asyncio.timeout(60):
        while (await cluster.send("t", b"x")).status is not SendStatus.SEND_OK:
            await asyncio.sleep(0.1)


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_required_encryption_refuses_plain_slaves(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(slaves=1, ha_tls="true", **REPLICATED) as cluster:
            await wait_replicated(cluster)
            host, _, port = cluster.broker.addr.rpartition(":")
            async with open_stream(f"{host}:{int(port) + 1}") as plain:
                await plain.write(bytes(8))
                with pytest.raises(ConnectionLost):
                    await plain.read(20)

    asyncio.run(work())
    assert "it is not encrypted, and haTls is true" in caplog.text
    assert ", encrypted" in caplog.text
    assert "is not encrypted: " not in caplog.text


@pytest.mark.parametrize(
    ("settings", "is_encrypted", "notice"),
    [
        (REPLICATED, True, ""),
        ({**REPLICATED, "tls_server_mode": "permissive", "tls_enable": "true"}, True, ""),
        ({**REPLICATED, "ha_tls": "false"}, False, "is not encrypted: haTls is false"),
        # Requests to the master are plain, too.
        ({**REPLICATED, "tls_server_mode": "permissive"}, False, ""),
    ],
    ids=["enforcing", "permissive", "off", "plain requests"],
)
def test_a_slave_that_encrypts_its_requests_encrypts_replication(
    settings: dict[str, str], is_encrypted: bool, notice: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(slaves=1, **settings) as cluster:
            await wait_replicated(cluster)

    asyncio.run(work())
    assert ("Following the master" in caplog.text, ", encrypted" in caplog.text) == (True, is_encrypted)
    assert notice in caplog.text if notice else "is not encrypted: " not in caplog.text
    is_enforcing = settings["tls_server_mode"] == "enforcing"
    assert ("also serves slaves whose connections are not encrypted" in caplog.text) is is_enforcing


class DescribedMaster:
    """A master that describes itself by these keys."""

    def __init__(self, **table: str) -> None:
        self._table = table

    async def request_ok(self, addr: str, code: int) -> Command:
        return Command(0, 1, 1, body=fastjson.write(KvTableBody(self._table)))


def features(master: DescribedMaster, addr: str | None, *, requires_ariane: bool) -> MasterFeatures:
    return asyncio.run(check_master(master, addr, requires_ariane=requires_ariane))  # type: ignore[arg-type]


def test_a_slave_sends_no_handshake_to_a_java_master() -> None:
    java = DescribedMaster(brokerVersionDesc="V4_9_4")
    assert features(java, "10.0.0.1:10911", requires_ariane=False) == MasterFeatures()
    assert features(java, None, requires_ariane=False) == MasterFeatures()
    with pytest.raises(ConnectionLost, match="because it is Java's; set haTls=auto"):
        features(java, "10.0.0.1:10911", requires_ariane=True)
    with pytest.raises(ConnectionLost, match="haTls and haAclEnable need a name server"):
        features(java, None, requires_ariane=True)


@pytest.mark.parametrize(
    ("keys", "accepts_tls"), [({}, False), ({"replicationTls": "false"}, False), ({"replicationTls": "true"}, True)]
)
def test_a_slave_sends_no_handshake_to_a_master_that_does_not_accept_it(
    keys: dict[str, str], accepts_tls: bool
) -> None:
    ariane = DescribedMaster(kernels="python", memberStream="true", **keys)
    assert features(ariane, "10.0.0.1:10911", requires_ariane=True) == MasterFeatures(True, accepts_tls)
