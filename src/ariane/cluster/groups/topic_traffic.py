"""Traffic of topics and their consumer groups: messages per second and per day, and lag. [StatsAllSubCommand]

    route of the topic ─→ its masters and slaves ─→ puts of the topic (masters), gets of each group (all), lag (masters)

A statistic that a broker does not have stands for no traffic; one of a broker that does not respond is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ariane.cluster.connection import BrokerServer, BrokerUnavailable, gather_bounded
from ariane.cluster.groups.group_lag import GroupLagOperations
from ariane.cluster.servers.broker_statistics import DELIVERED, STORED, BrokerStatisticOperations
from ariane.cluster.topics.topic_queries import TopicQueries, is_of_group
from ariane.errors import RouteNotFound
from ariane.protocol.requests.routing import MASTER_ID
from ariane.protocol.requests.stats import BrokerStatsData

CONCURRENT_TOPICS = 16  # each asks all of its brokers about all of its groups at once


class Traffic(NamedTuple):
    """Messages per second in the last minute, and messages in the last 24 hours."""

    tps: float
    messages_24h: int


class GroupTraffic(NamedTuple):
    """Messages that a group received from a topic, over masters and slaves; None if a broker did not respond."""

    group: str
    lag: int | None
    received: Traffic | None


class TopicTraffic(NamedTuple):
    """Messages stored in a topic, over all masters; None if one did not respond. `groups`: its consumer groups, sorted."""

    topic: str
    stored: Traffic | None
    groups: tuple[GroupTraffic, ...]


class TrafficReport(NamedTuple):
    """Traffic of several topics, and the brokers that did not respond, each once."""

    topics: tuple[TopicTraffic, ...]
    unavailable: tuple[BrokerUnavailable, ...]


class TrafficOperations(TopicQueries, GroupLagOperations, BrokerStatisticOperations):
    """Traffic of topics."""

    async def fetch_traffic(self, topic: str | None = None) -> TrafficReport:
        """Return the traffic of one topic, or of all but those of retries and dead letters.

        Raises:
            RouteNotFound: the topic does not exist.
        """
        if topic is not None:
            await self.fetch_route(topic)
        names = [name for name in await self.list_topics() if not is_of_group(name)] if topic is None else [topic]
        results = await gather_bounded((self._topic_traffic(name) for name in names), CONCURRENT_TOPICS)
        unavailable = {missing.addr: missing for _, missing_of_topic in results for missing in missing_of_topic}
        traffic = tuple(traffic for traffic, _ in results if traffic is not None)
        return TrafficReport(traffic, tuple(unavailable.values()))

    async def stored_traffic(self, topic: str) -> tuple[Traffic | None, tuple[BrokerUnavailable, ...]]:
        """Return the messages stored in a topic over all of its masters, None if one did not respond, and those that did not.

        Raises:
            RouteNotFound: the topic does not exist.
        """
        stored, unavailable = await self._statistic(STORED, topic, await self.masters_of(topic))
        return stored, tuple(unavailable)

    async def _topic_traffic(self, topic: str) -> tuple[TopicTraffic | None, list[BrokerUnavailable]]:
        try:
            route = await self.fetch_route(topic)
        except RouteNotFound:
            return None, []  # deleted since the topics were listed
        servers = [
            BrokerServer(data.cluster, data.broker_name, number, addr)
            for data in route.broker_datas
            for number, addr in data.broker_addrs.items()
        ]
        masters = [server for server in servers if server.broker_id == MASTER_ID]
        stored, unavailable = await self._statistic(STORED, topic, masters)
        names, missing = await self.list_groups_of(topic, masters)
        unavailable += missing
        groups = []
        for group in names:
            received, silent = await self._statistic(DELIVERED, f"{topic}@{group}", servers)
            lag = await self.group_lag(group, topic)
            unavailable += [*silent, *lag.unavailable]
            groups.append(GroupTraffic(group, lag.total, received))
        return TopicTraffic(topic, stored, tuple(groups)), unavailable

    async def _statistic(
        self, name: str, key: str, servers: Sequence[BrokerServer]
    ) -> tuple[Traffic | None, list[BrokerUnavailable]]:
        """Return the sum of a statistic over these servers, and those that did not respond."""

        async def ask(server: BrokerServer) -> Traffic:
            return _traffic(await self.broker_statistic(server, name, key))

        answers = await self.ask_all(servers, ask)
        total = None if answers.unavailable or not servers else _sum(traffic for _, traffic in answers.values)
        return total, list(answers.unavailable)


def _traffic(data: BrokerStatsData) -> Traffic:
    # A young broker has no complete day or hour yet.
    return Traffic(data.stats_minute.tps, data.stats_day.sum or data.stats_hour.sum or data.stats_minute.sum)


def _sum(parts: Iterable[Traffic]) -> Traffic:
    values = list(parts)
    return Traffic(sum(part.tps for part in values), sum(part.messages_24h for part in values))
