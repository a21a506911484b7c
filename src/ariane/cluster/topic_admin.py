"""Topics: create, change, delete, list, and the offsets of their queues. [UpdateTopic-, DeleteTopic-, TopicStatusSubCommand, …]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ariane.cluster.connection import BrokerServer, BrokerUnavailable, Change, gather_bounded
from ariane.cluster.name_server_admin import NameServerOperations
from ariane.errors import ConfigError, NotFound, ReplyError, RouteNotFound
from ariane.model.message import MessageQueue
from ariane.model.topic import (
    AUTO_CREATE_TOPIC,
    DLQ_PREFIX,
    PERM_READ,
    PERM_WRITE,
    QUEUES_MAX,
    RETRY_PREFIX,
    TopicConfig,
    topic_name_fault,
)
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.admin import CreateTopic, TopicRef
from ariane.protocol.requests.brokers import GroupList, QueryQueue, QueueEntries
from ariane.protocol.requests.routing import ClusterRef, DeleteTopicRoute, TopicList, TopicRoute
from ariane.protocol.requests.stats import TopicStats, by_queue

READ_WRITE = PERM_READ | PERM_WRITE
QUEUES = 8  # of a new topic on each broker, as Java's mqadmin creates it
ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"  # of the name servers' KV table: topic → `broker:queues;broker:queues`
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


class PermissionChange(NamedTuple):
    """The permission of a topic on one broker, before and after a change."""

    addr: str
    old: int
    config: TopicConfig


class TopicGroups(NamedTuple):
    """A topic of a cluster, with the consumer groups that have read it or are connected."""

    cluster: str
    topic: str
    groups: tuple[str, ...]


class TopicDirectory(NamedTuple):
    """Topics of all clusters. The groups are incomplete if a broker did not respond."""

    topics: tuple[TopicGroups, ...]
    unavailable: tuple[BrokerUnavailable, ...]


class TopicOperations(NameServerOperations):
    """Operations on topics."""

    # --- changing ---

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = QUEUES,
        write_queues: int | None = None,
        perm: int = READ_WRITE,
        servers: Sequence[BrokerServer] | None = None,
    ) -> list[Change]:
        """Create a topic, or change its number of queues and its permission.

        A broker registers a new topic with the name servers before it responds.

        Args:
            topic: Name of the topic.
            queues: Number of read queues on each broker.
            write_queues: Number of write queues; None: as many as read queues.
            perm: PERM_READ, PERM_WRITE, or both.
            servers: Masters that get the topic (`select_brokers`); None: all.

        Raises:
            ConfigError: the name or a number of queues is invalid.
            ServerUnavailable: no master is registered.
            PartialFailure: some brokers rejected the request or did not respond.
        """
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues if write_queues is None else write_queues,
            perm=perm,
        )
        return await self.put_topic(config, servers=servers)

    async def put_topic(self, config: TopicConfig, *, servers: Sequence[BrokerServer] | None = None) -> list[Change]:
        """Create a topic with this configuration, or replace its configuration.

        Args:
            config: Name and settings.
            servers: Masters that get the topic; None: all.

        Raises:
            ConfigError, ServerUnavailable, PartialFailure: as `create_topic`.
        """
        if fault := topic_name_fault(config.topic_name):
            raise ConfigError("topic", config.topic_name, fault)
        for key, queues in (("queues", config.read_queue_nums), ("write queues", config.write_queue_nums)):
            if not 1 <= queues <= QUEUES_MAX:
                raise ConfigError(key, queues, f"expected 1 to {QUEUES_MAX:,}")
        targets = await self.select_brokers() if servers is None else servers
        return await self.change(*(_put_change(server.addr, config) for server in targets))

    async def set_topic_perm(
        self, topic: str, perm: int, *, servers: Sequence[BrokerServer] | None = None
    ) -> list[PermissionChange]:
        """Change the permission of a topic where it exists; queues and flags of each broker stay as they are.

        Args:
            topic: Name of the topic.
            perm: PERM_READ, PERM_WRITE, or both.
            servers: Masters to change; None: all that have the topic.

        Raises:
            RouteNotFound: no broker has the topic.
            NotFound: none of `servers` is a master that has it.
            PartialFailure: some brokers rejected the request or did not respond.
        """
        route = await self.fetch_route(topic)
        queues = {data.broker_name: data for data in route.queue_datas}
        masters = {data.master: data.broker_name for data in route.broker_datas if data.master}
        selected = list(masters) if servers is None else [server.addr for server in servers if server.addr in masters]
        if not selected:
            names = ", ".join(server.addr for server in servers or ())
            raise NotFound("master with this topic at", names, sorted(masters))
        changes = []
        for addr in selected:
            data = queues[masters[addr]]
            config = TopicConfig(
                topic_name=topic,
                read_queue_nums=data.read_queue_nums,
                write_queue_nums=data.write_queue_nums,
                perm=perm,
                topic_sys_flag=data.topic_sys_flag,
            )
            changes.append(PermissionChange(addr, data.perm, config))
        await self.change(*(_put_change(change.addr, change.config, "set permission of") for change in changes))
        return changes

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> list[Change]:
        """Delete a topic with its messages from all brokers, masters and slaves, and then from the name servers.

        A topic that does not exist is ignored. Name servers keep it if a broker failed, because that broker still has it.

        Args:
            topic: Name of the topic.
            cluster: Only from brokers of this cluster.

        Raises:
            NotFound: no such cluster is registered.
            PartialFailure: some servers rejected the request or did not respond.
        """
        servers = await self.select_brokers(cluster=cluster, with_slaves=True)
        summary, request = f"delete topic {topic}", TopicRef(topic)
        deleted = await self.change(
            *(Change(server.addr, summary, RequestCode.DELETE_TOPIC_IN_BROKER, request) for server in servers)
        )
        summary, header = f"delete the route of topic {topic}", DeleteTopicRoute(topic, cluster)
        code = RequestCode.DELETE_TOPIC_IN_NAMESRV
        return deleted + await self.change(*(Change(addr, summary, code, header) for addr in self.name_servers))

    # --- order configuration ---

    async def put_order_conf(self, topic: str, conf: str) -> list[Change]:
        """Set the fixed numbers of queues of an ordered topic: `broker-a:4;broker-b:4`."""
        return await self.put_kv(ORDER_NAMESPACE, topic, conf)

    async def add_order_conf(self, topic: str, broker: str, queues: int) -> str:
        """Set the number of queues of an ordered topic on one broker, and return the topic's whole configuration."""
        entries = [entry for entry in (await self.fetch_order_conf(topic) or "").split(";") if entry]
        table = {entry.partition(":")[0]: entry for entry in entries} | {broker: f"{broker}:{queues}"}
        conf = ";".join(table.values())
        await self.put_order_conf(topic, conf)
        return conf

    async def fetch_order_conf(self, topic: str) -> str | None:
        """Return the order configuration of a topic; None if it has none."""
        return await self.fetch_kv(ORDER_NAMESPACE, topic)

    async def delete_order_conf(self, topic: str) -> list[Change]:
        """Delete the order configuration of a topic. A topic without one is ignored."""
        return await self.delete_kv(ORDER_NAMESPACE, topic)

    # --- reading ---

    async def list_topics(self) -> list[str]:
        """Return the names of all topics, system topics included, sorted."""
        answer = await self.routing.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(fastjson.decode(answer.body, TopicList).topic_list)

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
        found = await gather_bounded(
            (self.list_groups_of(topic, masters[cluster]) for cluster, topic in pairs), CONCURRENT_TOPICS
        )
        # A broker that is down fails for every topic; it is reported once.
        unavailable = {missing.addr: missing for _, missing_of_topic in found for missing in missing_of_topic}
        rows = tuple(TopicGroups(*pair, groups) for pair, (groups, _) in zip(pairs, found, strict=True))
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
        from ariane.client.assignment_strategy import average

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


def _put_change(addr: str, config: TopicConfig, verb: str = "create or change") -> Change:
    header = CreateTopic(
        config.topic_name, AUTO_CREATE_TOPIC, config.read_queue_nums, config.write_queue_nums, config.perm,
        config.topic_filter_type, config.topic_sys_flag, config.order,
    )  # fmt: skip
    return Change(addr, f"{verb} topic {config.topic_name}", RequestCode.UPDATE_AND_CREATE_TOPIC, header)
