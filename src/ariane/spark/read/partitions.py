"""Partitions of the source: the ranges that tasks read, for batches and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ariane.spark.read import pull_client
from ariane.spark.read.offset_ranges import OffsetRange
from ariane.spark.read.source_options import SourceOptions
from ariane.spark.values.value_columns import ValueColumns


class QueuePartition(InputPartition):
    """A range of one queue, read by one task."""

    def __init__(self, offset_range: OffsetRange, *, by_time: bool = False) -> None:
        super().__init__(offset_range)
        self.offset_range = offset_range
        self.by_time = by_time


def read_partition(
    partition: InputPartition, options: SourceOptions, columns: list[str], values: ValueColumns | None = None
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a task. Spark runs one task with a partition of its own if there is nothing to read: it has no rows.

    Args:
        columns: Columns to decode from records.
        values: Columns to compute from bodies, if any.
    """
    if isinstance(partition, QueuePartition):
        # Not for planners and the process of a stream, which starts with each query: the decoder's imports take half of its time.
        from ariane.spark.read import read_task

        cluster = pull_client.shared_cluster(options)
        rows = read_task.read_range(cluster, partition.offset_range, options, columns, by_time=partition.by_time)
        yield from rows if values is None else values.complete(rows)
