"""Consumer groups as a list: from the polled state of the cluster, searched, sorted and paged on the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ariane.cluster.groups.drain_forecast import DrainState, forecast_drain
from ariane.console.areas.overview.column_times import ColumnTime, column_times, oldest_ms
from ariane.console.live.live_history import LiveHistory, group_key
from ariane.console.live.live_snapshot import GroupRow
from ariane.console.services import ConsoleServices
from ariane.console.web.paging import ListQuery, Page, paginate, sort_keys
from ariane.console.web.view_model import View

GroupFilter = Literal["all", "online", "blocked", "offline", "lagging", "deadLetters", "unknown"]
GroupStateName = Literal["blocked", "offline", "online", "unknown"]


class GroupListQuery(ListQuery):
    """Which consumer groups to list."""

    only: GroupFilter = "all"
    """online, offline: with or without connected clients; blocked: with queues that their clients do not consume; lagging: with
    pending messages; deadLetters: with dead letters; unknown: with a value that is not known, because a broker does not respond."""
    system: bool = False
    """Include groups of the broker and of tools."""


class DrainForecast(View):
    """When the lag will be consumed."""

    state: DrainState
    """drained: nothing is pending; keepingUp: only messages in transit are; draining: consumed within the range; uncertain: the
    rate is too uneven to say whether it shrinks; never: it does not shrink; unknown: a value is missing."""
    earliest_s: float | None
    """Seconds at the best rate; null if it never drains, or unknown."""
    latest_s: float | None
    """Seconds at the worst rate; null if it would not drain at that, or unknown."""


class GroupListRow(View):
    """A consumer group, summed over all brokers."""

    group: str
    topics: list[str]
    """Topics that it consumes, without its retry topic."""
    is_system: bool
    """Whether it belongs to the broker or to a tool."""
    state: GroupStateName
    """Whether clients are connected; blocked: they are, and have not consumed a queue with pending messages for a minute."""
    blocked_queues: int | None
    """Number of such queues; null while the console has not observed the offsets for a minute."""
    blocked_since_ms: int | None
    """Time of the first poll that found the first of them blocked; null without one."""
    clients: int | None
    """Number of connected clients."""
    model: str | None
    """clustering, or broadcasting: then its offsets are stored at the clients, and its lag is unknown."""
    consume_type: str | None
    """push or pull."""
    versions: list[str]
    """Versions of its clients."""
    languages: list[str]
    """Languages of its clients."""
    tps: float | None
    """Messages delivered per second over the last minute: the sum of masters and slaves."""
    tps_is_partial: bool
    """Whether the rate lacks a broker that does not respond."""
    slaves_tps: float | None
    """The part of the rate that slaves deliver; tools that ask masters only do not show it."""
    lag: int | None
    """Messages not consumed yet, those of its retry topic included."""
    lag_is_partial: bool
    """Whether the lag lacks queues whose state is unknown."""
    oldest_age_ms: int | None
    """Age of the oldest message that is not consumed; null without a lag, or if unknown."""
    dead_letters: int | None
    """Messages in its dead-letter topic."""
    dead_letters_is_partial: bool
    """Whether the dead letters lack brokers that do not respond."""
    is_inconsistent: bool | None
    """Whether its clients subscribe differently; null: not checked yet."""
    forecast: DrainForecast
    """When the lag will be consumed."""


class GroupListView(View):
    """A page of consumer groups."""

    as_of_ms: int
    """Time of the oldest columns, in milliseconds since the epoch; 0: not polled yet."""
    times: list[ColumnTime]
    """Times of the lags, rates, clients and ages."""
    unavailable: list[str]
    """Servers that did not respond, with the reason."""
    is_loaded: bool
    """Whether groups were polled; false for some seconds after the start."""
    only: GroupFilter
    """The filter that was applied."""
    system: bool
    """Whether groups of the broker and of tools are included."""
    groups: Page[GroupListRow]


STATES: tuple[GroupStateName, ...] = ("blocked", "offline", "unknown", "online")  # as the list sorts them

FILTERS: dict[GroupFilter, Callable[[GroupRow], bool]] = {
    "all": lambda row: True,
    "online": lambda row: bool(row.clients),
    "blocked": lambda row: bool(row.blocked),
    "offline": lambda row: row.clients == 0,
    "lagging": lambda row: bool(row.lag),
    "deadLetters": lambda row: bool(row.dead_letters),
    "unknown": lambda row: None in (row.clients, row.lag, row.tps) or row.lag_is_partial or row.tps_is_partial,
}

SORT_KEYS = sort_keys(
    "group", "clients", "tps", "lag", "dead_letters", age="oldest_age_ms",
    state=lambda row: (STATES.index(state_of(row)), -len(row.blocked or ())),
)  # fmt: skip


async def group_list(services: ConsoleServices, query: GroupListQuery) -> GroupListView:
    """Return one page of the consumer groups."""
    snapshot = await services.live.snapshot()
    selected = (row for row in snapshot.groups if (query.system or not row.is_system) and is_selected(row, query.only))
    page = paginate(selected, query, name=lambda row: row.group, columns=SORT_KEYS, sort="group")
    services.subscription_checks.request(row.group for row in page.items if (row.clients or 0) > 1)
    # A forecast reads the history: only the rows that are shown get one.
    checks = services.subscription_checks
    rows = [list_row(row, snapshot.history, is_inconsistent=checks.result(row.group)) for row in page.items]
    times = column_times(snapshot, services.clock.now_ms(), "lags", "rates", "clients", "ages")
    return GroupListView.of(
        snapshot,
        query,
        as_of_ms=oldest_ms(times),
        times=times,
        unavailable=snapshot.unavailable_in_lists,
        groups=page.with_items(rows),
    )


def is_selected(row: GroupRow, only: GroupFilter) -> bool:
    """Return whether a filter selects a group. Unknown values match `unknown` and no other filter."""
    return FILTERS[only](row)


def state_of(row: GroupRow) -> GroupStateName:
    """Return the state of a group."""
    if row.clients is None:
        return "unknown"
    if not row.clients:
        return "offline"
    return "blocked" if row.blocked else "online"


def list_row(row: GroupRow, history: LiveHistory, *, is_inconsistent: bool | None) -> GroupListRow:
    """Return the row of a group with its forecast; `is_inconsistent`: the result of the check of its subscriptions."""
    # A partial lag is a lower bound: a forecast of it would be too early.
    lag = None if row.lag_is_partial else row.lag
    return GroupListRow.of(
        row,
        state=state_of(row),
        blocked_queues=None if row.blocked is None else len(row.blocked),
        blocked_since_ms=min((queue.since_ms for queue in row.blocked or ()), default=None),
        forecast=DrainForecast.of(forecast_drain(lag, row.tps, history.series(group_key(row.group), "lag"))),
        is_inconsistent=is_inconsistent,
    )
