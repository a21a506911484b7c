"""A hundred thousand topics at an unmodified Java 4.9.4 name server and at ours: each topic is listed and has a route.

The long form queries the route of each topic, the short one of every twentieth.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

import ci_form
from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.lifecycle.registration import Registration
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.model.topic import DataVersion, TopicConfig
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.tasks import BackgroundTasks
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.routing import (
    BrokerRef,
    DeleteTopicRoute,
    RegisterBroker,
    RegisterBrokerBody,
    RouteRequest,
    TopicTable,
)
from ariane.testing import java

TOPICS = 100_000
WINDOW = 256  # requests in flight
ROUTE_STEP = 1 if ci_form.IS_LONG else 20
JVM = ("-Xms512m", "-Xmx1g")


class Broker:
    """A broker's topic table with its registration, and connections for checking the result."""

    def __init__(self, namesrv: list[str], peers: ConnectionPool, tasks: BackgroundTasks, count: int) -> None:
        self.addrs = namesrv
        self._peers = peers
        config = BrokerConfig(broker_name="broker-a", namesrv_addr=";".join(namesrv))
        table = {f"T{i}": TopicConfig(topic_name=f"T{i}", read_queue_nums=i % 8 + 1) for i in range(count)}
        self.topics = TopicRegistry(TopicTable(DataVersion(1, 1), table), config, now_ms=lambda: 2)
        self.registration = Registration(
            settings=DynamicConfig(config, 0),
            addr="127.0.0.1:1",
            ha_addr="127.0.0.1:2",
            topics=self.topics,
            peers=peers,
            tasks=tasks,
            now_ms=lambda: 2,
        )
        self.topics.on_table_change = self.registration.register_soon

    async def assert_routed(self, names: Iterable[str] | None = None) -> None:
        """Assert that each name server has all topics and no others, and these with the right queue counts.

        The default is every ROUTE_STEPth topic and the newest.
        """
        if names is None:
            every = list(self.topics.names())
            names = [*every[:-1:ROUTE_STEP], every[-1]]
        for addr in self.addrs:
            pending = iter(names)
            await asyncio.gather(*(self._assert_routes(addr, pending) for _ in range(WINDOW)))
            answer = await self._peers.request_ok(
                addr, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, timeout_ms=20_000
            )
            assert set(json.loads(answer.body)["topicList"]) == set(self.topics.names())
            ref = BrokerRef("broker-a", "127.0.0.1:1", "DefaultCluster", 0)
            version = fastjson.write(self.topics.version)
            recorded = await self._peers.request_ok(addr, RequestCode.QUERY_DATA_VERSION, ref, version)
            assert recorded.body == version

    async def _assert_routes(self, addr: str, names: Iterator[str]) -> None:
        for name in names:
            answer = await self._peers.request_ok(
                addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(name, True), timeout_ms=20_000
            )
            config = self.topics.get(name)
            (queues,) = json.loads(answer.body)["queueDatas"]
            assert config is not None
            expected = (config.read_queue_nums, config.write_queue_nums)
            assert (queues["readQueueNums"], queues["writeQueueNums"]) == expected

    async def code_of_route(self, addr: str, name: str) -> int:
        return (await self._peers.request(addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(name, True))).code

    async def delete(self, name: str) -> None:
        """Delete a topic as mqadmin does: at the broker, then at the name servers."""
        self.topics.delete(name)
        await self.registration.wait_registered()
        for addr in self.addrs:
            await self._peers.request_ok(
                addr, RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicRoute(name, "DefaultCluster")
            )


@asynccontextmanager
async def broker(namesrv: list[str], count: int) -> AsyncIterator[Broker]:
    tasks = BackgroundTasks("test")
    async with ConnectionPool() as peers:
        try:
            yield Broker(namesrv, peers, tasks, count)
        finally:
            await tasks.close()


@contextmanager
def java_name_server(home: Path, port: int = 0) -> Iterator[java.JavaServer]:
    with java.name_server(home, port=port, jvm_args=JVM) as server:
        yield server


def our_name_server(home: Path) -> NameServer:
    config = NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(home / "kv.json"))
    return NameServer(config)


def test_a_hundred_thousand_topics_are_registered_and_routed(tmp_path: Path) -> None:
    async def work(namesrv: str) -> None:
        async with our_name_server(tmp_path) as ours, broker([namesrv, ours.addr], TOPICS) as registered:
            await registered.registration.register_now()
            await registered.assert_routed()

            # Changes: new topics, one by one and many at once, another number of queues, a deletion.
            for number in range(20):
                registered.topics.put(TopicConfig(topic_name=f"new{number}", read_queue_nums=3))
                await registered.registration.wait_registered()
            names = [f"many{number}" for number in range(2_500)]
            for name in names:
                registered.topics.put(TopicConfig(topic_name=name, read_queue_nums=3))
            registered.topics.put(TopicConfig(topic_name="T7", read_queue_nums=5))
            await registered.registration.wait_registered()
            await registered.delete("T8")
            await registered.assert_routed(["T7", *names, *(f"new{number}" for number in range(20))])
            for addr in registered.addrs:
                assert await registered.code_of_route(addr, "T8") == ResponseCode.TOPIC_NOT_EXIST

    with java_name_server(tmp_path / "ns") as server:
        asyncio.run(asyncio.wait_for(work(server.addr), 300))


def test_a_restarted_broker_replaces_its_previous_registration(tmp_path: Path) -> None:
    async def work(namesrv: str) -> None:
        async with our_name_server(tmp_path) as ours, broker([namesrv, ours.addr], 3_000) as former:
            await former.registration.register_now()
            async with broker(former.addrs, 3_000) as repeated:  # the same version, other topics
                repeated.topics.put(TopicConfig(topic_name="T2999", read_queue_nums=1))
                repeated.topics._version = former.topics.version
                await repeated.registration.register_now()
                await repeated.assert_routed()

    with java_name_server(tmp_path / "ns") as server:
        asyncio.run(asyncio.wait_for(work(server.addr), 120))


@pytest.mark.long(
    "tests/interop/test_many_topics.py::test_a_restarted_broker_replaces_its_previous_registration",
    "tests/integration/test_nameserver.py::test_query_data_version_reports_whether_to_register",
)
def test_a_restarted_name_server_has_all_topics_after_the_next_change(tmp_path: Path) -> None:
    port = java.free_port()

    async def work() -> None:
        async with broker([f"127.0.0.1:{port}"], 3_000) as registered:
            with java_name_server(tmp_path / "ns", port):
                await registered.registration.register_now()
                await registered.assert_routed()
            server = java_name_server(tmp_path / "ns", port)
            await asyncio.to_thread(server.__enter__)
            try:
                registered.topics.put(TopicConfig(topic_name="new", read_queue_nums=3))
                await registered.registration.wait_registered()
                await registered.registration.register_now()
                await registered.assert_routed()
            finally:
                await asyncio.to_thread(server.__exit__, None, None, None)

    asyncio.run(asyncio.wait_for(work(), 120))


@pytest.mark.parametrize("count", [5, 5_000])
def test_a_registration_with_the_whole_topic_table_is_accepted(tmp_path: Path, count: int) -> None:
    """A 4.9.4 broker repeats its whole table every 30 s, in one request."""

    async def work() -> None:
        async with our_name_server(tmp_path) as ours, broker([ours.addr], count) as sender, ConnectionPool() as peers:
            header = RegisterBroker("broker-a", "127.0.0.1:1", "DefaultCluster", "127.0.0.1:2", 0)
            body = fastjson.write(RegisterBrokerBody((), sender.topics.table()))
            for _ in range(3):
                await peers.request_ok(ours.addr, RequestCode.REGISTER_BROKER, header, body)
                await sender.assert_routed()

    asyncio.run(asyncio.wait_for(work(), 120))
