"""The index from keys to messages: its terms, and days merged into one file each without losing a row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import trace_frames as frames
from trace_frames import before, pub

from ariane.pipeline.publishing import table_publisher
from ariane.pipeline.tables import message_keys
from ariane.reports.tables import table_views
from ariane.tables import MESSAGE_KEYS, table_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000
MIDNIGHT_MS = 1_699_920_000_000  # 2023-11-14


def test_terms_are_complete_keys_and_offset_message_ids(spark: SparkSession) -> None:
    reported = [
        pub("M", keys="k1  k2", offset_message_id="OFF"),
        pub("M", keys="k1  k2", offset_message_id="OFF"),
        before("N", "R", 5),
        pub("O", keys="", offset_message_id="x" * 2000),
    ]
    frame = message_keys.message_keys(frames.events(spark, reported))
    assert frame.columns == [*MESSAGE_KEYS.column_names, "bucket"]
    rows = frames.rows(frame)
    assert sorted((row["term"], row["message_id"]) for row in rows) == [
        ("OFF", "M"),
        ("k1", "M"),
        ("k2", "M"),
        ("key-N", "N"),
    ]
    assert all(row["journey_bucket"] == row["bucket"] and row["first_traced_at"] == frames.STORED for row in rows)


def test_past_days_are_merged_and_late_rows_are_still_found(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish_buckets(*buckets: str) -> None:
        rows = [(f"key-{bucket}", f"id-{bucket}", bucket, frames.STORED, bucket) for bucket in buckets]
        frame = spark.createDataFrame(rows, f"{MESSAGE_KEYS.ddl}, bucket STRING")
        change = table_publisher.TableChange(frame=frame, applied={"trace_events": 7}, replaced=buckets, as_of_ms=5)
        table_publisher.commit(tmp_path, MESSAGE_KEYS, change, 0)

    def terms() -> list[str]:
        with table_views.open_views(tmp_path, table_views.whole_table(MESSAGE_KEYS)) as sql:
            return [
                row["term"] for row in table_views.query(sql, "SELECT DISTINCT term FROM message_keys ORDER BY term")
            ]

    def file_slots() -> list[str]:
        now = table_store.read_version(tmp_path, MESSAGE_KEYS)
        assert now is not None
        return sorted(file.bucket for file in now.files)

    assert message_keys.merge_days(spark, tmp_path, 0) is None
    today = [f"2023-11-14T{hour:02}00" for hour in range(3)]
    yesterday = ["2023-11-13T1000", "2023-11-13T1010", "unknown-03"]
    publish_buckets(*today, *yesterday)
    known = [f"key-{bucket}" for bucket in sorted([*today, *yesterday])]

    now = message_keys.merge_days(spark, tmp_path, MIDNIGHT_MS + HOUR_MS)
    assert now is not None
    assert file_slots() == ["2023-11-13", *today, "unknown-03"]
    assert terms() == known
    assert (now.applied, now.as_of_ms) == ({"trace_events": 7}, 5)
    assert message_keys.merge_days(spark, tmp_path, MIDNIGHT_MS + HOUR_MS) is None

    # A bucket of the merged day is rebuilt: its rows get a file of their own until the next merge.
    publish_buckets("2023-11-13T1000", "2023-11-13T2350")
    assert terms() == sorted([*known, "key-2023-11-13T2350"])
    assert message_keys.merge_days(spark, tmp_path, MIDNIGHT_MS + HOUR_MS) is None, "two late files are few"
    monkeypatch.setattr(message_keys, "MAX_UNMERGED_FILES", 1)
    repeated = message_keys.merge_days(spark, tmp_path, MIDNIGHT_MS + HOUR_MS)
    assert file_slots() == ["2023-11-13", *today, "unknown-03"]
    assert terms() == sorted([*known, "key-2023-11-13T2350"])
    assert repeated is not None
    assert repeated.rows == 7, "a row that is there twice is merged into one"


def test_the_current_day_is_merged_when_it_has_many_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_keys, "MAX_UNMERGED_FILES", 2)
    buckets = ["2023-11-14T0000", "2023-11-14T0010", "2023-11-14T0020", "2023-11-14T0150"]
    rows = [(f"key-{bucket}", "M", bucket, frames.STORED, bucket) for bucket in buckets]
    frame = spark.createDataFrame(rows, f"{MESSAGE_KEYS.ddl}, bucket STRING")
    table_publisher.commit(tmp_path, MESSAGE_KEYS, table_publisher.TableChange(frame=frame, applied={}, as_of_ms=5), 0)
    now = message_keys.merge_days(spark, tmp_path, MIDNIGHT_MS + 2 * HOUR_MS)
    assert now is not None
    assert sorted(file.bucket for file in now.files) == ["2023-11-14", "2023-11-14T0150"]
