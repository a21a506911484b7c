"""Progress of one consumer group, queue by queue: offsets, lag, ages, and the client that owns each queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from ariane.cluster.groups.consumer_status import BlockedQueue, find_blocked, queue_owners
from ariane.cluster.groups.drain_forecast import forecast_drain
from ariane.cluster.groups.group_lag import GroupLag, QueueLag, UnconsumedAges, total_of
from ariane.console.areas.admin_results import texts_of
from ariane.console.areas.brokers.server_views import lag_chart
from ariane.console.areas.groups.group_list import DrainForecast
from ariane.console.areas.reports.chart_history import ChartRange, RangeName, chart_history
from ariane.console.limits.access import current_access
from ariane.console.live.client_states import SharedStates
from ariane.console.live.live_history import group_key
from ariane.console.live.live_snapshot import GroupRow
from ariane.console.services import ConsoleServices
from ariane.console.web.paging import ListQuery, Page, paginate, sort_keys
from ariane.console.web.view_model import PartialView, View
from ariane.model.message import MessageQueue
from ariane.model.topic import retry_topic

NOT_MOVING = "offset stands still"


class QueueProgressRow(View):
    """One queue of a consumer group."""

    topic: str
    """Topic of the queue; the group's retry topic is one of its topics, too."""
    is_retry: bool
    """Whether the topic is the group's retry topic."""
    broker: str
    queue_id: int
    """Number of the queue on that broker."""
    broker_offset: int
    """Offset after the last message of the queue."""
    committed_offset: int | None
    """Offset at which the group continues; null: it has committed none."""
    lag: int | None
    """Messages not consumed yet; null: unknown, because no offset is committed."""
    in_flight: int | None
    """Of these, messages that were delivered by POP (clients of RocketMQ 5) and not acknowledged; null: the queue is pulled."""
    consumed_ms: int | None
    """Store time of the last consumed message; null without one, or if it was deleted."""
    oldest_age_ms: int | None
    """Age of the first message that is not consumed; null without a lag, or if that message was deleted."""
    owner: str | None
    """Id of the client that consumes the queue; null: none that responded."""
    blocked: str | None
    """Why its client does not consume the queue although it should; null: it does."""


class TopicProgress(View):
    """One topic of a consumer group, summed over its queues."""

    topic: str
    is_retry: bool
    """Whether it is the group's retry topic."""
    queues: int
    """Number of queues."""
    owned: int
    """Queues that have a client."""
    lag: int | None
    """Messages not consumed yet; null if that of a queue is unknown."""
    oldest_age_ms: int | None
    """Largest age of a message that is not consumed."""


class GroupQueueRow(View):
    """A queue that a consumer group consumes."""

    topic: str
    broker: str
    queue_id: int
    """Number of the queue on that broker."""


class BlockedQueueRow(GroupQueueRow):
    """A queue that a client owns and does not consume."""

    client_id: str
    """Id of the client; empty if no client that responded owns the queue."""
    reason: str
    """not consuming: messages are cached, and the listener took none for a minute; not locked, not unlocked: an orderly client
    lacks the lock of its queue, or cannot release it; offset stands still: messages are pending, and polls of the cluster have
    found the same offset for a minute."""
    since_ms: int | None
    """For how long, in milliseconds; null if unknown."""


class GroupProgressView(PartialView):
    """Progress of a consumer group."""

    unavailable: list[str]
    """Brokers and clients that did not respond, with the reason."""
    group: str
    tps: float | None
    """Messages delivered per second over the last minute: the sum of masters and slaves; null if one did not respond."""
    lag: int | None
    """Messages not consumed yet; null if a queue or a broker is unknown."""
    known_lag: int
    """Sum of the known lags: a lower bound of `lag`."""
    in_flight: int | None
    """Messages that were delivered by POP (clients of RocketMQ 5) and not acknowledged; null: no queue is consumed by POP."""
    oldest_age_ms: int | None
    """Age of the oldest message that is not consumed; null without a lag, or if unknown."""
    clients: int | None
    """Number of connected clients."""
    is_broadcasting: bool
    """Whether every client receives every message: the offsets are then stored at the clients, and lags are unknown."""
    forecast: DrainForecast
    """When the lag will be consumed."""
    topics: list[TopicProgress]
    """Sums by topic."""
    blocked: list[BlockedQueueRow]
    """Queues that clients own and do not consume."""
    chart_range: ChartRange
    """Time range of the chart."""
    lag_chart: dict[str, Any]
    """Lag in that range, as options of a chart."""
    queues: Page[QueueProgressRow]


SORT_KEYS = sort_keys(
    "broker_offset", "committed_offset", "lag", "in_flight", "owner", consumed="consumed_ms", age="oldest_age_ms",
    queue=lambda row: (row.topic, row.broker, row.queue_id),
)  # fmt: skip


class ProgressQuery(ListQuery):
    """Which queues to return, and the time range of the chart."""

    range: RangeName = "1h"
    """Time range of the chart."""


class _GroupState:
    """What the brokers and clients responded about one group."""

    def __init__(self, lag: GroupLag, ages: UnconsumedAges, states: SharedStates) -> None:
        self.lag = lag
        self.ages = ages
        self.as_of_ms = states.at_ms
        self.clients = states.found  # None without clients

    @property
    def unavailable(self) -> list[str]:
        silent = self.clients.unavailable if self.clients is not None else ()
        return texts_of((*self.lag.unavailable, *self.ages.unavailable, *silent))


async def group_progress(services: ConsoleServices, group: str, query: ProgressQuery) -> GroupProgressView:
    """Return the progress of a group, with one page of its queues."""
    state = await _fetch_state(services, group)
    snapshot = await services.live.snapshot()
    lag, connections = state.lag, state.clients.connections if state.clients is not None else None
    states = state.clients.states if state.clients is not None else {}
    owners = queue_owners(states)
    blocked = [queue for client in states.values() for queue in find_blocked(client, state.as_of_ms)]
    blocked += _blocked_offsets(snapshot.group(group), lag, owners, {item.queue for item in blocked}, state.as_of_ms)
    rows = queue_rows(group, lag.queues, state.ages, owners, blocked)
    history = await chart_history(services, group_key(group), query.range, group=group)
    lags = snapshot.history.series(group_key(group), "lag")
    return GroupProgressView(
        as_of_ms=state.as_of_ms,
        unavailable=state.unavailable,
        group=group,
        tps=lag.consume_tps,
        lag=lag.total,
        known_lag=lag.lag.minimum or 0,
        in_flight=lag.in_flight,
        oldest_age_ms=max((row.oldest_age_ms for row in rows if row.oldest_age_ms is not None), default=None),
        clients=0 if connections is None else connections.clients,
        is_broadcasting=connections is not None and connections.is_broadcasting,
        forecast=DrainForecast.of(forecast_drain(lag.total, lag.consume_tps, lags)),
        topics=topic_rows(rows, lag.queues),
        blocked=[blocked_row(queue) for queue in blocked],
        chart_range=history.range,
        lag_chart=lag_chart(history),
        queues=paginate(rows, query, name=_searched_text, columns=SORT_KEYS, sort="queue"),
    )


async def _fetch_state(services: ConsoleServices, group: str) -> _GroupState:
    admin = services.admin()
    lag, states = await asyncio.gather(admin.group_lag(group), services.client_states.fetch(group, current_access()))
    if states.found is None and not any(queue.consumer_offset for queue in lag.queues):
        await admin.check_group(group)
    return _GroupState(lag, await admin.unconsumed_ages(lag), states)


def _blocked_offsets(
    row: GroupRow | None, lag: GroupLag, owners: dict[MessageQueue, str], reported: set[MessageQueue], now_ms: int
) -> Iterator[BlockedQueue]:
    """Yield the queues whose offset stands still, as polls of the cluster found, without those that clients reported."""
    lagging = {queue.queue for queue in lag.queues if queue.lag}
    for item in (row.blocked or ()) if row is not None else ():
        queue = MessageQueue(item.topic, item.broker, item.queue_id)
        if queue in lagging and queue not in reported:
            yield BlockedQueue(owners.get(queue, ""), queue, NOT_MOVING, now_ms - item.since_ms)


def queue_rows(
    group: str,
    queues: Iterable[QueueLag],
    ages: UnconsumedAges,
    owners: dict[MessageQueue, str],
    blocked: Iterable[BlockedQueue],
) -> list[QueueProgressRow]:
    """Return the rows of all queues of a group."""
    reasons = {item.queue: item.reason for item in blocked}
    retry = retry_topic(group)
    return [
        QueueProgressRow.of(
            queue,
            is_retry=queue.topic == retry,
            committed_offset=queue.consumer_offset,
            oldest_age_ms=ages.by_queue.get(queue.queue),
            owner=owners.get(queue.queue),
            blocked=reasons.get(queue.queue),
        )
        for queue in queues
    ]


def topic_rows(rows: Iterable[QueueProgressRow], queues: Iterable[QueueLag]) -> list[TopicProgress]:
    """Return the sums of a group's queues by topic."""
    by_topic: dict[str, list[QueueProgressRow]] = {}
    for row in rows:
        by_topic.setdefault(row.topic, []).append(row)
    lags: dict[str, list[QueueLag]] = {}
    for queue in queues:
        lags.setdefault(queue.topic, []).append(queue)
    return [
        TopicProgress(
            topic=topic,
            is_retry=members[0].is_retry,
            queues=len(members),
            owned=sum(row.owner is not None for row in members),
            lag=total_of(lags[topic]),
            oldest_age_ms=max((row.oldest_age_ms for row in members if row.oldest_age_ms is not None), default=None),
        )
        for topic, members in sorted(by_topic.items())
    ]


def blocked_row(item: BlockedQueue) -> BlockedQueueRow:
    """Return the row of a blocked queue."""
    return BlockedQueueRow.of(item, item.queue)


def _searched_text(row: QueueProgressRow) -> str:
    # The number is padded: rows with equal values are sorted by this text.
    return f"{row.topic} {row.broker} {row.queue_id:06} {row.owner or ''}"
