"""Copies of a computed hour for benches/history.py: the rows have the times, ids, keys and offsets of an earlier hour."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")
pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import pyarrow as pa

from ariane.pipeline import jobs
from ariane.tables import JOURNEYS, MESSAGE_KEYS, TRACE_EVENTS, time_buckets
from ariane.tables.directory_tables import DirectoryTables
from ariane.tables.table_format import DataFile, TableVersion

NOW = datetime(2026, 11, 21, 10, 25, tzinfo=UTC)
MONTH_MS = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1000)
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.fixture
def copied_hours(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benches"))
    import copied_hours

    yield copied_hours
    del sys.modules["copied_hours"]


def test_a_copy_has_the_rows_of_an_earlier_hour(copied_hours: Any) -> None:
    message_id = f"{copied_hours.CLIENT}{NOW_MS - MONTH_MS:08X}0007"
    earlier_id = f"{copied_hours.CLIENT}{NOW_MS - 3 * 3_600_000 - MONTH_MS:08X}0007"
    offset_id = f"{copied_hours.BROKER}{1200:016X}"
    rows = pa.table({
        "message_id": [message_id, message_id],
        "request_id": [f"{message_id}1", None],
        "term": ["order-7", offset_id],
        "journey_bucket": ["2026-11-21T1020", "2026-11-21T1020"],
        "sent_at": pa.array([NOW, None], pa.timestamp("us", tz="UTC")),
        "queue_offset": [7, 8],
        "cost_ms": [7, 8],
        "deliveries": [[{"request_id": f"{message_id}1", "ended_at": NOW}], None],
        "properties": pa.array([[("UNIQ_KEY", message_id)], None], pa.map_(pa.string(), pa.string())),
    })  # fmt: skip
    copy = copied_hours.copied(rows, 3)
    assert copy.schema == rows.schema
    assert copy.to_pylist() == [
        {
            "message_id": earlier_id, "request_id": f"{earlier_id}1", "term": "order-3-7", "journey_bucket": "2026-11-21T0720",
            "sent_at": NOW - timedelta(hours=3), "queue_offset": 7 + (3 << 32), "cost_ms": 7,
            "deliveries": [{"request_id": f"{earlier_id}1", "ended_at": NOW - timedelta(hours=3)}],
            "properties": [("UNIQ_KEY", earlier_id)],
        },
        {
            "message_id": earlier_id, "request_id": None, "term": f"{copied_hours.BROKER}{(3 << 32) + 1200:016X}",
            "journey_bucket": "2026-11-21T0720", "sent_at": None, "queue_offset": 8 + (3 << 32), "cost_ms": 8,
            "deliveries": None, "properties": None,
        },
    ]  # fmt: skip
    assert time_buckets.bucket_of_id(earlier_id, NOW_MS) == copied_hours.bucket_of("2026-11-21T1020", 3)


def test_links_are_listed_as_the_files_of_earlier_hours(copied_hours: Any, tmp_path: Path) -> None:
    job, home, computed = jobs.combine_jobs(("trace",)), tmp_path / "home", tmp_path / "computed"
    for table in job.tables:
        path = Path("v=00000001/bucket=2026-11-21T1020/part.parquet")
        for directory in (home, computed):
            (directory / table.name / path.parent).mkdir(parents=True)
            (directory / table.name / path).write_bytes(b"rows")
            file = DataFile(str(path), "2026-11-21T1020", 7, 4, 1, NOW_MS, NOW_MS)
            applied = {"trace_events": 1} if table in (JOURNEYS, MESSAGE_KEYS) else {}
            version = TableVersion(1, table.schema, 7, NOW_MS, (file,), applied)
            DirectoryTables(directory).publish(table, TableVersion.initial(table, 0), version, NOW_MS)
    copied_hours.append_links(home, computed, job, range(1, 3), NOW_MS)
    events, journeys, keys = map(DirectoryTables(home).read_version, (TRACE_EVENTS, JOURNEYS, MESSAGE_KEYS))
    assert events and journeys and keys
    assert [file.bucket for file in events.files] == ["2026-11-21T1020", "2026-11-21T0920", "2026-11-21T0820"]
    assert events.files[-1].last_ms == NOW_MS - 2 * 3_600_000
    assert (home / TRACE_EVENTS.name / events.files[-1].path).read_bytes() == b"rows"
    assert [file.bucket for file in keys.files] == ["2026-11-21T1020", "2026-11-21"]
    assert journeys.applied == keys.applied == {"trace_events": events.version}


def test_ids_of_another_month_are_refused(copied_hours: Any) -> None:
    ids = pa.array([f"{copied_hours.CLIENT}{2 * 3_600_000:08X}0007"])
    with pytest.raises(ValueError, match="before the month"):
        copied_hours.copied(pa.table({"message_id": ids}), 3)


@pytest.mark.parametrize(
    ("now", "begin", "month"),
    [
        (datetime(2026, 11, 21, 10, 25), datetime(2026, 11, 21, 9), datetime(2026, 11, 1)),
        (datetime(2026, 1, 2, 10, 25), datetime(2025, 12, 31, 23), datetime(2025, 12, 1)),
    ],
)
def test_the_computed_hour_follows_all_copies_in_its_month(
    copied_hours: Any, now: datetime, begin: datetime, month: datetime
) -> None:
    def ms(time: datetime) -> int:
        return int(time.replace(tzinfo=UTC).timestamp() * 1000)

    assert copied_hours.last_hour(ms(now), 100) == (ms(begin) - ms(month), ms(month))
