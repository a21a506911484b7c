"""Clients of a consumer group: versions and addresses, their subscriptions side by side, and the running state of one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ariane.cluster.groups.consumer_status import (
    ALL_TAGS,
    CONSUME_ORDERLY,
    CONSUME_TYPE,
    TAG,
    ConsumerState,
    ConsumerStates,
    find_blocked,
    subscription_meaning,
    subscriptions_by_topic,
)
from ariane.cluster.groups.group_admin import GroupConnections
from ariane.console.areas.admin_results import texts_of
from ariane.console.areas.groups.group_progress import BlockedQueueRow, GroupQueueRow, blocked_row
from ariane.console.limits.access import current_access
from ariane.console.services import ConsoleServices
from ariane.console.web.view_model import PartialView, View
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.versions import version_name

# Settings that members of a group must share: a member that differs consumes the group's queues differently.
SHARED_SETTINGS = (CONSUME_TYPE, CONSUME_ORDERLY, "messageModel", "consumeFromWhere")


class GroupClientRow(View):
    """A client of a consumer group."""

    client_id: str
    addr: str
    """Address from which it is connected."""
    language: str | None
    """Language of its library."""
    version: str
    """Version of its library's protocol."""
    broker: str
    """A broker that it is connected to."""
    is_responding: bool
    """Whether it responded to a request for its state."""
    started_ms: int | None
    """When it was started, by its own clock; null if unknown."""
    queues: int | None
    """Queues that it consumes; null if it did not respond."""
    cached: int | None
    """Messages that it fetched and did not consume yet."""
    ok_tps: float | None
    """Messages consumed per second over the last minute, by its own count."""
    failed_tps: float | None
    """Messages per second whose consumption failed."""


class SubscriptionCell(View):
    """The subscription of one client to one topic."""

    client_id: str
    expression: str | None
    """Filter expression; null: not subscribed."""
    kind: str | None
    """TAG or SQL92; null: not subscribed."""
    differs: bool
    """Whether most other clients have another subscription to the topic."""


class SubscriptionRow(View):
    """Subscriptions of all clients to one topic, side by side."""

    topic: str
    is_consistent: bool
    """Whether they are the same. If not, messages are lost for the group: each queue has one owner, and a message that the
    owner's subscription excludes reaches no other member."""
    not_subscribed: int
    """Clients that do not subscribe to the topic."""
    expressions: int
    """Number of different expressions."""
    has_different_kinds: bool
    """Whether some filter by tag and others by SQL92."""
    clients: list[SubscriptionCell]
    """One cell per client that responded, in the order of `clients` of the view."""


class SettingDifference(View):
    """A setting that clients of a group must share, and do not."""

    setting: str
    """Name of the property that clients report."""
    values: dict[str, str | None]
    """Client id to value; null: the client does not report it."""


class GroupClientsView(PartialView):
    """Clients of a consumer group."""

    unavailable: list[str]
    """Brokers and clients that did not respond, with the reason."""
    group: str
    consume_type: str | None
    """CONSUME_PASSIVELY (push) or CONSUME_ACTIVELY (pull), as brokers know it."""
    message_model: str | None
    """CLUSTERING or BROADCASTING."""
    consume_from_where: str | None
    """Where a new group starts."""
    clients: list[GroupClientRow]
    """Connected clients."""
    subscriptions: list[SubscriptionRow]
    """Their subscriptions by topic; the inconsistent ones first."""
    differences: list[SettingDifference]
    """Settings in which they differ."""


class ClientQueueRow(GroupQueueRow):
    """A queue of a running client."""

    commit_offset: int
    """Offset that it commits next."""
    cached: int
    """Messages that were fetched and not consumed yet."""
    cached_mib: int
    """Their size in MiB, rounded down."""
    consumed_ms: int | None
    """Time of the last call of the listener, by the client's clock."""
    pulled_ms: int | None
    """Time of the last pull: an old one means that flow control pauses the queue."""
    is_locked: bool
    """Whether an orderly client has the lock of the queue."""
    is_dropped: bool
    """Whether the queue was assigned to another client and is being released."""


class ClientTopicRow(View):
    """What a client counted for a topic over the last minute."""

    topic: str
    ok_tps: float
    """Messages consumed per second."""
    failed_tps: float
    """Messages per second whose consumption failed."""
    failed_last_hour: int
    """Failed messages of the last hour."""
    consume_ms: float
    """Mean duration of a call of the listener."""
    pull_ms: float
    """Mean duration of a pull."""
    pull_tps: float
    """Messages fetched per second."""


class ClientStateView(View):
    """The running state of a client, as it reports it."""

    as_of_ms: int
    """Time of the request, in milliseconds since the epoch."""
    group: str
    client_id: str
    version: str
    """Version of its library's protocol."""
    properties: dict[str, str]
    """Its settings."""
    subscriptions: list[SubscriptionRow]
    queues: list[ClientQueueRow]
    statistics: list[ClientTopicRow]
    """What it counted, by topic."""
    blocked: list[BlockedQueueRow]
    """Queues that it owns and does not consume."""
    stacks: str | None
    """Stacks of its threads or tasks; null if they were not requested, or the client does not support them."""


async def group_clients(services: ConsoleServices, group: str) -> GroupClientsView:
    """Return the clients of a group. A group without clients has an empty list."""
    states = await services.client_states.fetch(group, current_access())
    if states.found is None:
        await services.admin().check_group(group)
    return clients_view(group, states.found, as_of_ms=states.at_ms)


async def client_state(
    services: ConsoleServices, group: str, client_id: str, *, with_stacks: bool = False
) -> ClientStateView:
    """Return the running state of one client of a group.

    Raises:
        NotFound: the client is not connected; the message lists those that are.
        ReplyError, RequestTimeout: the broker could not reach the client.
    """
    as_of_ms = services.clock.now_ms()
    state = await services.admin().consumer_state(group, client_id, with_stacks=with_stacks)
    return ClientStateView(
        as_of_ms=as_of_ms,
        group=group,
        client_id=client_id,
        version=version_name(state.version),
        properties=dict(sorted(state.properties.items())),
        subscriptions=subscription_rows(group, {client_id: state}),
        queues=_client_queues(state),
        statistics=[
            ClientTopicRow.of(
                counted,
                topic=topic,
                ok_tps=counted.consume_ok_tps,
                failed_tps=counted.consume_failed_tps,
                failed_last_hour=counted.consume_failed_msgs,
                consume_ms=counted.consume_rt,
                pull_ms=counted.pull_rt,
            )
            for topic, counted in state.statistics.items()
        ],
        blocked=[blocked_row(queue) for queue in find_blocked(state, as_of_ms)],
        stacks=state.stacks or None,
    )


def clients_view(group: str, found: ConsumerStates | None, *, as_of_ms: int) -> GroupClientsView:
    """Return the view of a group's clients; `found` is None without clients."""
    connections = found.connections if found is not None else None
    states = found.states if found is not None else {}
    return GroupClientsView(
        as_of_ms=as_of_ms,
        unavailable=[] if found is None else texts_of(found.unavailable),
        group=group,
        consume_type=None if connections is None else _text(connections.consume_type),
        message_model=None if connections is None else _text(connections.message_model),
        consume_from_where=None if connections is None else _text(connections.consume_from_where),
        clients=[] if connections is None else _client_rows(connections, states),
        subscriptions=subscription_rows(group, states),
        differences=setting_differences(states),
    )


def _client_rows(connections: GroupConnections, states: Mapping[str, ConsumerState]) -> list[GroupClientRow]:
    rows = []
    for client in connections.connections:
        state = states.get(client.client_id)
        counted = list(state.statistics.values()) if state is not None else []
        rows.append(
            GroupClientRow.of(
                client,
                addr=client.client_addr,
                version=version_name(client.version),
                broker=connections.servers[client.client_id].broker,
                is_responding=state is not None,
                started_ms=state.started_ms or None if state is not None else None,
                queues=None if state is None else len(state.queues),
                cached=None if state is None else sum(queue.cached_msg_count for queue in state.queues.values()),
                ok_tps=None if state is None else sum(status.consume_ok_tps for status in counted),
                failed_tps=None if state is None else sum(status.consume_failed_tps for status in counted),
            )
        )
    return rows


def subscription_rows(group: str, states: Mapping[str, ConsumerState]) -> list[SubscriptionRow]:
    """Return the subscriptions of all clients by topic; topics with a difference first."""
    rows = [_subscription_row(topic, by_client) for topic, by_client in subscriptions_by_topic(group, states).items()]
    return sorted(rows, key=lambda row: (row.is_consistent, row.topic))


def _subscription_row(topic: str, by_client: Mapping[str, SubscriptionData | None]) -> SubscriptionRow:
    meanings = {client_id: subscription_meaning(data) for client_id, data in by_client.items()}
    counts = Counter(meanings.values())
    # Of two equally frequent ones, the one that subscribes counts as the usual one.
    usual = max(counts, key=lambda meaning: (counts[meaning], meaning is not None))
    subscribed = [meaning for meaning in counts if meaning is not None]
    return SubscriptionRow(
        topic=topic,
        is_consistent=len(counts) == 1,
        not_subscribed=counts[None],
        expressions=len(subscribed),
        has_different_kinds=len({kind for kind, _ in subscribed}) > 1,
        clients=[
            SubscriptionCell(
                client_id=client_id,
                expression=None if data is None else data.sub_string or ALL_TAGS,
                kind=None if data is None else data.expression_type or TAG,
                differs=meanings[client_id] != usual,
            )
            for client_id, data in by_client.items()
        ],
    )


def setting_differences(states: Mapping[str, ConsumerState]) -> list[SettingDifference]:
    """Return the settings that clients must share and that differ among those that responded."""
    differences = []
    for name in SHARED_SETTINGS:
        values = {client_id: state.properties.get(name) for client_id, state in states.items()}
        # A client that does not report a setting may have the same one.
        if len(set(values.values()) - {None}) > 1:
            differences.append(SettingDifference(setting=name, values=values))
    return differences


def _client_queues(state: ConsumerState) -> list[ClientQueueRow]:
    return [
        ClientQueueRow.of(
            queue,
            info,
            cached=info.cached_msg_count,
            cached_mib=info.cached_msg_size_in_mi_b,
            consumed_ms=info.last_consume_timestamp or None,
            pulled_ms=info.last_pull_timestamp or None,
            is_locked=info.locked,
            is_dropped=info.droped,
        )
        for queue, info in state.queues.items()
    ]


def _text(value: str | int | None) -> str | None:
    return None if value is None else str(value)
