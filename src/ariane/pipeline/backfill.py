"""Backfill: messages of a time range are read again, and the rows that the tables lack are added.

    topics, by store time ─ TopicSource ─→ rows, except those that the table has ─→ base tables ─ rebuild_changed ─→ computed tables

Rows are compared by what identifies a record (IDENTITIES), so a backfill that is repeated, or was interrupted, adds no row twice.
Messages that the pipeline has yet to read would be added twice: the range must end before the time up to which it has read all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from ariane.errors import ConfigError
from ariane.pipeline.jobs import PipelineJob, TopicSource
from ariane.pipeline.publishing import decoded_batches, incremental, table_publisher
from ariane.reports.tables.pipeline_status import read_statuses
from ariane.tables import TableSchema
from ariane.tables.table_format import BUCKET, TableVersion
from ariane.tables.table_home import Home
from ariane.tables.table_store import read_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SAMPLE = ("collector", "sampled_at", "broker", "broker_id")
_TRACE_RECORD = ("trace_broker", "trace_queue_id", "trace_queue_offset", "record_index")
# Columns that identify a row of an appended table.
IDENTITIES: Mapping[str, tuple[str, ...]] = {
    "trace_events": (*_TRACE_RECORD, "message_id"),
    "trace_rejects": _TRACE_RECORD,
    "messages": ("broker", "commit_log_offset"),
    "record_positions": ("broker", "topic", "queue_offset", "kind", "stored_at"),
    "samples_brokers": _SAMPLE,
    "samples_queues": (*_SAMPLE, "topic", "consumer_group", "queue_id"),
    "samples_counters": (*_SAMPLE, "statistic", "topic", "consumer_group"),
    "samples_rejects": ("broker", "queue_id", "queue_offset"),
}


class BackfilledTable(NamedTuple):
    """Rows of a table in the time range.

    Attributes:
        table: Table.
        rows: Rows that the messages of the range have.
        missing: Those that the table lacked.
    """

    table: TableSchema
    rows: int
    missing: int


def check_range(home: Home, job: PipelineJob, until_ms: int) -> None:
    """Check that the pipeline has read everything that was stored before the end of a range.

    Raises:
        ConfigError: a source of the job has not, or was never read.
    """
    statuses = read_statuses(home)
    for source in job.sources:
        status = statuses.get(source.name)
        if status is None or status.caught_up_ms is None or status.caught_up_ms < until_ms:
            fix = f"the pipeline has not read all messages of {source.name} up to then: run `ariane pipeline run --once` first"
            raise ConfigError("to", until_ms, fix)


def read_range(
    spark: SparkSession, options: Mapping[str, str], since_ms: int, until_ms: int
) -> Callable[[TopicSource], DataFrame]:
    """Return a function that reads the messages of a source that brokers stored in a time range."""
    times = {"startingTimestamp": str(since_ms), "endingTimestamp": str(until_ms)}

    def read(source: TopicSource) -> DataFrame:
        from ariane.spark import RocketMQSource

        spark.dataSource.register(RocketMQSource)
        reader = spark.read.format(RocketMQSource.name()).schema(source.schema)
        return reader.options(**{**source.options, **options, **times}).load()

    return read


def backfill(
    spark: SparkSession,
    home: Home,
    job: PipelineJob,
    read: Callable[[TopicSource], DataFrame],
    now_ms: int,
    *,
    is_dry_run: bool = False,
) -> list[BackfilledTable]:
    """Add the rows that the tables of a job lack, and rebuild the buckets that they change.

    The caller holds the locks of the tables (`lock_tables`).

    Args:
        read: Returns the messages of a source in the range.
        is_dry_run: Only count the rows.
    """
    results = []
    for source in job.sources:
        messages = read(source).persist()
        try:
            for table in source.tables:
                rows = decoded_batches.rows_of_table(messages, source.decode, table)
                results.append(_add_missing(spark, home, table, rows, now_ms, is_dry_run=is_dry_run))
        finally:
            messages.unpersist()
    if not is_dry_run:
        for incremental_table in job.incremental_tables:
            incremental.rebuild_changed(spark, home, incremental_table, now_ms)
    return results


def _add_missing(
    spark: SparkSession, home: Home, table: TableSchema, rows: DataFrame, now_ms: int, *, is_dry_run: bool
) -> BackfilledTable:
    identity = IDENTITIES[table.name]
    once = rows.dropDuplicates([*identity]).persist()
    try:
        counts = {row[BUCKET]: row["count"] for row in once.groupBy(BUCKET).count().collect()}
        present = table_publisher.read_table(spark, home, table, lambda file: file.bucket in counts)
        stored = present.select(*(present[name].alias(f"known_{name}") for name in identity))
        # Null is a value here, as in the group of a queue itself.
        is_same = reduce(
            lambda condition, other: condition & other,
            (once[name].eqNullSafe(stored[f"known_{name}"]) for name in identity),
        )
        missing = once.join(stored, is_same, "left_anti").persist()
        try:
            count = missing.count()
            if count and not is_dry_run:
                former = read_version(home, table) or TableVersion.initial(table, now_ms)
                change = table_publisher.TableChange(frame=missing, applied=former.applied)
                table_publisher.commit(home, table, change, now_ms)
        finally:
            missing.unpersist()
    finally:
        once.unpersist()
    return BackfilledTable(table, sum(counts.values()), count)
