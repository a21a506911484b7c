"""Partitions of a log, shared by batches and micro-batches: each is a part of one file, read by one task."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ariane.spark.store import log_task
from ariane.spark.store.commit_log import LogDamage, StoredLog
from ariane.spark.store.log_task import LogRange
from ariane.spark.store.store_options import StoreOptions


class LogPartition(InputPartition):
    """A part of the log, read by one task. `file_size` is the size of the log's files."""

    def __init__(self, log_range: LogRange | LogDamage, file_size: int) -> None:
        super().__init__(log_range)
        self.log_range = log_range
        self.file_size = file_size


def plan_partitions(stored_log: StoredLog, begin: int, end: int, options: StoreOptions) -> list[InputPartition]:
    parts = log_task.plan_ranges(stored_log, begin, end, options.max_partition_bytes)
    return [LogPartition(part, stored_log.file_size) for part in parts]


def read_partition(partition: InputPartition, options: StoreOptions, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task. Spark runs one task with a partition of its own if there is nothing to read: it has no rows."""
    if isinstance(partition, LogPartition):
        yield from log_task.read_rows(partition.log_range, options, columns, partition.file_size)
