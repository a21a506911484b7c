"""The times of the columns of a list: they are polled in parts, which take different times in a large cluster."""

from __future__ import annotations

from typing import Literal

from ariane.console.live.cluster_watch import INTERVAL_S
from ariane.console.live.live_snapshot import LiveSnapshot
from ariane.console.web.view_model import View

Columns = Literal["queues", "lags", "rates", "clients", "ages"]

DETAIL_INTERVAL_S = 30.0  # at most, between two polls of rates, clients and ages that keep up
OLD_INTERVALS = 2


class ColumnTime(View):
    """The time of a group of columns."""

    columns: Columns
    """queues: number of queues and messages; lags: lags and dead letters; rates: messages per second; clients: clients, state and
    mode; ages: oldest messages."""
    as_of_ms: int | None
    """Time of the oldest of its values, in milliseconds since the epoch; null: not polled yet."""
    is_old: bool
    """Whether it is older than two intervals: 10 s for queues and lags, 60 s for the others."""


def column_times(snapshot: LiveSnapshot, now_ms: int, *columns: Columns) -> list[ColumnTime]:
    """Return the times of some groups of columns."""
    times: dict[Columns, tuple[int | None, float]] = {
        "queues": (snapshot.base_as_of_ms, INTERVAL_S),
        "lags": (snapshot.base_as_of_ms, INTERVAL_S),
        "rates": (snapshot.rates_as_of_ms, DETAIL_INTERVAL_S),
        "clients": (snapshot.clients_as_of_ms, DETAIL_INTERVAL_S),
        "ages": (snapshot.ages_as_of_ms, DETAIL_INTERVAL_S),
    }
    entries = []
    for name in columns:
        as_of_ms, interval_s = times[name]
        is_old = as_of_ms is not None and now_ms - as_of_ms > OLD_INTERVALS * interval_s * 1000
        entries.append(ColumnTime(columns=name, as_of_ms=as_of_ms, is_old=is_old))
    return entries


def oldest_ms(times: list[ColumnTime]) -> int:
    """Return the time of the oldest columns; 0 if none was polled yet."""
    return min((time.as_of_ms for time in times if time.as_of_ms is not None), default=0)
