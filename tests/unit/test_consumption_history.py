"""Series of charts from the table `consumption`: sums over brokers and topics, and minutes that are unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")
pytest.importorskip("duckdb", reason="needs duckdb: pip install 'ariane[spark]'")

from ariane.reports import consumption_history
from ariane.reports.report import utc_time
from ariane.tables import CONSUMPTION
from tables_on_disk import put

MINUTE_MS = 60_000
START_MS = 1_700_000_040_000  # a full minute


def row(minute: int, group: str | None, broker: str = "a", **values: Any) -> dict[str, Any]:
    at = utc_time(START_MS + minute * MINUTE_MS)
    return {"window_start": at, "broker": broker, "topic": "orders", "consumer_group": group, **values}


def read(home: Path, group: str | None = None) -> dict[str, list[float | None]]:
    series = consumption_history.history(home, START_MS, START_MS + 60 * MINUTE_MS, group)
    return {name: [value for _, value in points] for name, points in series.items()}


def test_sums_are_over_brokers_and_groups(tmp_path: Path) -> None:
    rows = [row(minute, None, broker, produced_tps=2.0) for minute in range(3) for broker in "ab"]
    rates = {"delivered_master_tps": 1.0, "delivered_slaves_tps": 0.5}
    rows += [row(minute, group, lag=10 * minute, **rates) for minute in range(3) for group in ("G", "H")]
    put(tmp_path, CONSUMPTION, rows)
    assert read(tmp_path) == {"tps_in": [4, 4], "tps_out": [3, 3], "tps_slaves": [1, 1], "lag": [0, 20]}
    assert read(tmp_path, "G")["lag"] == [0, 10]
    assert consumption_history.first_ms(tmp_path) == START_MS


def test_a_minute_without_a_broker_is_unknown(tmp_path: Path) -> None:
    rows = [row(minute, "G", "a", lag=5) for minute in range(5)]
    rows += [row(minute, "G", "b", lag=None if minute == 3 else 7) for minute in (1, 3, 4)]
    put(tmp_path, CONSUMPTION, rows)
    # Broker b begins in minute 1, is absent in minute 2, and unknown in minute 3; the newest minute is incomplete.
    assert read(tmp_path, "G")["lag"] == [5, 12, None, None]


def test_there_is_no_history_without_a_table(tmp_path: Path) -> None:
    assert consumption_history.first_ms(tmp_path) is None
    assert read(tmp_path) == {"tps_in": [], "tps_out": [], "tps_slaves": [], "lag": []}
