"""Client instance: recipients of heartbeats, notifications and admin requests."""

from __future__ import annotations

import asyncio
import itertools
import json

import msgspec
import pytest
from client_script import Script, instance, name_server, raising, route

from ariane.client.instance.client_instance import ClientInstance
from ariane.errors import ClientClosed, ConnectionLost, HeaderError, ReplyError
from ariane.net.connection import Peer, Reply
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests.clients import ConsumerData
from ariane.protocol.requests.routing import BrokerData, QueueData, TopicRoute

BEAT = RequestCode.HEART_BEAT
WITH_SLAVE = TopicRoute(
    broker_datas=(BrokerData({0: "m:1", 1: "s:1"}, "a"),), queue_datas=(QueueData("a", 6, 4, 0, 4),)
)


def script(**topics: TopicRoute) -> Script:
    return Script({RequestCode.GET_ROUTEINFO_BY_TOPIC: name_server(topics), RequestCode.UNREGISTER_CLIENT: beat})


def beat(asked) -> Command:
    return Command(0)


async def beats() -> None:
    """Let what was started in the background get its turns."""
    for _ in range(5):
        await asyncio.sleep(0)


class Group:
    """A consumer group that records what wakes it and handles the admin requests in `answers`."""

    def __init__(self, group: str, woken: list[str], answers=None) -> None:
        self._group = group
        self._woken = woken
        self._answers = answers or {}

    def describe(self) -> ConsumerData:
        return ConsumerData(group_name=self._group)

    def topics(self) -> list[str]:
        return ["T"]

    def on_members_changed(self) -> None:
        self._woken.append(self._group)

    def on_routes_changed(self, topics: list[str]) -> None:
        self._woken.extend(topics)

    def handle_admin_request(self, command: Command):
        handler = self._answers.get(command.code)
        return handler(command) if handler else None


def test_producers_send_heartbeats_to_masters_and_consumers_to_all():
    peers = script(T=WITH_SLAVE)

    async def play():
        client = instance(peers)
        await client.routes.subscribe_queues("T")
        await client.heartbeat()
        assert peers.of(BEAT) == []  # no group is registered
        client.register_producer("p")
        await client.heartbeat()
        assert [request.addr for request in peers.of(BEAT)] == ["m:1"]
        client.register_consumer("c", Group("c", []))
        await client.heartbeat()
        assert sorted(request.addr for request in peers.of(BEAT)[1:]) == ["m:1", "s:1"]
        data = json.loads(peers.of(BEAT)[-1].body)
        assert data["clientID"] == client.client_id
        assert [request["groupName"] for request in data["producerDataSet"]] == ["p"]
        assert [request["groupName"] for request in data["consumerDataSet"]] == ["c"]
        await client.unregister(consumer_group="c")
        assert sorted(request.addr for request in peers.of(RequestCode.UNREGISTER_CLIENT)) == ["m:1", "s:1"]
        await client.heartbeat()
        assert peers.of(BEAT)[-1].addr == "m:1"

    asyncio.run(play())


def test_a_dead_broker_does_not_prevent_heartbeats_to_the_others():
    peers = script(T=route("a", "b"))

    async def play():
        client = instance(peers)
        await client.routes.subscribe_queues("T")
        client.register_producer("p")
        peers.answers[BEAT] = raising(ConnectionLost("x", "refused"))
        await client.heartbeat()
        assert sorted(request.addr for request in peers.of(BEAT)) == ["a:1", "b:1"]

    asyncio.run(play())


def test_a_refresh_reports_changes_and_registers_with_new_brokers_once():
    topics = {"T": route("a")}
    peers = script()
    peers.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = name_server(topics)
    woken: list[str] = []

    async def play():
        client = instance(peers)
        client.register_consumer("c", Group("c", woken))
        for _ in range(3):
            await client.refresh_routes()
            await beats()
        assert woken == ["T"]
        assert [request.addr for request in peers.of(BEAT)] == ["a:1"]
        topics["T"] = route("a", "b")
        await client.refresh_routes()
        await beats()
        assert woken == ["T", "T"]
        assert [request.addr for request in peers.of(BEAT)] == ["a:1", "b:1"]

    asyncio.run(play())


def test_failed_requests_share_a_refresh_and_the_next_ones_wait_longer():
    peers = script(T=WITH_SLAVE)

    async def play():
        client = instance(peers)
        await client.routes.subscribe_queues("T")
        client.register_consumer("c", Group("c", []))
        started_at, ends = client.clock.monotonic(), []
        for _ in range(6):
            first = client.refresh_routes_soon()
            assert client.refresh_routes_soon() is first
            await first
            ends.append(client.clock.monotonic() - started_at)
        assert ends[0] == 0
        pauses = [after - before for before, after in itertools.pairwise(ends)]
        for pause, most in zip(pauses, (0.5, 1, 2, 2, 2), strict=True):
            assert 0.75 * most <= pause <= most
        assert len(peers.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 7

    asyncio.run(play())


def test_requests_to_a_replaced_master_end_and_those_to_a_demoted_one_do_not():
    topics = {"T": WITH_SLAVE}
    peers = script()
    peers.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = name_server(topics)

    async def play():
        client = instance(peers)
        await client.routes.subscribe_queues("T")
        client.register_consumer("c", Group("c", []))
        for ids in ({1: "s:1"}, {0: "s:1", 1: "m:1"}, {0: "m:1", 1: "s:1"}):  # no master, a switch, and back
            topics["T"] = msgspec.structs.replace(WITH_SLAVE, broker_datas=(BrokerData(ids, "a"),))
            await client.refresh_routes()
            assert peers.aborted == []
        topics["T"] = msgspec.structs.replace(WITH_SLAVE, broker_datas=(BrokerData({0: "s:1"}, "a"),))
        await client.refresh_routes()
        assert peers.aborted == ["m:1"]

    asyncio.run(play())


def test_a_notification_triggers_a_rebalance_of_its_group_only():
    woken: list[str] = []
    client = instance(script())
    client.register_consumer("one", Group("one", woken))
    client.register_consumer("two", Group("two", woken))
    peer = Peer(1, "127.0.0.1", 1, b"\x7f\0\0\1\0\0\0\1")
    for group in ("two", "unknown"):
        command = Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields={"consumerGroup": group})
        assert client._on_members_changed(command, peer) is None
    assert woken == ["two"]
    with pytest.raises(HeaderError):
        client._on_members_changed(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields={}), peer)


def test_two_instances_of_one_process_have_two_ids():
    first, second = ClientInstance("a:1"), ClientInstance("a:1")
    assert first.client_id != second.client_id
    assert first.new_message_id() != second.new_message_id()


def test_an_instance_that_is_not_open_raises_client_closed():
    with pytest.raises(ClientClosed):
        _ = ClientInstance("a:1").peers


def test_an_admin_request_is_passed_to_its_group():
    async def play():
        client = instance(script())
        requests = []

        def answer(command):
            requests.append(command.code)
            return Reply(7)

        codes = (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
        client.register_consumer("c", Group("c", [], dict.fromkeys(codes, answer)))
        peer = Peer(1, "127.0.0.1", 1, b"")
        assert client._handle_group_request(Command(codes[0], fields={"consumerGroup": "c"}), peer) == Reply(7)
        assert client._handle_group_request(Command(codes[1], fields={"group": "c"}), peer) == Reply(7)
        assert requests == list(codes)
        for fields in ({"consumerGroup": "other"}, {}, {"group": ""}):
            with pytest.raises(ReplyError, match="not exist"):
                client._handle_group_request(Command(codes[0], fields=fields), peer)
        with pytest.raises(ReplyError, match="not exist"):
            client._handle_group_request(Command(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields={"group": "c"}), peer)

    asyncio.run(play())
