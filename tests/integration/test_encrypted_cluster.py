"""A broker that accepts encrypted connections only: its registration, and plain sends and pulls of clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ariane.broker.replication.slave_sync import check_master
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


def test_replication_is_encrypted(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(slaves=1, ha_tls=True, **REPLICATED) as cluster:
            await wait_replicated(cluster)
            host, _, port = cluster.broker.addr.rpartition(":")
            async with open_stream(f"{host}:{int(port) + 1}") as plain:
                await plain.write(bytes(8))
                with pytest.raises(ConnectionLost):
                    await plain.read(20)

    asyncio.run(work())
    assert "it is not encrypted, and haTls is true" in caplog.text
    assert "not encrypted. Set haTls" not in caplog.text


def test_a_slave_without_the_setting_follows_an_encrypted_master(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(slaves=1, **REPLICATED) as cluster:
            await wait_replicated(cluster)

    asyncio.run(work())
    assert "Replication from the master is not encrypted" in caplog.text
    assert "also serves slaves whose connections are not encrypted" in caplog.text


def test_a_slave_sends_no_handshake_to_a_java_master() -> None:
    class Master:
        async def request_ok(self, addr: str, code: int) -> Command:
            return Command(0, 1, 1, body=fastjson.write(KvTableBody({"brokerVersionDesc": "V4_9_4"})))

    with pytest.raises(ConnectionLost, match="because it is Java's; set haTls=false"):
        asyncio.run(check_master(Master(), "10.0.0.1:10911", requires_ariane=True))  # type: ignore[arg-type]
    with pytest.raises(ConnectionLost, match="haTls and haAclEnable need a name server"):
        asyncio.run(check_master(Master(), None, requires_ariane=True))  # type: ignore[arg-type]
