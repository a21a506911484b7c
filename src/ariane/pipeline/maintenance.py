"""Maintenance of tables: expired rows are removed, small files merged, and replaced files deleted.

The running pipeline does it once a minute (`JobRunner`). `ariane pipeline maintain` does it for tables without a running pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ariane.pipeline.jobs import PipelineJob
from ariane.pipeline.publishing import table_publisher
from ariane.tables import TableSchema
from ariane.tables.table_home import Home
from ariane.tables.table_store import read_version
from ariane.tables.time_buckets import bucket_of_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000


class TableSize(NamedTuple):
    """Size of a table: its rows and files, and the replaced files that are still on disk."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    retired_files: int = 0


class Maintained(NamedTuple):
    """A table before and after its maintenance."""

    table: TableSchema
    before: TableSize
    after: TableSize


def maintain(spark: SparkSession, home: Home, job: PipelineJob, keep_days: int, now_ms: int) -> list[Maintained]:
    """Expire, compact and clean the tables of a job. The caller holds their locks (`lock_tables`)."""
    first_bucket = bucket_of_time(now_ms - keep_days * DAY_MS)
    before = [table_size(home, table) for table in job.tables]
    for table in job.tables:
        # Expired files first: they need no merge.
        table_publisher.expire(home, table, first_bucket, now_ms)
        table_publisher.compact(spark, home, table, now_ms)
    for incremental_table in job.incremental_tables:
        if incremental_table.maintain is not None:
            incremental_table.maintain(spark, home, now_ms)
    for table in job.tables:
        table_publisher.remove_retired(home, table, now_ms)
    return [Maintained(table, size, table_size(home, table)) for table, size in zip(job.tables, before, strict=True)]


def table_size(home: Home, table: TableSchema) -> TableSize:
    version = read_version(home, table)
    if version is None:
        return TableSize()
    return TableSize(version.rows, len(version.files), sum(file.bytes for file in version.files), len(version.retired))
