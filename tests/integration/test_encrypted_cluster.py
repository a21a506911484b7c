"""A broker that accepts encrypted connections only: its registration, and plain sends and pulls of clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ariane.client import LitePullConsumer, Producer
from ariane.client.instance.settings import ClientSettings
from ariane.errors import ArianeError, ConfigError, ConnectionLost
from ariane.kernels import implementation
from ariane.model.message import Message
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
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
