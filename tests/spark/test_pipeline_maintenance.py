"""Maintenance without a running pipeline: expired rows, small files and replaced files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

from ariane.pipeline import maintenance
from ariane.pipeline.jobs import JOBS
from ariane.pipeline.publishing.table_publisher import MAX_SMALL_FILES
from ariane.tables import TRACE_REJECTS
from ariane.tables.table_format import RETIRED_RETENTION_MS
from ariane.tables.time_buckets import bucket_of_time
from tables_on_disk import put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NOW_MS = 1_700_000_000_000
OLD_MS = NOW_MS - 40 * maintenance.DAY_MS


def test_old_rows_expire_small_files_are_merged_and_replaced_files_deleted(spark: SparkSession, tmp_path: Path) -> None:
    for stored_ms in (OLD_MS, *[NOW_MS] * (MAX_SMALL_FILES + 1)):
        row = {"record": "x", "trace_stored_at": datetime.fromtimestamp(stored_ms / 1000, UTC)}
        put(tmp_path, TRACE_REJECTS, [row], bucket=bucket_of_time(stored_ms))

    def maintain(now_ms: int) -> list[tuple[maintenance.TableSize, maintenance.TableSize]]:
        results = maintenance.maintain(spark, tmp_path, JOBS["trace"], 30, now_ms)
        return [(before, after) for table, before, after in results if table == TRACE_REJECTS]

    ((before, after),) = maintain(NOW_MS)
    assert (before.rows, before.files, before.retired_files) == (MAX_SMALL_FILES + 2, MAX_SMALL_FILES + 2, 0)
    assert (after.rows, after.files, after.retired_files) == (MAX_SMALL_FILES + 1, 1, MAX_SMALL_FILES + 2)
    replaced = [*(tmp_path / TRACE_REJECTS.name).glob("v=*/*/*.parquet")]
    assert len(replaced) == before.files + 1

    ((before, after),) = maintain(NOW_MS + RETIRED_RETENTION_MS)
    assert (before.rows, after.rows, after.retired_files) == (MAX_SMALL_FILES + 1, MAX_SMALL_FILES + 1, 0)
    assert len([*(tmp_path / TRACE_REJECTS.name).glob("v=*/*/*.parquet")]) == 1
    ((before, after),) = maintain(NOW_MS + RETIRED_RETENTION_MS)
    assert before == after, "nothing is left to do"
