"""Name servers are lost and added, brokers join and leave, while clients send and consume: no send fails, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from ariane import Admin, ClientSettings, ConsumerSettings, Producer, PushConsumer
from ariane.broker.broker import Broker
from ariane.errors import ArianeError
from ariane.model.message import ReceivedMessage
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.testing.cluster_servers import broker_config
from failover_processes import broker_ports

TOPIC = "orders"
REFRESH_S = 0.2
CLIENT = ClientSettings(route_refresh_interval=REFRESH_S)
QUICK = ConsumerSettings(rebalance_interval=0.2, commit_interval=0.1)


class Traffic:
    """Sends all the time, and consumes."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self.acknowledged: list[bytes] = []
        self.brokers: list[str] = []  # of acknowledged sends
        self.received: set[bytes] = set()
        self.failures: list[str] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        consumer = PushConsumer(
            self._namesrv, "stock", {TOPIC: "*"}, self._receive, start="first", client=CLIENT, settings=QUICK
        )
        async with Producer(self._namesrv, "shop", client=CLIENT) as producer, consumer:
            sending = asyncio.create_task(self._send(producer))
            try:
                await self.more()
                yield
                await self.more()
            finally:
                sending.cancel()
                await asyncio.wait([sending])
            await until(lambda: self.received >= set(self.acknowledged))
        assert self.failures == []

    async def more(self) -> None:
        """Wait for fifty acknowledgements, and until the consumer has what they were for."""
        count = len(self.acknowledged) + 50
        await until(lambda: len(self.acknowledged) >= count)
        await until(lambda: self.received >= set(self.acknowledged[:count]))

    async def _send(self, producer: Producer[bytes]) -> None:
        number = 0
        while True:
            number += 1
            try:
                result = await producer.send(TOPIC, b"%d" % number)
            except ArianeError as error:
                self.failures.append(str(error))
            else:
                self.acknowledged.append(b"%d" % number)
                self.brokers.append(result.queue.broker)
            await asyncio.sleep(0.002)

    async def _receive(self, messages: Sequence[ReceivedMessage]) -> None:
        self.received.update(message.body for message in messages)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def name_server(home: Path, port: int = 0) -> NameServer:
    return NameServer(
        NameServerConfig(bind_address="127.0.0.1", listen_port=port, kv_config_path=str(home / f"kv-{port}.json"))
    )


def local_addr(port: int) -> str:
    return f"127.0.0.1:{port}"


@pytest.mark.long(
    "tests/unit/test_name_servers.py::test_name_servers_are_tried_until_one_has_the_route",
)
def test_name_servers_are_lost_and_added_under_load(tmp_path: Path) -> None:
    async def work() -> None:
        ports = broker_ports(2)
        namesrv = ";".join(map(local_addr, ports))
        config = broker_config(tmp_path / "broker", namesrv, register_name_server_period=10_000)
        async with contextlib.AsyncExitStack() as servers:
            first = await servers.enter_async_context(contextlib.AsyncExitStack())
            await first.enter_async_context(name_server(tmp_path, ports[0]))
            await servers.enter_async_context(Broker(config))  # the second one does not run yet
            async with Admin(namesrv) as admin:
                await admin.create_topic(TOPIC, queues=2)
            traffic = Traffic(namesrv)
            async with traffic.running():
                await servers.enter_async_context(name_server(tmp_path, ports[1]))
                await lists_topic(local_addr(ports[1]))
                await first.aclose()
                await asyncio.sleep(3 * REFRESH_S)  # clients fetch routes from the added one
                await traffic.more()
                await first.enter_async_context(name_server(tmp_path, ports[0]))
                await lists_topic(local_addr(ports[0]))
                await traffic.more()

    asyncio.run(work())


async def lists_topic(namesrv: str) -> None:
    """Wait until a name server has the route of the topic."""
    async with asyncio.timeout(60), Admin(namesrv) as admin:
        while True:
            with contextlib.suppress(ArianeError):
                await admin.fetch_route(TOPIC)
                return
            await asyncio.sleep(0.1)


def test_brokers_join_and_leave_under_load(tmp_path: Path) -> None:
    async def work() -> None:
        async with name_server(tmp_path) as names, contextlib.AsyncExitStack() as servers:
            namesrv = local_addr(int(names.addr.rpartition(":")[2]))

            async def join(name: str) -> contextlib.AsyncExitStack:
                broker = await servers.enter_async_context(contextlib.AsyncExitStack())
                await broker.enter_async_context(Broker(broker_config(tmp_path / name, namesrv, broker_name=name)))
                return broker

            former = await join("broker-a")
            async with Admin(namesrv) as admin:
                await admin.create_topic(TOPIC, queues=2)
                traffic = Traffic(namesrv)
                async with traffic.running():
                    await join("broker-b")
                    await admin.create_topic(TOPIC, queues=2)
                    await until(lambda: "broker-b" in traffic.brokers)
                    await admin.set_broker_writable("broker-a", False)
                    await until(lambda: set(traffic.brokers[-50:]) == {"broker-b"})
                    await traffic.more()  # what broker-a has is consumed
                    await former.aclose()
                    await traffic.more()

    asyncio.run(work())
