"""Partitions of the source, shared by batches and micro-batches: starting positions, and the ranges of the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ariane.errors import ConfigError
from ariane.model.message import MessageQueue
from ariane.spark.read import offset_ranges, pull_client
from ariane.spark.read import queue_bounds as queue_ends
from ariane.spark.read.offset_ranges import OffsetRange, Positions
from ariane.spark.read.queue_bounds import QueueBounds
from ariane.spark.read.source_options import SourceOptions, TimeOption, time_for_queue
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


def split_for_tasks(offset_ranges_to_read: list[OffsetRange], options: SourceOptions) -> list[OffsetRange]:
    """Split ranges as minPartitions and maxRecordsPerPartition require."""
    return offset_ranges.split_ranges(offset_ranges_to_read, options.min_partitions, options.max_records_per_partition)


def start_positions(
    cluster: pull_client.BlockingCluster, options: SourceOptions, queues: Sequence[MessageQueue], bounds: QueueBounds
) -> Positions:
    """Return the starting position of the queues in `bounds` and of those that an option names."""
    if options.starting_timestamp is not None:
        reject_unknown_queues("startingTimestamp", options.starting_timestamp, queues)
        times = {queue: time_for_queue(options.starting_timestamp, queue) for queue in bounds.first}
        timestamps = {queue: ms for queue, ms in times.items() if ms is not None}
        return {**bounds.first, **queue_ends.find_offsets_by_time(cluster, timestamps, bounds)}
    reject_unknown_queues("startingOffsets", options.starting_offsets, queues)
    return offset_ranges.resolve_offsets(options.starting_offsets, bounds.first, bounds.end)


def reject_unknown_queues(
    option: str, positions: str | Positions | TimeOption | None, queues: Sequence[MessageQueue]
) -> None:
    """Raise ConfigError if an option names a queue that an existing topic does not have."""
    if not isinstance(positions, dict):
        return
    topics = {queue.topic for queue in queues}
    # Unknown topics are left to the caller: a stream may wait for them, a batch may not.
    for queue in sorted(set(positions) - set(queues)):
        if queue.topic in topics:
            existing_queues = ", ".join(
                f"{existing.broker} {existing.queue_id}" for existing in sorted(queues) if existing.topic == queue.topic
            )
            raise ConfigError(
                option, offset_ranges.describe_queue(queue), f"no such queue; the topic has {existing_queues}"
            )
