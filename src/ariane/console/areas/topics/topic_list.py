"""Topics as a list: from the polled state of the cluster, filtered by kind, searched, sorted and paged on the server."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from ariane.console.areas.overview.column_times import ColumnTime, column_times, oldest_ms
from ariane.console.live.live_snapshot import TopicKind, TopicRow
from ariane.console.services import ConsoleServices
from ariane.console.web.paging import ListQuery, Page, paginate, sort_keys
from ariane.console.web.view_model import View
from ariane.model.topic import permission_words

KindFilter = Literal["normal", "retry", "dlq", "delay", "system", "all"]


class TopicListQuery(ListQuery):
    """Which topics to list."""

    kind: KindFilter = "normal"
    """normal: of applications; retry, dlq: redeliveries and dead letters of a group; delay: messages that are not due; system:
    others of brokers and tools."""
    cluster: str = ""
    """Only topics of this cluster."""
    broker: str = ""
    """Only topics of this broker."""


class TopicListRow(View):
    """A topic, summed over the masters that have it."""

    topic: str
    kind: TopicKind
    """What it is for."""
    clusters: list[str]
    """Clusters whose masters have it."""
    brokers: list[str]
    """Names of the brokers that have it."""
    read_queues: int | None
    """Queues that consumers read, of all brokers."""
    write_queues: int | None
    """Queues that producers choose from, of all brokers."""
    permissions: list[str]
    """Permissions that it has on any broker: `read-write`, `read`, `write` or `none`."""
    messages: int | None
    """Messages in its queues."""
    tps_in: float | None
    """Messages stored per second over the last minute; null for topics of retries and dead letters, too."""
    groups: int
    """Consumer groups that have offsets or a subscription."""
    is_partial: bool
    """Whether a broker that has the topic does not respond, so that queues and messages lack its part."""
    tps_is_partial: bool
    """Whether the rate lacks such a part."""
    missing: list[str]
    """Brokers whose part of the queues and messages is missing."""
    tps_missing: list[str]
    """Brokers whose part of the rate is missing."""


class KindCount(View):
    """Number of topics of one kind."""

    kind: KindFilter
    """The kind, or `all`."""
    topics: int
    """Topics of this kind in the selected cluster and broker."""


class TopicListView(View):
    """A page of topics."""

    as_of_ms: int
    """Time of the oldest columns, in milliseconds since the epoch; 0: not polled yet."""
    times: list[ColumnTime]
    """Times of the queues and of the rates."""
    unavailable: list[str]
    """Servers that did not respond, with the reason."""
    missing: list[str]
    """Brokers whose part of a value of this page is missing."""
    is_loaded: bool
    """Whether topics were polled; false for some seconds after the start."""
    kind: KindFilter
    """The filter that was applied."""
    cluster: str
    """Cluster that was asked for; empty: all."""
    broker: str
    """Broker that was asked for; empty: all."""
    clusters: list[str]
    """All clusters, for the filter."""
    kinds: list[KindCount]
    """Number of topics of each kind."""
    topics: Page[TopicListRow]


COLUMNS = sort_keys(
    "topic", "messages", "tps_in", queues="write_queues",
    brokers=lambda row: len(row.brokers), groups=lambda row: len(row.groups),
)  # fmt: skip
KINDS: tuple[KindFilter, ...] = ("normal", "delay", "retry", "dlq", "system", "all")


async def topic_list(services: ConsoleServices, query: TopicListQuery) -> TopicListView:
    """Return one page of the topics."""
    snapshot = await services.live.snapshot()
    selected = [
        row
        for row in snapshot.topics
        if query.cluster in ("", *row.clusters) and query.broker in ("", *row.brokers)
    ]  # fmt: skip
    counts = Counter(row.kind for row in selected)
    of_kind = (row for row in selected if query.kind in ("all", row.kind))
    page = paginate(of_kind, query, name=lambda row: row.topic, columns=COLUMNS, sort="topic")
    rows = [_row(row, has_rates=snapshot.rates_as_of_ms is not None) for row in page.items]
    times = column_times(snapshot, services.clock.now_ms(), "queues", "rates")
    return TopicListView.of(
        snapshot, query,
        as_of_ms=oldest_ms(times),
        times=times,
        unavailable=snapshot.unavailable_in_lists,
        missing=sorted({name for row in rows for name in (*row.missing, *row.tps_missing)}),
        clusters=sorted({row.cluster for row in snapshot.brokers}),
        kinds=[
            KindCount(kind=kind, topics=len(selected) if kind == "all" else counts[kind])
            for kind in KINDS
        ],
        topics=page.with_items(rows),
    )  # fmt: skip


def _row(row: TopicRow, *, has_rates: bool) -> TopicListRow:
    return TopicListRow.of(
        row,
        permissions=[permission_words(perm) for perm in row.perms],
        groups=len(row.groups),
        # Before the first poll of rates no broker is the reason.
        tps_missing=row.tps_missing if has_rates else [],
    )
