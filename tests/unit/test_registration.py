"""Registration with name servers that follow the rules of 4.9.4. No socket: requests are calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.lifecycle.registration import PART_TOPICS, Registration
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import ConnectionLost
from ariane.model.topic import PERM_READ, PERM_WRITE, DataVersion, TopicConfig
from ariane.nameserver import registration as wire
from ariane.nameserver.route_table import RouteTable
from ariane.net.tasks import BackgroundTasks
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.routing import BrokerRef, RegisterBroker, TopicTable


class FakeNameServer:
    """Route table of a name server: topics count only with another version than the recorded one, and are never removed."""

    def __init__(self) -> None:
        self.restart()
        self.requests: list[tuple[int, tuple[str, ...]]] = []  # code, topics
        self.fail_after: int | None = None  # so many more requests are served, then connections break
        self.hang: asyncio.Event | None = None
        self.is_down = False

    def restart(self) -> None:
        self.routes = RouteTable()
        self.connection = FakeConnection(self)

    def topics(self) -> set[str]:
        return {topic for part in self.routes.topics() for topic in part}

    def version(self) -> DataVersion | None:
        return self.routes.refresh_version(BrokerRef("broker-a", "h:1", "DefaultCluster", 0), DataVersion(), 0)

    async def serve(self, code: int, header: Mapping[str, str], body: bytes) -> Command:
        await asyncio.sleep(0)
        if self.hang is not None:
            await self.hang.wait()
        if self.fail_after is not None:
            if not self.fail_after:
                raise ConnectionLost("ns:1", "is closed")
            self.fail_after -= 1
        if code == RequestCode.REGISTER_BROKER:
            request = msgspec.convert(header, RegisterBroker, strict=False)
            registered = wire.decode(request, body, 401)
            self.requests.append((code, tuple(registered.topic_config_serialize_wrapper.topic_config_table)))
            return answered(encode_header(self.routes.register(request, registered, 1, 0)))
        self.requests.append((code, ()))
        ref = msgspec.convert(header, BrokerRef, strict=False)
        if code == RequestCode.UNREGISTER_BROKER:
            self.routes.unregister(ref)
            return answered({})
        assert code == RequestCode.QUERY_DATA_VERSION
        version = self.routes.refresh_version(ref, fastjson.decode(body, DataVersion), 0)
        return answered({"changed": "x"}, fastjson.write(version) if version else b"")


def answered(header: Mapping[str, str], body: bytes = b"") -> Command:
    return Command(code=0, opaque=0, flag=1, fields=msgspec.Raw(msgspec.json.encode(header)), body=body)


class FakeConnection:
    def __init__(self, server: FakeNameServer) -> None:
        self._server = server

    async def request(self, code: int, header: Mapping[str, str], body: bytes, *, timeout_ms: float) -> Command:
        if self is not self._server.connection:
            raise ConnectionLost("ns:1", "is closed")
        return await self._server.serve(code, header, body)


class FakePeers:
    def __init__(self, servers: Mapping[str, FakeNameServer]) -> None:
        self._servers = servers

    async def connect(self, addr: str) -> FakeConnection:
        if self._servers[addr].is_down:
            raise ConnectionLost(addr, "refused")
        return self._servers[addr].connection

    async def request_ok(self, addr: str, code: int, header: msgspec.Struct) -> Command:
        return await (await self.connect(addr)).request(code, encode_header(header), b"", timeout_ms=1)


class Setup:
    """A broker's topic table that is registered with one or two name servers."""

    def __init__(self, count: int, **settings: Any) -> None:
        self.first, self.second = FakeNameServer(), FakeNameServer()
        config = BrokerConfig(broker_name="broker-a", namesrv_addr="ns:1;ns:2", **settings)
        stored = TopicTable(DataVersion(7, 7), {f"T{i}": TopicConfig(topic_name=f"T{i}") for i in range(count)})
        self.topics = TopicRegistry(stored, config, now_ms=lambda: 1000)
        self.settings = DynamicConfig(config, 0)
        self.tasks = BackgroundTasks("test")
        peers: Any = FakePeers({"ns:1": self.first, "ns:2": self.second})
        self.registration = Registration(
            settings=self.settings,
            addr="h:1",
            ha_addr="h:2",
            topics=self.topics,
            peers=peers,
            tasks=self.tasks,
            now_ms=lambda: 1000,
        )
        self.topics.on_table_change = self.registration.register_soon

    def names(self) -> set[str]:
        return set(self.topics.names())


def run(work: Callable[[Setup], Awaitable[None]], count: int = 3, **settings: Any) -> None:
    async def with_setup() -> None:
        setup = Setup(count, **settings)
        try:
            await work(setup)
        finally:
            await setup.tasks.close()

    asyncio.run(asyncio.wait_for(with_setup(), 30))


def test_a_new_topic_is_registered_alone() -> None:
    async def work(setup: Setup) -> None:
        await setup.registration.register_now()
        assert setup.first.topics() == setup.names()
        setup.first.requests.clear()
        setup.topics.put(TopicConfig(topic_name="new"))
        await setup.registration.wait_registered()
        assert setup.first.requests == [(RequestCode.QUERY_DATA_VERSION, ()), (RequestCode.REGISTER_BROKER, ("new",))]
        assert setup.first.topics() == setup.second.topics() == setup.names()
        assert setup.first.version() == setup.topics.version

    run(work)


def test_a_large_table_is_registered_in_parts() -> None:
    async def work(setup: Setup) -> None:
        await setup.registration.register_now()
        assert setup.first.topics() == setup.names()
        assert setup.first.version() == setup.topics.version
        sizes = [len(topics) for _, topics in setup.first.requests]
        assert len(sizes) == 7 and max(sizes) == PART_TOPICS

    run(work, 5 * PART_TOPICS + 1)


def test_many_changes_are_registered_in_parts_too() -> None:
    async def work(setup: Setup) -> None:
        await setup.registration.register_now()
        for number in range(2 * PART_TOPICS + 1):
            setup.topics.put(TopicConfig(topic_name=f"new{number}"))
        await setup.registration.wait_registered()
        assert setup.first.topics() == setup.second.topics() == setup.names()
        assert setup.first.version() == setup.topics.version

    run(work)


@pytest.mark.parametrize("served", range(6))
def test_an_interrupted_registration_is_completed_by_the_next(served: int) -> None:
    async def work(setup: Setup) -> None:
        setup.first.fail_after = served
        await setup.registration.register_now()
        assert setup.first.version() != setup.topics.version
        setup.first.fail_after = None
        await setup.registration.register_now()
        assert setup.first.topics() == setup.names()
        assert setup.first.version() == setup.topics.version

    run(work, 4 * PART_TOPICS)


@pytest.mark.parametrize("served", range(4))
def test_changes_of_an_interrupted_registration_are_not_lost(served: int) -> None:
    async def work(setup: Setup) -> None:
        await setup.registration.register_now()
        setup.first.fail_after = served
        for number in range(2 * PART_TOPICS + 1):
            setup.topics.put(TopicConfig(topic_name=f"new{number}"))
        await setup.registration.wait_registered()
        setup.first.fail_after = None
        await setup.registration.register_now()
        assert setup.first.topics() == setup.names()

    run(work)


def test_a_restarted_name_server_receives_the_whole_table() -> None:
    async def work(setup: Setup) -> None:
        await setup.registration.register_now()
        setup.first.restart()
        setup.topics.put(TopicConfig(topic_name="new"))
        await setup.registration.wait_registered()
        assert setup.first.topics() == setup.names()

    run(work)


def test_a_name_server_that_removed_the_broker_receives_the_whole_table() -> None:
    async def work(setup: Setup) -> None:
        await setup.registration.register_now()
        setup.first.routes.unregister(BrokerRef("broker-a", "h:1", "DefaultCluster", 0))
        setup.topics.put(TopicConfig(topic_name="new"))
        await setup.registration.wait_registered()
        assert setup.first.topics() == setup.names()

    run(work)


def test_the_table_registered_by_the_previous_process_is_replaced() -> None:
    async def work(setup: Setup) -> None:
        await setup.registration.register_now()
        repeated = Setup(3, broker_permission=PERM_READ)
        repeated.first.routes, repeated.first.connection = setup.first.routes, FakeConnection(repeated.first)
        await repeated.registration.register_now()  # the same version, other permissions
        route = setup.first.routes.find_route("T0")
        assert route is not None and route.queue_datas[0].perm == PERM_READ
        await repeated.tasks.close()

    run(work)


def test_a_period_without_changes_sends_no_topics() -> None:
    async def work(setup: Setup) -> None:
        await setup.registration.register_now()
        setup.first.requests.clear()
        await setup.registration.register_now()
        assert setup.first.requests == [(RequestCode.QUERY_DATA_VERSION, ()), (RequestCode.REGISTER_BROKER, ())]

    run(work)


def test_a_changed_broker_permission_sends_the_whole_table() -> None:
    async def work(setup: Setup) -> None:
        await setup.registration.register_now()
        setup.settings.current = msgspec.structs.replace(setup.settings.current, broker_permission=PERM_READ)
        setup.topics.bump_version()
        await setup.registration.wait_registered()
        route = setup.first.routes.find_route("T0")
        assert route is not None and route.queue_datas[0].perm == PERM_READ

    run(work)


def test_a_permission_that_was_withheld_is_registered_once_it_is_allowed() -> None:
    async def work(setup: Setup) -> None:
        setup.registration.withheld_permission = PERM_WRITE
        await setup.registration.register_now()
        setup.topics.put(TopicConfig(topic_name="new"))
        await setup.registration.wait_registered()
        for topic in ("T0", "new"):
            route = setup.first.routes.find_route(topic)
            assert route is not None and route.queue_datas[0].perm == PERM_READ
        setup.registration.allow()
        await setup.registration.wait_registered()
        for topic in ("T0", "new"):
            route = setup.first.routes.find_route(topic)
            assert route is not None and route.queue_datas[0].perm == PERM_READ | PERM_WRITE

    run(work)


def test_later_parts_do_not_contain_a_deleted_topic() -> None:
    async def work(setup: Setup) -> None:
        task = asyncio.ensure_future(setup.registration.register_now())
        while not setup.first.requests:
            await asyncio.sleep(0)
        last = setup.topics.names()[4 * PART_TOPICS - 1]
        setup.topics.delete(last)
        await task
        await setup.registration.wait_registered()
        assert last not in setup.first.topics() | setup.second.topics()
        assert setup.first.version() == setup.topics.version

    run(work, 4 * PART_TOPICS)


def test_an_unresponsive_name_server_does_not_delay_the_others() -> None:
    async def work(setup: Setup) -> None:
        await setup.registration.register_now()
        setup.first.hang = asyncio.Event()
        setup.topics.put(TopicConfig(topic_name="new"))
        while "new" not in setup.second.topics():
            await asyncio.sleep(0)
        setup.first.hang.set()
        await setup.registration.wait_registered()
        assert "new" in setup.first.topics()

    run(work)


def test_a_late_registration_does_not_restore_an_unregistered_broker() -> None:
    async def work(setup: Setup) -> None:
        task = asyncio.ensure_future(setup.registration.register_now())
        while not setup.first.requests:
            await asyncio.sleep(0)
        await setup.registration.unregister()
        await task
        await setup.registration.register_now()
        assert setup.first.version() is None and setup.second.version() is None

    run(work, 4 * PART_TOPICS)


def test_no_changes_are_collected_for_a_name_server_due_for_the_whole_table() -> None:
    async def work(setup: Setup) -> None:
        setup.second.is_down = True
        await setup.registration.register_now()
        for number in range(50):
            setup.topics.put(TopicConfig(topic_name=f"new{number}"))
            await setup.registration.wait_registered()
        assert setup.first.topics() == setup.names()
        assert not setup.registration._links[1].pending
        setup.second.is_down = False
        await setup.registration.register_now()
        assert setup.second.topics() == setup.names()

    run(work)


def test_a_slave_sends_no_topics() -> None:
    async def work(setup: Setup) -> None:
        await setup.registration.register_now()
        assert setup.first.requests == [(RequestCode.REGISTER_BROKER, ())]

    run(work, broker_id=1)
