"""The query of docs/operations.md that plans the disks of brokers, on samples of three weeks."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
MONDAY = datetime(2026, 11, 2, tzinfo=UTC)
GB = 1_000_000_000


def recipe() -> str:
    (query,) = re.findall(r"```sql\n(WITH steps.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return query


def test_the_recipe_reads_growth_busiest_hour_trend_and_disk() -> None:
    duckdb = pytest.importorskip("duckdb")
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    database.execute(
        "CREATE TABLE samples_brokers (broker VARCHAR, broker_id BIGINT, addr VARCHAR, sampled_at TIMESTAMPTZ, log_max BIGINT)"
    )
    end, rows = 0, []
    for hour in range(21 * 24 + 5):  # the last day is not complete
        day, of_day = divmod(hour, 24)
        end += (day + 10) * GB // 24 * (2 if of_day == 20 else 1)
        at = MONDAY + timedelta(hours=hour, minutes=30)
        master = "a" if day % 2 else "b"  # switches go on with the same log
        rows += [
            ("broker-a", 0, master, at, end),
            ("broker-a", 1, "c", at, end // 2),
            ("broker-a", 0, master, at, None),
        ]
    database.executemany("INSERT INTO samples_brokers VALUES (?, ?, ?, ?, ?)", rows)
    ((broker, a_day, busiest, more, disk_gb),) = database.execute(recipe()).fetchall()
    hour_more = 25 / 24  # one hour of each day has twice as much
    assert broker == "broker-a"
    assert a_day == pytest.approx(20 * GB * hour_more, rel=0.01)
    assert busiest == pytest.approx(30 * GB / 24 * 2, rel=0.01)
    assert more == pytest.approx(GB * hour_more, rel=0.02)
    assert disk_gb == pytest.approx(30 * hour_more * 3 / 0.75, abs=1)
