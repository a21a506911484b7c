"""Rates and lags of the time range that the reader chose, for all charts of a page.

?range=15m … 1h  ─→ LiveHistory: since the start of the console
?range=6h … 30d  ─→ table `consumption` of the pipeline; offered if it has rows that old
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ariane.console.areas.reports.table_queries import run_query
from ariane.console.live.live_history import COLUMNS, HistoryPoint, LiveHistory, SeriesKey
from ariane.console.services import ConsoleServices
from ariane.console.web.view_model import View
from ariane.errors import StoreError
from ariane.reports import consumption_history
from ariane.tables.table_home import Home

RangeName = Literal["15m", "30m", "1h", "6h", "24h", "7d", "30d"]
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
LIVE_RANGES: dict[RangeName, int] = {"15m": 15 * MINUTE_MS, "30m": 30 * MINUTE_MS, "1h": HOUR_MS}
TABLE_RANGES: dict[RangeName, int] = {"6h": 6 * HOUR_MS, "24h": 24 * HOUR_MS, "7d": 168 * HOUR_MS, "30d": 720 * HOUR_MS}
SPANS = LIVE_RANGES | TABLE_RANGES


class ChartQuery(View):
    """Which charts to return."""

    range: RangeName = "1h"
    """Time range of the charts."""


class ChartRange(View):
    """Time range of the charts of a page."""

    chosen: RangeName
    """Its name."""
    choices: list[tuple[str, int]]
    """Names and durations in milliseconds of the ranges for which there is data."""
    from_ms: int
    """Start, in milliseconds since the epoch."""
    until_ms: int
    """End: the time of the values."""

    def chart(self, unit: str, series: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the options of a chart whose axis is the range, whatever points there are."""
        return {"unit": unit, "min": 0, "from": self.from_ms, "to": self.until_ms, "series": series}


class ChartHistory(NamedTuple):
    """Series of one range."""

    range: ChartRange
    series: Mapping[str, Sequence[HistoryPoint]]  # by names of live_history.COLUMNS

    def chart(self, unit: str, series: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the options of a chart of the range."""
        return self.range.chart(unit, series)

    def points(self, column: str) -> list[tuple[int, float | None]]:
        """Return a series as plain values."""
        return [(ms, None if value is None else round(value, 3)) for ms, value in self.series[column]]


async def chart_history(
    services: ConsoleServices, key: SeriesKey, wanted: RangeName = "1h", *, group: str | None = None
) -> ChartHistory:
    """Return the history of a key in a range; one without data is replaced by an hour.

    `group` is the consumer group of the key; None: all. Keys of brokers have no series in the tables: `live_history`.
    """
    snapshot = await services.live.snapshot()
    live, now_ms = snapshot.history, snapshot.as_of_ms or services.clock.now_ms()
    home = services.tables_dir
    names = [*LIVE_RANGES, *(await asyncio.to_thread(_table_ranges, home, now_ms) if home is not None else [])]
    if wanted not in names or wanted in LIVE_RANGES or home is None:
        return live_history(live, key, wanted, names=names, now_ms=now_ms)
    span = SPANS[wanted]
    series = await run_query(
        lambda: consumption_history.history(home, now_ms - span, now_ms, group), "the history of the charts"
    )
    by_column = {name: [HistoryPoint(*point) for point in points] for name, points in series.items()}
    return ChartHistory(_range(wanted, names, now_ms), by_column)


def live_history(
    live: LiveHistory,
    key: SeriesKey,
    wanted: RangeName,
    *,
    now_ms: int,
    names: Sequence[RangeName] = tuple(LIVE_RANGES),
) -> ChartHistory:
    """Return the history that is in memory."""
    chosen: RangeName = wanted if wanted in LIVE_RANGES else "1h"
    shown = _range(chosen, names, now_ms)
    series = {name: [point for point in live.series(key, name) if point.ms >= shown.from_ms] for name in COLUMNS}
    return ChartHistory(shown, series)


def _range(chosen: RangeName, names: Sequence[RangeName], now_ms: int) -> ChartRange:
    choices: list[tuple[str, int]] = [(name, SPANS[name]) for name in names]
    return ChartRange(chosen=chosen, choices=choices, from_ms=now_ms - SPANS[chosen], until_ms=now_ms)


def _table_ranges(home: Home, now_ms: int) -> list[RangeName]:
    """Return the ranges whose earlier part the table has: a longer one would show the same points."""
    try:
        first_ms = consumption_history.first_ms(home)
    except (StoreError, OSError):  # the overview shows the reason
        return []
    shorter = [HOUR_MS, *TABLE_RANGES.values()]
    known_ms = 0 if first_ms is None else now_ms - first_ms
    return [name for name, before in zip(TABLE_RANGES, shorter, strict=False) if known_ms > before]
