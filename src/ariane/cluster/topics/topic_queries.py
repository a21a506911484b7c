"""Topics: names, routes, offsets of their queues, and consumer groups. [TopicList-, TopicRoute-, TopicStatusSubCommand, …]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ariane.cluster.connection import Answers, BrokerServer, BrokerUnavailable, gather_bounded
from ariane.cluster.servers.name_server_admin import NameServerOperations
from ariane.errors import ReplyError, RouteNotFound
from ariane.model.message import MessageQueue
from ariane.model.topic import (
    DLQ_PREFIX,
    PERM_READ,
    RETRY_PREFIX,
    TopicConfig,
)
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.admin import TopicRef
from ariane.protocol.requests.brokers import GroupList, QueryQueue, QueueEntries
from ariane.protocol.requests.routing import ClusterRef, TopicList, TopicRoute
from ariane.protocol.requests.stats import TopicStats, by_queue

CONCURRENT_TOPICS = 64  # topics that are asked about at the same time


class TopicQueueBounds(NamedTuple):
    """One queue of a topic. `stored_ms` is the store time of its last message; None if it is empty."""

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    stored_ms: int | None


class TopicBounds(NamedTuple):
    """A topic on all brokers that have it."""

    topic: str
    queues: tuple[TopicQueueBounds, ...]
    unavailable: tuple[BrokerUnavailable, ...]

    @property
    def messages(self) -> int | None:
        """Number of messages in its queues; None if a broker did not respond."""
        return None if self.unavailable else sum(queue.max_offset - queue.min_offset for queue in self.queues)


class TopicSummary(NamedTuple):
    """A topic of a cluster, summed over its brokers. `perms`: the permissions that it has on any of them."""

    cluster: str  # a topic of two clusters has two summaries
    topic: str
    brokers: tuple[str, ...]  # names of the brokers that have it
    read_queues: int  # sum over its brokers
    write_queues: int  # sum over its brokers
    perms: tuple[int, ...]


class TopicGroups(NamedTuple):
    """A topic of a cluster, with the consumer groups that have read it or are connected."""

    cluster: str
    topic: str
    groups: tuple[str, ...]


class TopicDirectory(NamedTuple):
    """Topics of all clusters. The groups are incomplete if a broker did not respond."""

    topics: tuple[TopicGroups, ...]
    unavailable: tuple[BrokerUnavailable, ...]


class TopicQueries(NameServerOperations):
    """Reads topics, their queues and their consumer groups."""

    async def list_topics(self) -> list[str]:
        """Return the names of all topics, system topics included, sorted."""
        answer = await self.routing.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(fastjson.decode(answer.body, TopicList).topic_list)

    async def list_summaries(
        self, *, cluster: str | None = None
    ) -> tuple[list[TopicSummary], tuple[BrokerUnavailable, ...]]:
        """Return the topics of all masters with their queues, sorted by cluster and name, and the brokers that did not respond.

        Args:
            cluster: Only topics of this cluster.
        """

        async def ask(server: BrokerServer) -> dict[str, TopicConfig]:
            return (await self._fetch_topics(server)).topic_config_table

        answers = await self.ask_all(await self.select_brokers(cluster=cluster), ask)
        copies: dict[tuple[str, str], list[tuple[str, TopicConfig]]] = {}
        for server, table in answers.values:
            for topic, config in table.items():
                copies.setdefault((server.cluster, topic), []).append((server.broker, config))
        return [_summarize(*names, copies[names]) for names in sorted(copies)], answers.unavailable

    async def topic_configs(self, topic: str, servers: Sequence[BrokerServer] | None = None) -> Answers[TopicConfig]:
        """Return the configuration of a topic on each master that has it, sorted by broker.

        Args:
            topic: Name of the topic.
            servers: Masters to ask (`select_brokers`); None: all.

        Raises:
            RouteNotFound: all masters responded, and none has the topic.
        """

        # 4.9.4 has no request for one topic: a broker sends its whole table.
        async def ask(server: BrokerServer) -> TopicConfig | None:
            return (await self._fetch_topics(server)).topic_config_table.get(topic)

        answers = await self.ask_all(await self.select_brokers() if servers is None else servers, ask)
        configs = [(server, config) for server, config in answers.values if config is not None]
        if not configs and not answers.unavailable:
            raise RouteNotFound(topic, f"no broker registered with {', '.join(self.name_servers)} has it")
        return Answers(configs, answers.unavailable)

    async def list_topic_groups(self) -> TopicDirectory:
        """Return the topics of each cluster with their consumer groups; topics of retries and dead letters are omitted."""
        masters: dict[str, list[BrokerServer]] = {}
        for server in await self.select_brokers():
            masters.setdefault(server.cluster, []).append(server)
        pairs = []
        for cluster in masters:
            answer = await self.routing.request(RequestCode.GET_TOPICS_BY_CLUSTER, ClusterRef(cluster))
            topics = sorted(fastjson.decode(answer.body, TopicList).topic_list)
            pairs += [(cluster, topic) for topic in topics if not is_of_group(topic)]
        results = await gather_bounded(
            (self.list_groups_of(topic, masters[cluster]) for cluster, topic in pairs), CONCURRENT_TOPICS
        )
        # A broker that is down fails for every topic; it is reported once.
        unavailable = {missing.addr: missing for _, missing_of_topic in results for missing in missing_of_topic}
        rows = tuple(TopicGroups(*pair, groups) for pair, (groups, _) in zip(pairs, results, strict=True))
        return TopicDirectory(rows, tuple(unavailable.values()))

    async def list_groups_of(
        self, topic: str, servers: Sequence[BrokerServer]
    ) -> tuple[tuple[str, ...], tuple[BrokerUnavailable, ...]]:
        """Return the consumer groups that have read a topic from any of these servers, and those that did not respond."""

        async def ask(server: BrokerServer) -> tuple[str, ...]:
            answer = await self.request(server.addr, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicRef(topic))
            return fastjson.decode(answer.body, GroupList).group_list

        answers = await self.ask_all(servers, ask)
        groups = {group for _, names in answers.values for group in names}
        return tuple(sorted(groups)), answers.unavailable

    async def fetch_route(self, topic: str) -> TopicRoute:
        """Return the brokers and queues of a topic, sorted by broker name.

        Raises:
            RouteNotFound: no name server has the topic.
        """
        route = await self.routing.fetch_route(topic)
        return msgspec.structs.replace(
            route,
            broker_datas=tuple(sorted(route.broker_datas, key=lambda data: data.broker_name)),
            queue_datas=tuple(sorted(route.queue_datas, key=lambda data: data.broker_name)),
        )

    async def list_clusters_of(self, topic: str) -> list[str]:
        """Return the names of the clusters that have a topic, sorted.

        Raises:
            RouteNotFound: no name server has the topic.
        """
        brokers = {data.broker_name for data in (await self.fetch_route(topic)).broker_datas}
        table = (await self.fetch_cluster()).cluster_addr_table
        return sorted(cluster for cluster, names in table.items() if brokers.intersection(names))

    async def fetch_bounds(self, topic: str) -> TopicBounds:
        """Return the offsets of all queues of a topic, sorted by broker and queue.

        Raises:
            RouteNotFound: all brokers responded that the topic does not exist.
        """

        async def ask(server: BrokerServer) -> list[TopicQueueBounds] | None:
            code = RequestCode.GET_TOPIC_STATS_INFO
            try:
                answer = await self.request(server.addr, code, TopicRef(topic), is_slow=True)
            except ReplyError as error:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    return None
                raise
            offsets = by_queue(fastjson.decode(answer.body, TopicStats).offset_table)
            return [
                TopicQueueBounds(
                    queue.broker, queue.queue_id, bounds.min_offset, bounds.max_offset,
                    bounds.last_update_timestamp if bounds.last_update_timestamp > 0 else None,
                )
                for queue, bounds in offsets.items()
            ]  # fmt: skip

        answers = await self.ask_brokers(ask)
        if not answers.unavailable and all(queues is None for _, queues in answers.values):
            raise RouteNotFound(topic, f"no broker registered with {', '.join(self.name_servers)} has it")
        queues = sorted(queue for _, queues_of_broker in answers.values for queue in queues_of_broker or ())
        return TopicBounds(topic, tuple(queues), answers.unavailable)

    async def assign_queues(self, topic: str, members: Sequence[str]) -> dict[str, list[MessageQueue]]:
        """Return the queues of a topic that each member of a group would get from the strategy AVG, by member.

        Raises:
            RouteNotFound: no name server has the topic.
        """
        from ariane.client.consuming.assignment_strategy import average

        route = await self.fetch_route(topic)
        queues = [
            MessageQueue(topic, data.broker_name, number)
            for data in route.queue_datas
            if data.perm & PERM_READ
            for number in range(data.read_queue_nums)
        ]
        return {member: average(member, members, sorted(queues)) for member in members}

    async def query_queue(self, request: QueryQueue, *, addr: str | None = None) -> QueueEntries:
        """Return entries of a consume queue, and whether a group's subscription matches each.

        Args:
            request: Topic, queue, first index, number of entries, and optionally the group.
            addr: Broker to ask; None: the first master of the topic's route.

        Raises:
            RouteNotFound: no broker has the topic, or none of them a master.
            ReplyError: the broker rejected the request, for example because it does not have the queue.
        """
        if addr is None:
            masters = [data.master for data in (await self.fetch_route(request.topic)).broker_datas if data.master]
            if not masters:
                raise RouteNotFound(request.topic, "none of its brokers has a master")
            addr = masters[0]
        answer = await self.request(addr, RequestCode.QUERY_CONSUME_QUEUE, request)
        return fastjson.decode(answer.body, QueueEntries)


def is_of_group(topic: str) -> bool:
    """Return whether a topic contains the retries or dead letters of a group."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _summarize(cluster: str, topic: str, copies: Sequence[tuple[str, TopicConfig]]) -> TopicSummary:
    configs = [config for _, config in copies]
    return TopicSummary(
        cluster,
        topic,
        tuple(sorted(broker for broker, _ in copies)),
        sum(config.read_queue_nums for config in configs),
        sum(config.write_queue_nums for config in configs),
        tuple(sorted({config.perm for config in configs})),
    )
