"""Where topics are: the routes of name servers, with what each broker says about its topics and groups.

    topic ─▶ GET_ROUTEINFO_BY_TOPIC ─▶ masters, numbers of queues ─▶ GET_TOPIC_CONFIG at each ─▶ type of messages
    group ─▶ GET_BROKER_CLUSTER_INFO ─▶ masters ─▶ GET_SUBSCRIPTIONGROUP_CONFIG until one has it ─▶ order, attempts, back-off

Brokers of 4.x know neither of the two requests to brokers: their topics accept what they can store. A broker that did not answer is
silent for SILENT_S: it is not asked for topics, is asked for groups last, and gets messages only if no other broker can take them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ariane.errors import ArianeError, ReplyError, RouteNotFound
from ariane.model.topic import SubscriptionGroupConfig, TopicConfig
from ariane.net.pools.name_servers import NameServerClient
from ariane.net.pools.requester import Requester
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.admin import GroupName, TopicConfigBody, TopicRef
from ariane.protocol.requests.routing import QueueData
from ariane.proxy.cluster.fresh_values import FreshValues
from ariane.proxy.message_service import BrokerTopic

log = logging.getLogger("ariane.proxy")

SILENT_S = 10.0
SHOWN_MAX = 120  # characters of an unknown name in a text


class RoutedTopic(NamedTuple):
    """A topic on a broker, and the address of its master."""

    addr: str  # empty without a master
    on_broker: BrokerTopic


class _Declared(NamedTuple):
    """What a broker says about a topic."""

    attributes: dict[str, str]
    has_timers: bool


class ClusterRoutes:
    """The routes of topics, and the settings of groups.

    Args:
        pool: Connections of the proxy's own, signed by its account.
        name_servers: Addresses.
    """

    def __init__(self, pool: Requester, name_servers: Sequence[str]) -> None:
        self._pool = pool
        self._name_servers = NameServerClient(pool, name_servers)
        self._topics = FreshValues(self._fetch_topic)
        self._groups = FreshValues(self._fetch_group)
        self._silent: dict[str, float] = {}  # loop time until which a master is, by its address
        self.fault: str | None = None  # why clients cannot be served, as of the last check

    async def topic(self, name: str) -> Mapping[str, RoutedTopic]:
        """Return a topic by the names of the brokers that have it and have a master.

        Raises:
            ReplyError: the topic does not exist, or none of its brokers has a master.
            ConnectionLost, RequestTimeout: no name server responded.
        """
        return {
            broker: each._replace(on_broker=each.on_broker._replace(answers=not self._is_silent(each.addr)))
            for broker, each in (await self._topics.get(name)).items()
            if each.addr
        }

    async def broker(self, topic: str, name: str) -> RoutedTopic:
        """Return a topic on a broker; on the first one if the name is empty. Raise ReplyError if that does not have it."""
        if not name:
            return next(iter((await self.topic(topic)).values()))
        routed = (await self._topics.get(topic)).get(name)
        if routed is None:
            raise ReplyError(ResponseCode.NO_MESSAGE, f"broker {name[:SHOWN_MAX]!r} does not have topic {topic}")
        if not routed.addr:
            raise ReplyError(ResponseCode.SERVICE_NOT_AVAILABLE, f"broker {name} has no master at present")
        return routed

    async def group(self, name: str) -> SubscriptionGroupConfig:
        """Return the settings of a group; the defaults if no broker that answers has it."""
        return await self._groups.get(name)

    def expire(self, topic: str) -> None:
        """Fetch a route again before it is used next: its brokers have changed."""
        self._topics.expire(topic)

    def on_silence(self, addr: str) -> None:
        """Note that a broker did not answer a request."""
        self._silent[addr] = asyncio.get_running_loop().time() + SILENT_S

    def silent_brokers(self) -> list[str]:
        """Return the addresses of the brokers that are silent."""
        return [addr for addr in list(self._silent) if self._is_silent(addr)]

    async def check(self) -> None:
        """Note whether a name server responds, and lists a broker."""
        try:
            masters = await self._masters()
            fault = None if masters else "the name servers list no broker with a master"
        except ArianeError as error:
            fault = f"no name server responds: {error}"
        if fault is not None and self.fault is None:
            log.warning("Clients cannot be served: %s", fault, extra={"notice": True})
        elif fault is None and self.fault is not None:
            log.warning("Clients can be served again", extra={"notice": True})
        self.fault = fault

    async def _masters(self) -> list[str]:
        """Return the addresses of all masters."""
        cluster = await self._name_servers.fetch_cluster()
        return [broker.master for broker in cluster.broker_addr_table.values() if broker.master]

    def _is_silent(self, addr: str) -> bool:
        until_s = self._silent.get(addr)
        if until_s is not None and until_s <= asyncio.get_running_loop().time():
            del self._silent[addr]
            return False
        return until_s is not None

    async def _fetch_topic(self, name: str) -> Mapping[str, RoutedTopic]:
        try:
            route = await self._name_servers.fetch_route(name)
        except RouteNotFound:
            remark = f"No topic route info in name server for the topic: {name}"
            raise ReplyError(ResponseCode.TOPIC_NOT_EXIST, remark) from None
        masters = {broker.broker_name: broker.master or "" for broker in route.broker_datas}
        queues = sorted(route.queue_datas, key=lambda each: each.broker_name)
        addrs = [masters.get(each.broker_name, "") for each in queues]
        if not any(addrs):
            raise ReplyError(ResponseCode.SERVICE_NOT_AVAILABLE, f"no broker of topic {name} has a master at present")
        declared = await asyncio.gather(*(self._declared(name, addr) for addr in addrs))
        # A topic has the same type on all its brokers.
        default = next((each for each in declared if each is not None), _Declared({}, True))
        return {
            each.broker_name: RoutedTopic(addr, _on_broker(name, each, answer or default))
            for each, addr, answer in zip(queues, addrs, declared, strict=True)
        }

    async def _declared(self, topic: str, addr: str) -> _Declared | None:
        """Return what a broker says about a topic; None if it does not answer."""
        if not addr or self._is_silent(addr):
            return None
        try:
            response = await self._pool.request(addr, RequestCode.GET_TOPIC_CONFIG, TopicRef(topic))
        except ArianeError:
            self.on_silence(addr)
            return None
        is_known = response.code == ResponseCode.SUCCESS
        attributes = fastjson.decode(response.body, TopicConfigBody).attributes if is_known else {}
        return _Declared(attributes, response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    async def _fetch_group(self, name: str) -> SubscriptionGroupConfig:
        failure: ArianeError = ReplyError(ResponseCode.SERVICE_NOT_AVAILABLE, "no broker has a master at present")
        has_answer = False
        for addr in sorted(await self._masters(), key=self._is_silent):
            try:
                response = await self._pool.request(addr, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupName(name))
            except ArianeError as error:
                self.on_silence(addr)
                failure = error
                continue
            if response.code == ResponseCode.SUCCESS:
                return fastjson.decode(response.body, SubscriptionGroupConfig)
            has_answer = True
        if not has_answer:
            raise failure  # the defaults would be those of a group without order
        return SubscriptionGroupConfig(group_name=name)


def _on_broker(topic: str, queues: QueueData, declared: _Declared) -> BrokerTopic:
    config = TopicConfig(
        attributes=declared.attributes,
        topic_name=topic,
        read_queue_nums=queues.read_queue_nums,
        write_queue_nums=queues.write_queue_nums,
        perm=queues.perm,
        topic_sys_flag=queues.topic_sys_flag,
    )
    return BrokerTopic(queues.broker_name, config, declared.has_timers)
