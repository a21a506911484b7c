"""Time ranges of charts: from memory, or from the pipeline's tables if they have data that old."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs fastapi: pip install 'ariane[console]'")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")
pytest.importorskip("duckdb", reason="needs duckdb: pip install 'ariane[spark]'")

from ariane.console.areas.reports.chart_history import HOUR_MS, ChartHistory, RangeName, chart_history
from ariane.console.live.live_history import LiveHistory, Rates, group_key
from ariane.reports.report import utc_time
from ariane.tables import CONSUMPTION
from tables_on_disk import put

NOW_MS = 1_700_006_400_000
KEY = group_key("G")


def history(range_name: RangeName, home: Path | None = None, *, minutes: int = 10) -> ChartHistory:
    """Return the history of a console that has run for some minutes."""
    live = LiveHistory()
    for number in range(minutes * 4):
        live.record(NOW_MS - (minutes * 4 - number) * 15_000, {KEY: Rates(lag=number)})

    async def snapshot() -> Any:
        return SimpleNamespace(history=live, as_of_ms=NOW_MS)

    services: Any = SimpleNamespace(live=SimpleNamespace(snapshot=snapshot), tables_dir=home)
    return asyncio.run(chart_history(services, KEY, range_name, group="G"))


def tables(home: Path, hours: float) -> Path:
    """Write tables whose oldest row is so old."""
    times = [NOW_MS - int(hours * HOUR_MS) // 60_000 * 60_000, NOW_MS - 3 * HOUR_MS, NOW_MS - 60_000]
    rows = [
        {"window_start": utc_time(ms), "broker": "a", "topic": "T", "consumer_group": "G", "lag": 7} for ms in times
    ]
    put(home, CONSUMPTION, rows)
    return home


def test_the_axis_is_the_range_although_the_console_has_just_started() -> None:
    found = history("1h")
    chart = found.chart("number", [{"name": "Lag", "points": found.points("lag")}])
    assert (chart["from"], chart["to"]) == (NOW_MS - HOUR_MS, NOW_MS)
    assert len(found.points("lag")) == 40


def test_a_short_range_omits_older_points() -> None:
    found = history("15m", minutes=30)
    assert len(found.points("lag")) == 60 and found.range.from_ms == NOW_MS - HOUR_MS // 4


def test_only_ranges_with_data_are_offered(tmp_path: Path) -> None:
    live = ["15m", "30m", "1h"]
    assert [name for name, _ in history("1h", tmp_path / "no tables").range.choices] == live
    assert [name for name, _ in history("1h", tables(tmp_path / "young", 4)).range.choices] == [*live, "6h"]
    assert [name for name, _ in history("1h", tables(tmp_path / "old", 30)).range.choices] == [*live, "6h", "24h", "7d"]


def test_long_ranges_are_read_from_the_tables(tmp_path: Path) -> None:
    found = history("6h", tables(tmp_path, 5))
    assert found.range.chosen == "6h" and found.range.until_ms - found.range.from_ms == 6 * HOUR_MS
    assert [value for _, value in found.points("lag")] == [7, 7]
    assert history("30d", tmp_path).range.chosen == "1h", "a range without data"
