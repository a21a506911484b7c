"""Backfill: rows that the tables lack are added once, and the tables computed from them are rebuilt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import trace_frames as frames
from trace_frames import after, before, pub

from ariane.errors import ConfigError
from ariane.pipeline import backfill, jobs
from ariane.pipeline.publishing import incremental, table_publisher
from ariane.reports.tables import pipeline_status
from ariane.tables import JOURNEYS, TRACE_EVENTS, TRACE_REJECTS
from ariane.tables.table_store import read_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TRACE = jobs.JOBS["trace"]._replace(
    incremental_tables=tuple(one for one in jobs.JOBS["trace"].incremental_tables if one.table is JOURNEYS)
)
NOW_MS = frames.T0_MS + 3_600_000


@pytest.mark.long(
    "tests/spark/test_pipeline_backfill.py::test_every_appended_table_of_the_jobs_has_an_identity",
    "tests/spark/test_pipeline_backfill.py::test_a_range_that_the_pipeline_has_yet_to_read_is_refused",
    "tests/spark/test_pipeline_run.py::test_a_batch_repeated_after_a_crash_is_stored_once",
)
def test_missing_rows_are_added_once(spark: SparkSession, tmp_path: Path) -> None:
    bodies = [
        frames.message(frames.body([pub("A"), before("A", "R", 5)]), 0),
        frames.message(frames.body([after("A", "R", 12)]) + b"odd\x02", 1),
    ]
    first, everything = frames.events_of_messages(spark, bodies[:1]), spark.createDataFrame(frames.messages(bodies))
    table_publisher.append_batch(first, tmp_path, TRACE_EVENTS, "traces X", 0, NOW_MS)
    incremental.rebuild_changed(spark, tmp_path, TRACE.incremental_tables[0], NOW_MS)

    def rows(table: Any) -> list[dict[str, Any]]:
        return frames.rows(table_publisher.read_table(spark, tmp_path, table))

    def fill(*, is_dry_run: bool = False) -> list[tuple[str, int, int]]:
        def read(_: jobs.TopicSource) -> DataFrame:
            return everything

        results = backfill.backfill(spark, tmp_path, TRACE, read, NOW_MS, is_dry_run=is_dry_run)
        return [(result.table.name, result.rows, result.missing) for result in results]

    assert rows(JOURNEYS)[0]["result"] == "unknown"
    assert fill(is_dry_run=True) == [("trace_events", 3, 1), ("trace_rejects", 1, 1)]
    assert (len(rows(TRACE_EVENTS)), read_version(tmp_path, TRACE_REJECTS)) == (2, None)
    assert fill() == [("trace_events", 3, 1), ("trace_rejects", 1, 1)]
    assert fill() == [("trace_events", 3, 0), ("trace_rejects", 1, 0)], "a repetition adds nothing"
    assert (len(rows(TRACE_EVENTS)), len(rows(TRACE_REJECTS)), rows(JOURNEYS)[0]["result"]) == (3, 1, "success")
    version = read_version(tmp_path, TRACE_EVENTS)
    assert version is not None
    assert version.applied == {"traces X": 0}, "the progress of the pipeline stays as it is"


def test_every_appended_table_of_the_jobs_has_an_identity() -> None:
    appended = [table for job in jobs.JOBS.values() for source in job.sources for table in source.tables]
    for table in appended:
        assert set(backfill.IDENTITIES[table.name]) <= set(table.column_names)


@pytest.mark.parametrize("caught_up_ms", [None, NOW_MS - 1])
def test_a_range_that_the_pipeline_has_yet_to_read_is_refused(tmp_path: Path, caught_up_ms: int | None) -> None:
    with pytest.raises(ConfigError, match="has not read all messages of traces"):
        backfill.check_range(tmp_path, TRACE, NOW_MS)
    status = pipeline_status.SourceStatus("traces", NOW_MS, 1, 1, 0, None, caught_up_ms=caught_up_ms)
    pipeline_status.write_status(tmp_path, status)
    with pytest.raises(ConfigError, match="has not read all messages of traces"):
        backfill.check_range(tmp_path, TRACE, NOW_MS)
    if caught_up_ms is not None:
        backfill.check_range(tmp_path, TRACE, caught_up_ms)
