"""Consumer groups: create, change, delete and list them, and the clients that are connected for them.

[UpdateSubGroup-, DeleteSubscriptionGroup-, GetConsumerConfig-, ConsumerConnection-, ProducerConnection-, ProducerSubCommand]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ariane.cluster.connection import Answers, BrokerServer, BrokerUnavailable, Change
from ariane.cluster.groups.group_lag import Subscriptions
from ariane.cluster.topics.topic_deletion import TopicDeletionOperations
from ariane.errors import NotFound, ReplyError
from ariane.model.topic import RETRY_PREFIX, SYSTEM_GROUP_PREFIX, SubscriptionGroupConfig, dlq_topic, retry_topic
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.admin import (
    ClientConnection,
    ConsumerConnection,
    DeleteGroup,
    ProducerConnection,
    ProducerGroupRef,
    SubscriptionGroupTable,
)
from ariane.protocol.requests.brokers import ProducerInfo, ProducerTable
from ariane.protocol.requests.clients import BROADCASTING, GroupRef, SubscriptionData
from ariane.protocol.requests.pop import RequestMode
from ariane.protocol.requests.routing import TopicList

# Groups of tools and of the broker itself.
SYSTEM_GROUPS = frozenset(
    {
        "DEFAULT_CONSUMER",
        "DEFAULT_PRODUCER",
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SCHEDULE_CONSUMER",
        "__MONITOR_CONSUMER",
        "CLIENT_INNER_PRODUCER",
        "SELF_TEST_P_GROUP",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
        "CID_SYS_RMQ_TRANS",
    }
)


class GroupConnections(msgspec.Struct, frozen=True):
    """Clients that are connected for a consumer group, and what they declared in their heartbeats.

    Attributes:
        group: Name of the group.
        connections: Connected clients by client id, each once even if it is connected to several brokers.
        servers: Client id to a server that it is connected to.
        brokers: Names of the brokers with connected clients.
        consume_type: CONSUME_PASSIVELY (push) or CONSUME_ACTIVELY (pull).
        message_model: CLUSTERING or BROADCASTING.
        consume_from_where: Start of a new group, for example CONSUME_FROM_LAST_OFFSET.
        subscriptions: Topic to subscription, as the last heartbeat declared it.
        unavailable: Brokers that did not respond; they may have other clients.
    """

    group: str
    connections: tuple[ClientConnection, ...]
    servers: dict[str, BrokerServer]
    brokers: frozenset[str]
    consume_type: str | int | None
    message_model: str | int | None
    consume_from_where: str | int | None
    subscriptions: dict[str, SubscriptionData]
    unavailable: tuple[BrokerUnavailable, ...]

    @property
    def clients(self) -> int | None:
        """Number of connected clients; None if a broker did not respond."""
        return None if self.unavailable else len(self.connections)

    @property
    def is_broadcasting(self) -> bool:
        """Whether every client receives every message, and stores its offsets itself."""
        return self.message_model in BROADCASTING

    @property
    def declared(self) -> Subscriptions:
        """What the lag of the group depends on."""
        return Subscriptions(frozenset(self.subscriptions), self.is_broadcasting)


class GroupNames(NamedTuple):
    """Names of consumer groups, sorted."""

    names: tuple[str, ...]
    unavailable: tuple[BrokerUnavailable, ...]


class ProducerConnections(NamedTuple):
    """Clients that are connected as producers of a group, by client id."""

    connections: tuple[ClientConnection, ...]
    unavailable: tuple[BrokerUnavailable, ...]


def is_system_group(group: str) -> bool:
    """Return whether a group belongs to the broker or to a tool."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


class GroupOperations(TopicDeletionOperations):
    """Operations on consumer groups and their clients."""

    # --- configuration ---

    async def save_group(
        self, config: SubscriptionGroupConfig, *, servers: Sequence[BrokerServer] | None = None
    ) -> list[Change]:
        """Create a consumer group, or replace its configuration.

        Args:
            config: Configuration with the name of the group.
            servers: Masters that get it (`select_brokers`); None: all.

        Raises:
            PartialFailure: some brokers rejected the request or did not respond.
        """
        targets = await self.select_brokers() if servers is None else servers
        return await self.save_groups([(server, config) for server in targets])

    async def save_groups(self, configs: Sequence[tuple[BrokerServer, SubscriptionGroupConfig]]) -> list[Change]:
        """Create consumer groups, or replace their configurations, with one configuration per master.

        Raises:
            PartialFailure: some brokers rejected the request or did not respond.
        """
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        return await self.change(
            *(
                Change(server.addr, f"save consumer group {config.group_name}", code, body=fastjson.write(config))
                for server, config in configs
            )
        )

    async def save_request_mode(
        self, mode: RequestMode, *, servers: Sequence[BrokerServer] | None = None
    ) -> list[Change]:
        """Let the members of a group pull a topic, or consume it by POP, at brokers of 5.x and ours.

        Args:
            mode: Topic, group and mode. Members apply it that let the broker assign their queues (`clientRebalance=false`).
            servers: Masters that get it (`select_brokers`); None: all.

        Raises:
            PartialFailure: some brokers rejected the request or did not respond.
        """
        targets = await self.select_brokers() if servers is None else servers
        code, summary = (
            RequestCode.SET_MESSAGE_REQUEST_MODE,
            f"let {mode.consumer_group} consume {mode.topic} by {mode.mode}",
        )
        return await self.change(*(Change(each.addr, summary, code, body=fastjson.write(mode)) for each in targets))

    async def delete_group(
        self,
        group: str,
        *,
        with_offsets: bool = False,
        with_topics: bool = False,
        servers: Sequence[BrokerServer] | None = None,
    ) -> list[Change]:
        """Delete the configuration of a consumer group.

        Args:
            group: Name of the group.
            with_offsets: Delete its offsets, too.
            with_topics: Delete its retry topic and its dead-letter topic, with their messages.
            servers: Masters that delete it (`select_brokers`); None: all.

        Raises:
            PartialFailure: some brokers rejected the request or did not respond.
        """
        targets = await self.select_brokers() if servers is None else servers
        summary = f"delete consumer group {group}" + (" with its offsets" if with_offsets else "")
        code, header = RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup(group, with_offsets)
        deleted = await self.change_each(targets, summary, code, header)
        clusters = {server.cluster for server in targets}
        cluster = clusters.pop() if len(clusters) == 1 else None
        for topic in (retry_topic(group), dlq_topic(group)) if with_topics else ():
            deleted += await self.delete_stored_topic(topic, targets)
            deleted += await self.delete_route(topic, cluster)
        return deleted

    async def group_tables(
        self, servers: Sequence[BrokerServer] | None = None
    ) -> Answers[dict[str, SubscriptionGroupConfig]]:
        """Return the configurations of all groups on each master, system groups included, by name."""

        async def ask(server: BrokerServer) -> dict[str, SubscriptionGroupConfig]:
            answer = await self.request(server.addr, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            return fastjson.decode(answer.body, SubscriptionGroupTable).subscription_group_table

        return await self.ask_all(await self.select_brokers() if servers is None else servers, ask)

    async def group_configs(
        self, group: str, servers: Sequence[BrokerServer] | None = None
    ) -> Answers[SubscriptionGroupConfig]:
        """Return the configuration of a group on each master that has it.

        Raises:
            NotFound: all masters responded, and none has the group; the message lists similar names.
        """
        tables = await self.group_tables(servers)
        configs = [(server, table[group]) for server, table in tables.values if group in table]
        if not configs and not tables.unavailable:
            raise _unknown_group(group, {name for _, table in tables.values for name in table})
        return Answers(configs, tables.unavailable)

    async def list_groups(self, *, cluster: str | None = None, with_system: bool = False) -> GroupNames:
        """Return the groups that brokers have a configuration or a retry topic of.

        Args:
            cluster: Only groups that are configured on brokers of this cluster.
            with_system: Include groups of tools and of the broker.
        """
        tables = await self.group_tables(await self.select_brokers(cluster=cluster))
        names = {name for _, table in tables.values for name in table}
        if cluster is None:
            names |= set(await self.groups_with_retry_topic())
        shown = sorted(name for name in names if with_system or not is_system_group(name))
        return GroupNames(tuple(shown), tables.unavailable)

    async def groups_with_retry_topic(self) -> list[str]:
        """Return the groups that have ever consumed, sorted: a broker creates the retry topic with the first heartbeat."""
        answer = await self.routing.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        topics = fastjson.decode(answer.body, TopicList).topic_list
        return sorted(topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX))

    async def check_group(self, group: str) -> None:
        """Check that a group exists.

        Raises:
            NotFound: no broker has a configuration or a retry topic of the group; the message lists similar names.
        """
        groups = await self.list_groups(with_system=True)
        if group not in groups.names and not groups.unavailable:
            raise _unknown_group(group, set(groups.names))

    # --- clients ---

    async def consumer_connections(
        self, group: str, servers: Sequence[BrokerServer] | None = None
    ) -> GroupConnections | None:
        """Return the clients of a consumer group; None if the brokers responded that it has none.

        Args:
            group: Name of the group.
            servers: Brokers to ask (`select_brokers`); None: all masters.
        """

        async def ask(server: BrokerServer) -> ConsumerConnection | None:
            try:
                answer = await self.request(server.addr, RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupRef(group))
            except ReplyError as error:
                if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                    return None
                raise
            return fastjson.decode(answer.body, ConsumerConnection)

        answers = await self.ask_all(await self.select_brokers() if servers is None else servers, ask)
        present = [
            (server, connection)
            for server, connection in answers.values
            if connection is not None and connection.connection_set
        ]
        if not present:
            if answers.unavailable:
                return GroupConnections(group, (), {}, frozenset(), None, None, None, {}, answers.unavailable)
            return None
        clients: dict[str, tuple[BrokerServer, ClientConnection]] = {}
        for server, connection in present:
            for client in connection.connection_set:
                clients.setdefault(client.client_id, (server, client))
        first = present[0][1]
        return GroupConnections(
            group,
            tuple(clients[client_id][1] for client_id in sorted(clients)),
            {client_id: server for client_id, (server, _) in clients.items()},
            frozenset(server.broker for server, _ in present),
            first.consume_type,
            first.message_model,
            first.consume_from_where,
            {topic: data for _, connection in present for topic, data in sorted(connection.subscription_table.items())},
            answers.unavailable,
        )

    async def connected_consumers(self, group: str, servers: Sequence[BrokerServer] | None = None) -> GroupConnections:
        """Return the clients of a consumer group.

        Raises:
            NotFound: the brokers responded that the group has no connected client.
        """
        connections = await self.consumer_connections(group, servers)
        if connections is None:
            raise NotFound("connected client of consumer group", group)
        return connections

    async def producer_connections(self, group: str, topic: str) -> ProducerConnections:
        """Return the clients that are connected as producers of a group to the brokers of a topic.

        Raises:
            RouteNotFound: no name server has the topic.
            NotFound: the brokers responded that the group has no connected producer.
        """

        async def ask(server: BrokerServer) -> tuple[ClientConnection, ...]:
            try:
                header = ProducerGroupRef(group)
                answer = await self.request(server.addr, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
            except ReplyError as error:
                # 4.9.4 responds to an unknown group with the code of every internal error.
                if error.code == ResponseCode.SYSTEM_ERROR and "not exist" in (error.remark or ""):
                    return ()
                raise
            return fastjson.decode(answer.body, ProducerConnection).connection_set

        answers = await self.ask_all(await self.masters_of(topic), ask)
        clients = {client.client_id: client for _, connected in answers.values for client in connected}
        if not clients and not answers.unavailable:
            raise NotFound("connected producer of group", group)
        return ProducerConnections(tuple(clients[client_id] for client_id in sorted(clients)), answers.unavailable)

    async def all_producers(
        self, servers: Sequence[BrokerServer] | None = None
    ) -> Answers[dict[str, tuple[ProducerInfo, ...]]]:
        """Return the producers that are connected to each master, by group.

        Args:
            servers: Brokers to ask (`select_brokers`); None: all masters.
        """
        return await self.ask_all(await self.select_brokers() if servers is None else servers, self.producers)

    async def producers(self, server: BrokerServer) -> dict[str, tuple[ProducerInfo, ...]]:
        """Return the producers that are connected to a broker, by group.

        Raises:
            ReplyError: the broker does not support the request, which 4.9 introduced.
        """
        answer = await self.request(server.addr, RequestCode.GET_ALL_PRODUCER_INFO)
        return dict(sorted(fastjson.decode(answer.body, ProducerTable).data.items()))


def _unknown_group(group: str, names: set[str]) -> NotFound:
    import difflib

    similar = difflib.get_close_matches(group, sorted(names), NotFound.SHOWN)
    return NotFound("consumer group", group, similar or sorted(name for name in names if not is_system_group(name)))
