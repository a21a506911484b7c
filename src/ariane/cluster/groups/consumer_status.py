"""Running state of the clients of a consumer group: their subscriptions, queues and statistics, as each client reports it (307).

`find_inconsistent` and `find_blocked` judge what the clients reported; they are pure.
[ConsumerStatusSubCommand, ConsumerRunningInfo]
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from ariane.cluster.connection import BrokerServer, BrokerUnavailable, ClientUnavailable, gather_bounded
from ariane.cluster.groups.group_admin import GroupConnections, GroupOperations
from ariane.cluster.groups.group_lag import GroupLag, GroupLagOperations, Subscriptions
from ariane.errors import ArianeError, NotFound
from ariane.model.message import MessageQueue, parse_ms
from ariane.model.topic import retry_topic
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.callbacks import ConsumeStatus, ProcessQueueInfo, RunningInfoRequest
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.stats import by_queue

CONSUME_TYPE = "PROP_CONSUME_TYPE"
CONSUME_ORDERLY = "PROP_CONSUMEORDERLY"
START_TIME = "PROP_CONSUMER_START_TIMESTAMP"
PUSH = "CONSUME_PASSIVELY"
SETTLED_MS = 120_000  # members that start one after another may differ for this long
BLOCKED_MS = 60_000  # without a consumed message although messages are cached
GROUPS_AT_ONCE = 16  # groups in flight: each costs two requests per broker
CLIENTS_AT_ONCE = 32  # requests in flight: each is relayed to a client
TAG, ALL_TAGS = "TAG", "*"  # type and expression of a subscription that names none


class _RunningInfoBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to 307, as clients of all languages send it."""

    jstack: str | None = None
    mq_table: dict[Any, ProcessQueueInfo] = {}
    properties: dict[str, Any] = {}
    status_table: dict[str, ConsumeStatus] = {}
    subscription_set: tuple[SubscriptionData, ...] = ()


class ConsumerState(msgspec.Struct, frozen=True):
    """State of a connected consumer.

    Attributes:
        client_id: Client id.
        version: Number of its version (`ariane.protocol.versions`).
        properties: Its settings as texts.
        subscriptions: Its subscriptions, sorted by topic.
        queues: Its queues with their caches and offsets, sorted.
        statistics: Topic to rates and latencies of the last minute.
        stacks: Stacks of its threads or tasks, if they were requested.
    """

    client_id: str
    version: int
    properties: dict[str, str]
    subscriptions: tuple[SubscriptionData, ...]
    queues: dict[MessageQueue, ProcessQueueInfo]
    statistics: dict[str, ConsumeStatus]
    stacks: str | None

    @property
    def is_push(self) -> bool:
        """Whether it consumes by a listener, and not by polling."""
        return self.properties.get(CONSUME_TYPE) == PUSH

    @property
    def is_orderly(self) -> bool:
        """Whether it locks its queues to consume them in order."""
        return self.properties.get(CONSUME_ORDERLY) == "true"

    @property
    def started_ms(self) -> int | None:
        """When it was started, by its own clock; None if it does not report a time."""
        return parse_ms(self.properties.get(START_TIME, ""))


class ConsumerStates(NamedTuple):
    """States of the clients of a group, by client id. `unavailable`: brokers and clients that did not respond."""

    connections: GroupConnections
    states: dict[str, ConsumerState]
    unavailable: tuple[BrokerUnavailable, ...]


class GroupSummary(NamedTuple):
    """A consumer group in a list. `connections` is None if the brokers responded that it has no client."""

    lag: GroupLag
    connections: GroupConnections | None

    @property
    def clients(self) -> int | None:
        """Number of connected clients; None if a broker did not respond."""
        return 0 if self.connections is None else self.connections.clients

    @property
    def version(self) -> int | None:
        """Number of the oldest client's version; None without clients."""
        clients = self.connections.connections if self.connections is not None else ()
        return min((client.version for client in clients), default=None)

    @property
    def unavailable(self) -> tuple[BrokerUnavailable, ...]:
        """Servers that did not respond."""
        others = self.connections.unavailable if self.connections is not None else ()
        return tuple(dict.fromkeys((*self.lag.unavailable, *others)))


class InconsistentTopic(NamedTuple):
    """A topic to which the clients of a group are not subscribed alike; `expressions`: client id to expression, None without.

    Expressions may be equal: one is a list of tags then, and the other SQL92.
    """

    topic: str
    expressions: dict[str, str | None]


class BlockedQueue(NamedTuple):
    """A queue that a client owns and does not consume. `since_ms`: for how long; None if that is unknown."""

    client_id: str
    queue: MessageQueue
    reason: str
    since_ms: int | None
    unlock_tries: int = 0


NOT_LOCKED, NOT_UNLOCKED, NOT_CONSUMING = "not locked", "not unlocked", "not consuming"


class ConsumerStatusOperations(GroupOperations, GroupLagOperations):
    """State of the clients of consumer groups."""

    async def summarize_groups(self, groups: Iterable[str]) -> list[GroupSummary]:
        """Return the lag, the rate and the clients of groups, in their order."""

        async def ask(group: str) -> GroupSummary:
            connections = await self.consumer_connections(group)
            declared = connections.declared if connections else Subscriptions()
            return GroupSummary(await self.group_lag(group, subscriptions=declared), connections)

        return await gather_bounded((ask(group) for group in groups), GROUPS_AT_ONCE)

    async def consumer_states(
        self, group: str, connections: GroupConnections | None = None, *, with_stacks: bool = False
    ) -> ConsumerStates:
        """Return the states of all connected clients of a group.

        Args:
            group: Consumer group.
            connections: Its clients, if they are known already.
            with_stacks: Request the stacks of their threads.

        Raises:
            NotFound: the group has no connected client.
        """
        clients = connections or await self.connected_consumers(group)
        limit = asyncio.Semaphore(CLIENTS_AT_ONCE)

        async def ask(client_id: str, version: int, server: BrokerServer) -> ConsumerState | BrokerUnavailable:
            async with limit:
                try:
                    return await self._consumer_state(server, group, client_id, version, with_stacks=with_stacks)
                except ArianeError as error:
                    return ClientUnavailable(f"client {client_id} through {server.broker}", server.addr, str(error))

        results = await asyncio.gather(
            *(
                ask(client.client_id, client.version, clients.servers[client.client_id])
                for client in clients.connections
            )
        )
        states = {state.client_id: state for state in results if isinstance(state, ConsumerState)}
        silent = [missing for missing in results if isinstance(missing, BrokerUnavailable)]
        return ConsumerStates(clients, states, (*clients.unavailable, *silent))

    async def consumer_state(self, group: str, client_id: str, *, with_stacks: bool = False) -> ConsumerState:
        """Return the state of one client of a group.

        Raises:
            NotFound: the client is not connected; the message lists those that are.
            ReplyError, RequestTimeout: the broker could not reach the client.
        """
        clients = await self.connected_consumers(group)
        for client in clients.connections:
            if client.client_id == client_id:
                server = clients.servers[client_id]
                return await self._consumer_state(server, group, client_id, client.version, with_stacks=with_stacks)
        raise NotFound(f"connected client of {group}", client_id, [client.client_id for client in clients.connections])

    async def _consumer_state(
        self, server: BrokerServer, group: str, client_id: str, version: int, *, with_stacks: bool
    ) -> ConsumerState:
        header = RunningInfoRequest(group, client_id, with_stacks)
        answer = await self.request(server.addr, RequestCode.GET_CONSUMER_RUNNING_INFO, header, is_slow=True)
        body = fastjson.decode(answer.body, _RunningInfoBody)
        return ConsumerState(
            client_id,
            version,
            {name: value if isinstance(value, str) else fastjson.write(value).decode() for name, value in body.properties.items()},
            tuple(sorted(body.subscription_set, key=lambda data: (data.topic, data.sub_string or ""))),
            dict(sorted(by_queue(body.mq_table).items())),
            dict(sorted(body.status_table.items())),
            body.jstack,
        )  # fmt: skip


def queue_owners(states: Mapping[str, ConsumerState]) -> dict[MessageQueue, str]:
    """Return the client id of the owner of each queue."""
    return {queue: client_id for client_id, state in states.items() for queue in state.queues}


def find_inconsistent(group: str, states: Mapping[str, ConsumerState]) -> list[InconsistentTopic]:
    """Return the topics to which the subscriptions of not all clients select the same messages.

    Members of a group share the queues of its topics: a message that its owner's subscription excludes reaches no other member.
    """
    topics = []
    for topic, by_client in subscriptions_by_topic(group, states).items():
        if len({subscription_meaning(data) for data in by_client.values()}) > 1:
            expressions = {
                client_id: None if data is None else data.sub_string or ALL_TAGS
                for client_id, data in by_client.items()
            }
            topics.append(InconsistentTopic(topic, expressions))
    return topics


def subscriptions_by_topic(
    group: str, states: Mapping[str, ConsumerState]
) -> dict[str, dict[str, SubscriptionData | None]]:
    """Return the subscriptions of each client by topic, in the order of their names, without the group's retry topic."""
    tables = {client_id: {data.topic: data for data in state.subscriptions} for client_id, state in states.items()}
    topics = {topic for table in tables.values() for topic in table} - {retry_topic(group)}
    return {topic: {client_id: table.get(topic) for client_id, table in tables.items()} for topic in sorted(topics)}


def subscription_meaning(data: SubscriptionData | None) -> tuple[str, str] | None:
    """Return type and expression of a subscription, equal for lists of the same tags; None without a subscription."""
    if data is None:
        return None
    kind, expression = data.expression_type or TAG, data.sub_string or ALL_TAGS
    if kind != TAG:
        return kind, expression
    tags = sorted({tag.strip() for tag in expression.split("||")} - {""})
    return kind, "||".join(tags)


def is_settled(states: Mapping[str, ConsumerState], now_ms: int) -> bool:
    """Return whether the first client by id is a push consumer that started long enough ago, as Java's check requires."""
    first = states[min(states)]
    return first.is_push and first.started_ms is not None and now_ms - first.started_ms > SETTLED_MS


def find_blocked(state: ConsumerState, now_ms: int) -> list[BlockedQueue]:
    """Return the queues that a push consumer owns and does not consume."""
    if not state.is_push:
        return []
    blocked = []
    for queue, info in state.queues.items():
        if not state.is_orderly:
            idle_ms = _elapsed_ms(info.last_consume_timestamp, now_ms)
            if info.cached_msg_count > 0 and (idle_ms is None or idle_ms > BLOCKED_MS):
                blocked.append(BlockedQueue(state.client_id, queue, NOT_CONSUMING, idle_ms))
        elif not info.locked:
            since_ms = _elapsed_ms(info.last_lock_timestamp, now_ms)
            blocked.append(BlockedQueue(state.client_id, queue, NOT_LOCKED, since_ms))
        elif info.droped and info.try_unlock_times > 0:
            blocked.append(BlockedQueue(state.client_id, queue, NOT_UNLOCKED, None, info.try_unlock_times))
    return blocked


def _elapsed_ms(time_ms: int, now_ms: int) -> int | None:
    # Clients report 0 for a time that they do not know, and for an event that did not happen yet.
    return now_ms - time_ms if time_ms else None
