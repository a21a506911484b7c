"""Topics: create, change, delete, and the order configuration. [UpdateTopic-, DeleteTopic-, UpdateTopicPermSubCommand, …]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ariane.cluster.connection import BrokerServer, Change
from ariane.cluster.topics.topic_deletion import TopicDeletionOperations
from ariane.cluster.topics.topic_queries import TopicQueries
from ariane.errors import AlreadyExists, ConfigError, NotFound, RouteNotFound
from ariane.model.topic import (
    AUTO_CREATE_TOPIC,
    PERM_READ,
    PERM_WRITE,
    QUEUES_MAX,
    TopicConfig,
    topic_name_fault,
)
from ariane.model.topic_attributes import join_changes
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import CreateTopic
from ariane.protocol.requests.routing import MASTER_ID

READ_WRITE = PERM_READ | PERM_WRITE
QUEUES = 8  # of a new topic on each broker, as Java's mqadmin creates it
ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"  # of the name servers' KV table: topic → `broker:queues;broker:queues`


class TopicChange(NamedTuple):
    """A topic that was changed on one broker: the permission that it had, and its configuration since then."""

    addr: str
    old_perm: int
    config: TopicConfig


class TopicOperations(TopicQueries, TopicDeletionOperations):
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
            ConfigError: the name or a number of queues is invalid, or the name is that of a selected broker or cluster.
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

    async def put_topic(
        self,
        config: TopicConfig,
        *,
        attributes: Mapping[str, str] | None = None,
        servers: Sequence[BrokerServer] | None = None,
    ) -> list[Change]:
        """Create a topic with this configuration, or replace its configuration.

        Args:
            config: Name and settings. Attributes that it does not have stay as they are.
            attributes: Further changes of attributes, such as `{"-reserve.time": ""}`. Brokers of 4.9.4 ignore attributes.
            servers: Masters that get the topic; None: all.

        Raises:
            ConfigError, ServerUnavailable, PartialFailure: as `create_topic`.
        """
        targets = await self.select_brokers() if servers is None else servers
        for server in targets:
            _check(config, server)
        return await self.change(*(_put_change(server.addr, config, attributes=attributes) for server in targets))

    async def put_topics(self, configs: Sequence[tuple[BrokerServer, TopicConfig]]) -> list[Change]:
        """Create topics, or replace their configurations, with one configuration per master.

        Raises:
            ConfigError, PartialFailure: as `create_topic`.
        """
        for server, config in configs:
            _check(config, server)
        return await self.change(*(_put_change(server.addr, config) for server, config in configs))

    async def check_topic_is_new(self, topic: str, servers: Sequence[BrokerServer]) -> None:
        """Check that none of these servers has a topic.

        Raises:
            AlreadyExists: one of them has it.
            ConfigError: it is the name of one of these brokers or clusters.
        """
        for server in servers:
            _check_name(topic, server)
        try:
            route = await self.fetch_route(topic)
        except RouteNotFound:
            return
        if existing := sorted({server.broker for server in servers} & {data.broker_name for data in route.queue_datas}):
            raise AlreadyExists(
                "topic",
                topic,
                f"exists on {', '.join(existing)}; use another name, or change it with `ariane topic change`",
            )

    async def change_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        servers: Sequence[BrokerServer] | None = None,
    ) -> list[TopicChange]:
        """Change a topic where it exists; what is None stays as it is on each broker.

        Args:
            topic: Name of the topic.
            queues: Number of read queues on each broker.
            write_queues: Number of write queues on each broker.
            perm: PERM_READ, PERM_WRITE, or both.
            servers: Masters to change; None: all that have the topic.

        Raises:
            RouteNotFound: no broker has the topic.
            NotFound: none of `servers` is a master that has it.
            ConfigError, PartialFailure: as `create_topic`.
        """
        route = await self.fetch_route(topic)
        by_name = {data.broker_name: data for data in route.queue_datas}
        servers_by_addr = {
            data.master: BrokerServer(data.cluster, data.broker_name, MASTER_ID, data.master)
            for data in route.broker_datas
            if data.master
        }
        masters = {addr: by_name[server.broker] for addr, server in servers_by_addr.items()}
        selected = list(masters) if servers is None else [server.addr for server in servers if server.addr in masters]
        if not selected:
            names = ", ".join(server.addr for server in servers or ())
            raise NotFound("master with this topic at", names, sorted(masters))
        changes = []
        for addr in selected:
            data = masters[addr]
            config = TopicConfig(
                topic_name=topic,
                read_queue_nums=data.read_queue_nums if queues is None else queues,
                write_queue_nums=data.write_queue_nums if write_queues is None else write_queues,
                perm=data.perm if perm is None else perm,
                topic_sys_flag=data.topic_sys_flag,
            )
            _check(config, servers_by_addr[addr])
            changes.append(TopicChange(addr, data.perm, config))
        await self.change(*(_put_change(change.addr, change.config, "change") for change in changes))
        return changes

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> list[Change]:
        """Delete a topic with its messages from all brokers, and then from the name servers.

        A topic that does not exist is ignored. Name servers keep it if a broker failed, because that broker still has it.

        Args:
            topic: Name of the topic.
            cluster: Only from brokers of this cluster.

        Raises:
            NotFound: no such cluster is registered.
            PartialFailure: some servers rejected the request or did not respond.
        """
        servers = await self.select_brokers(cluster=cluster, with_slaves=True)
        deleted = await self.delete_stored_topic(topic, servers)
        return deleted + await self.delete_route(topic, cluster)

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


def _check_name(topic: str, server: BrokerServer) -> None:
    for kind, name in (("broker", server.broker), ("cluster", server.cluster)):
        if topic == name:
            fix = f"is the {kind}'s own name, which RocketMQ reserves for a system topic; use another name"
            raise ConfigError("topic", topic, fix)


def _check(config: TopicConfig, server: BrokerServer) -> None:
    _check_name(config.topic_name, server)
    if fault := topic_name_fault(config.topic_name):
        raise ConfigError("topic", config.topic_name, fault)
    for key, queues in (("queues", config.read_queue_nums), ("write queues", config.write_queue_nums)):
        if not 1 <= queues <= QUEUES_MAX:
            raise ConfigError(key, queues, f"expected 1 to {QUEUES_MAX:,}")


def _put_change(
    addr: str, config: TopicConfig, verb: str = "create or change", attributes: Mapping[str, str] | None = None
) -> Change:
    changes = {f"+{key}": value for key, value in (config.attributes or {}).items()} | dict(attributes or {})
    header = CreateTopic(
        config.topic_name, AUTO_CREATE_TOPIC, config.read_queue_nums, config.write_queue_nums, config.perm,
        config.topic_filter_type, config.topic_sys_flag, config.order, join_changes(changes) or None,
    )  # fmt: skip
    return Change(addr, f"{verb} topic {config.topic_name}", RequestCode.UPDATE_AND_CREATE_TOPIC, header)
