"""Routes of a separate proxy, in virtual time: which brokers are asked while some do not answer or have no master."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ariane.errors import ReplyError, RequestTimeout
from ariane.model.topic import SubscriptionGroupConfig
from ariane.net.pools.requester import Requester, ServerRequest
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.admin import TopicConfigBody
from ariane.protocol.requests.routing import BrokerData, ClusterInfo, QueueData, TopicRoute
from ariane.proxy.cluster.cluster_routes import SILENT_S, ClusterRoutes
from ariane.testing.virtual.virtual_time import VirtualLoop

NAME_SERVER, A, B = "10.0.0.1:9876", "10.0.0.2:10911", "10.0.0.3:10911"
TIMEOUT_S = 3.0


class Cluster(Requester):
    """A name server, and two brokers that declare an ordered group and a type of messages."""

    def __init__(self) -> None:
        self.masters = {"broker-a": A, "broker-b": B}
        self.silent: set[str] = set()
        self.asked: list[str] = []  # addresses of brokers
        self.routes = ClusterRoutes(self, [NAME_SERVER])

    async def exchange(self, request: ServerRequest) -> Command:
        if request.addr != NAME_SERVER:
            self.asked.append(request.addr)
        if request.addr in self.silent:
            await asyncio.sleep(TIMEOUT_S)
            raise RequestTimeout(request.addr, TIMEOUT_S * 1000)
        datas = {
            name: BrokerData({0 if addr else 1: addr or "10.0.0.9:10911"}, name) for name, addr in self.masters.items()
        }
        match request.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                queues = tuple(QueueData(name, 6, 2, 0, 2) for name in datas)
                return ok(TopicRoute(broker_datas=tuple(datas.values()), queue_datas=queues))
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                return ok(ClusterInfo(broker_addr_table=datas))
            case RequestCode.GET_TOPIC_CONFIG:
                return ok(TopicConfigBody(attributes={"message.type": "FIFO"}))
        return ok(SubscriptionGroupConfig(group_name="G", consume_message_orderly=True))


def ok(body: object) -> Command:
    return Command(ResponseCode.SUCCESS, body=fastjson.write(body))


def play(act: Callable[[Cluster, VirtualLoop], Awaitable[None]]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(act(Cluster(), loop))
    finally:
        loop.close()


def test_a_broker_that_does_not_answer_delays_one_call_and_has_the_type_of_the_others() -> None:
    async def act(cluster: Cluster, loop: VirtualLoop) -> None:
        cluster.silent = {B}
        routed = await cluster.routes.topic("T")
        assert {name: each.on_broker.answers for name, each in routed.items()} == {"broker-a": True, "broker-b": False}
        assert routed["broker-b"].on_broker.topic.attributes == {"message.type": "FIFO"}
        cluster.routes.expire("T")
        before_s, cluster.asked = loop.time(), []
        await cluster.routes.topic("T")
        assert (await cluster.routes.group("G")).is_ordered
        assert (loop.time(), cluster.asked) == (before_s, [A, A])

        await asyncio.sleep(SILENT_S)
        cluster.silent = set()
        assert cluster.routes.silent_brokers() == []
        routed = await cluster.routes.topic("T")
        assert all(each.on_broker.answers for each in routed.values())

    play(act)


def test_a_group_is_unknown_while_no_broker_answers() -> None:
    """The defaults are those of a group without order."""

    async def act(cluster: Cluster, loop: VirtualLoop) -> None:
        cluster.silent = {A, B}
        with pytest.raises(RequestTimeout):
            await cluster.routes.group("G")

    play(act)


def test_a_broker_without_a_master_takes_no_messages_and_has_its_own_refusal() -> None:
    async def act(cluster: Cluster, loop: VirtualLoop) -> None:
        cluster.masters["broker-b"] = ""
        assert list(await cluster.routes.topic("T")) == ["broker-a"]
        refusals = {"broker-b": ResponseCode.SERVICE_NOT_AVAILABLE, "broker-c": ResponseCode.NO_MESSAGE}
        for name, code in refusals.items():
            with pytest.raises(ReplyError) as caught:
                await cluster.routes.broker("T", name)
            assert caught.value.code == code
        cluster.masters["broker-a"] = ""
        cluster.routes.expire("T")
        with pytest.raises(ReplyError, match="no broker of topic T has a master"):
            await cluster.routes.topic("T")

    play(act)
