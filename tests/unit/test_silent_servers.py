"""How long commands wait for servers that do not respond: once, and they name each of them once. In virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from ariane.cli.messages.cat_produce import describe_failure
from ariane.cli.mqadmin.command_registry import find_name, load
from ariane.cli.mqadmin.option_parser import create_parser
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.producer import Producer
from ariane.cluster.admin import Admin
from ariane.errors import ArianeError, ConnectionLost, ReplyError
from ariane.model.message import Message
from ariane.net.connection import Peer, Reply
from ariane.net.pools.fail_fast_pool import NotAsked
from ariane.net.pools.server_health import ServerHealth
from ariane.net.server import RemotingServer
from ariane.protocol import command as commands
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.frame import FrameReader
from ariane.protocol.requests.brokers import GroupList
from ariane.protocol.requests.routing import (
    BrokerData,
    ClusterInfo,
    KvTableBody,
    QueueData,
    TopicList,
    TopicRoute,
)
from ariane.protocol.requests.stats import ConsumeStats, TopicStats
from ariane.testing.virtual.virtual_cluster import VirtualCluster, virtual_cluster
from ariane.testing.virtual.virtual_time import VirtualProcess

CODE = RequestCode
FIRST_S = 3.0  # wait for the first silent server
NEXT_S = 2.0  # wait for another one, asked later
SLACK_S = 0.1  # round trips
GROUPS = 100
COUNTERS = {f"msg{kind}Total{day}": "3" for kind in ("Put", "Get") for day in ("TodayNow", "TodayMorning")}
RUNTIME = KvTableBody({"brokerVersionDesc": "V4_9_4", "bootTimestamp": "5", **COUNTERS})


class Scene:
    """Two name servers, a master and a slave, and the process of a command. Servers can be paused."""

    def __init__(self, world: VirtualCluster) -> None:
        self.loop = world.loop
        names = ("names", "names2", "master", "slave", "command")
        self.processes: dict[str, VirtualProcess] = {name: world.process(name) for name in names}
        ports = {"names": 9876, "names2": 9876, "master": 10911, "slave": 10911}
        self.addrs = {name: f"{self.processes[name].ip}:{port}" for name, port in ports.items()}
        self.namesrv = self.addrs["names"]
        broker = BrokerData({0: self.addrs["master"], 1: self.addrs["slave"]}, "broker-a", "C")
        topics = ("T", *(f"%RETRY%G{number}" for number in range(GROUPS)))
        self._bodies: dict[int, Any] = {
            CODE.GET_BROKER_CLUSTER_INFO: ClusterInfo({"broker-a": broker}, {"C": ("broker-a",)}),
            CODE.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList(topic_list=topics),
            CODE.GET_ROUTEINFO_BY_TOPIC: TopicRoute((broker,), {}, None, (QueueData("broker-a", 6, 1, 0, 1),)),
            CODE.GET_BROKER_RUNTIME_INFO: RUNTIME,
            CODE.GET_CONSUME_STATS: ConsumeStats(),
            CODE.QUERY_TOPIC_CONSUME_BY_WHO: GroupList(("G0", "G1")),
            CODE.GET_TOPIC_STATS_INFO: TopicStats({}),
            CODE.GET_CONSUMER_CONNECTION_LIST: ReplyError(ResponseCode.CONSUMER_NOT_ONLINE, "offline", ""),
            **dict.fromkeys((CODE.VIEW_BROKER_STATS_DATA,), ReplyError(ResponseCode.SYSTEM_ERROR, "not exist", "")),
            **dict.fromkeys((CODE.DELETE_TOPIC_IN_BROKER, CODE.DELETE_TOPIC_IN_NAMESRV, CODE.HEART_BEAT), b""),
            **dict.fromkeys((CODE.UNREGISTER_CLIENT, CODE.SEND_MESSAGE_V2), b""),
        }

    async def serve(self, name: str) -> None:
        def answer(command: Command, peer: Peer) -> Reply:
            body = self._bodies[command.code]
            if isinstance(body, ReplyError):
                raise body
            return Reply(body=body if isinstance(body, bytes) else fastjson.write(body))

        ip, port = self.addrs[name].split(":")
        await RemotingServer(dict.fromkeys(self._bodies, answer), ip, int(port)).__aenter__()

    async def seconds(self, work: Coroutine[Any, Any, Any]) -> float:
        started_s = self.loop.time()
        await work
        return self.loop.time() - started_s


def play(story: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    with virtual_cluster() as world:
        scene = Scene(world)

        async def scenario() -> None:
            for name in scene.addrs:
                await scene.processes[name].start(scene.serve(name))
            await scene.processes["command"].start(story(scene))

        world.run(scenario(), limit_s=600)


async def run(scene: Scene, line: str) -> list[str]:
    """Run an mqadmin command, and return the lines that it prints about servers."""
    name, *arguments = line.split()
    registered = find_name(name)
    assert registered is not None
    command = load(registered)
    options = create_parser(command, "", "mqadmin").parse_args([*arguments, "-n", scene.namesrv])
    named = []
    async with Admin(scene.namesrv) as admin:
        async for output in command.run(admin, options):
            named += [missing.addr for missing in output.unavailable]
        named += [note.split()[0] for note in admin.notes]
    return named


@pytest.mark.parametrize(
    "line",
    [
        "consumerProgress",
        "consumerProgress -g G0",
        "clusterList",
        "brokerStatus -c C",
        "statsAll",
        "deleteTopic -c C -t T",
    ],
)
def test_a_slave_that_hangs_delays_a_command_once(line: str) -> None:
    async def story(scene: Scene) -> None:
        scene.processes["slave"].pause()
        taken_s = await scene.seconds(run(scene, line))
        assert FIRST_S <= taken_s <= FIRST_S + SLACK_S

    play(story)


@pytest.mark.parametrize("line", ["consumerProgress", "clusterList", "statsAll", "topicStatus -t T"])
def test_a_master_that_hangs_is_named_and_delays_a_command_once(line: str) -> None:
    async def story(scene: Scene) -> None:
        scene.processes["master"].pause()
        started_s = scene.loop.time()
        assert set(await run(scene, line)) == {scene.addrs["master"]}
        assert scene.loop.time() - started_s <= FIRST_S + SLACK_S

    play(story)


def test_a_second_silent_server_costs_less_than_the_first() -> None:
    async def story(scene: Scene) -> None:
        scene.namesrv = f"{scene.addrs['names']};{scene.addrs['names2']}"
        scene.processes["names"].pause()
        scene.processes["slave"].pause()
        taken_s = await scene.seconds(run(scene, "consumerProgress"))
        assert taken_s <= FIRST_S + NEXT_S + SLACK_S

    play(story)


def test_a_send_to_a_master_that_hangs_has_one_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def story(scene: Scene) -> None:
        scene.processes["master"].pause()
        started_s = scene.loop.time()
        with pytest.raises(ArianeError) as failure:
            async with Admin(scene.namesrv) as admin:
                await admin.send_message(Message(topic="T", body=b"x"))
        assert scene.loop.time() - started_s <= FIRST_S + SLACK_S
        assert isinstance(failure.value, NotAsked)
        assert "may be stored" not in describe_failure(failure.value, 1)

    with caplog.at_level(logging.WARNING):
        play(story)
    assert caplog.records == []


def test_a_request_that_was_sent_may_have_been_executed() -> None:
    assert "may be stored" in describe_failure(ConnectionLost("a:1", "no response within 3000 ms"), 1)


def test_a_command_does_not_wait_long_to_unregister_at_a_broker_that_hangs() -> None:
    async def story(scene: Scene) -> None:
        async with ClientInstance(scene.namesrv, health=ServerHealth()) as instance, Producer(instance, "P"):
            scene.processes["master"].pause()
            started_s = scene.loop.time()
        assert scene.loop.time() - started_s <= 1.0 + SLACK_S

    play(story)


class TricklingServer(asyncio.Protocol):
    """Sends a response in eight pieces over eight seconds, and those of further requests after it."""

    def __init__(self) -> None:
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._delay_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._reader.append(data)
        while frame := self._reader.next_frame():
            request = commands.decode(frame)
            response = b"".join(commands.encode(0, opaque=request.opaque, flag=1, body=bytes(800)))
            size = -(-len(response) // 8)
            for start in range(0, len(response), size):
                self._delay_s += 1.0
                piece = response[start : start + size]
                asyncio.get_running_loop().call_later(self._delay_s, self._transport.write, piece)


def test_a_server_from_which_a_large_response_arrives_is_not_silent() -> None:
    async def story(scene: Scene) -> None:
        await asyncio.get_running_loop().create_server(TricklingServer, scene.processes["command"].ip, 7)
        async with Admin(scene.namesrv, timeout_ms=15_000) as admin:
            answer = await admin.request(f"{scene.processes['command'].ip}:7", CODE.GET_ALL_TOPIC_CONFIG)
        assert len(answer.body) == 800

    play(story)
