"""Partitions of the source, for batches and micro-batches alike: where reading begins, and the ranges of the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ariane.errors import ConfigError
from ariane.model.message import MessageQueue
from ariane.spark.read import offset_ranges, pull_client, read_task
from ariane.spark.read import queue_bounds as queue_ends
from ariane.spark.read.offset_ranges import OffsetRange, Positions
from ariane.spark.read.queue_bounds import QueueBounds
from ariane.spark.read.source_options import SourceOptions, Times, time_of


class QueuePartition(InputPartition):
    """A range of one queue: one task."""

    def __init__(self, part: OffsetRange, *, by_time: bool = False) -> None:
        super().__init__(part)
        self.part = part
        self.by_time = by_time


def read_partition(partition: InputPartition, options: SourceOptions, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a task. Spark makes one task of its own when there is nothing to read: it has none."""
    if isinstance(partition, QueuePartition):
        cluster = pull_client.cluster(options)
        yield from read_task.read_range(cluster, partition.part, options, columns, by_time=partition.by_time)


def pieces(parts: list[OffsetRange], options: SourceOptions) -> list[OffsetRange]:
    """The ranges of the tasks."""
    return offset_ranges.split(parts, options.min_partitions, options.max_records_per_partition)


def begin_of(
    cluster: pull_client.BlockingCluster, options: SourceOptions, queues: Sequence[MessageQueue], ends: QueueBounds
) -> Positions:
    """Where to begin, of the queues in `ends` and those that an option names."""
    if options.starting_timestamp is not None:
        refuse_unknown("startingTimestamp", options.starting_timestamp, queues)
        times = {queue: time_of(options.starting_timestamp, queue) for queue in ends.first}
        said = {queue: ms for queue, ms in times.items() if ms is not None}
        return {**ends.first, **queue_ends.first_at(cluster, said, ends)}
    refuse_unknown("startingOffsets", options.starting_offsets, queues)
    return offset_ranges.asked(options.starting_offsets, ends.first, ends.last)


def refuse_unknown(option: str, wanted: str | Positions | Times | None, queues: Sequence[MessageQueue]) -> None:
    """ConfigError when an option names a queue that an existing topic does not have."""
    if not isinstance(wanted, dict):
        return
    existing = {queue.topic for queue in queues}
    for strange in sorted(set(wanted) - set(queues)):
        if strange.topic in existing:
            there = ", ".join(f"{one.broker} {one.queue_id}" for one in sorted(queues) if one.topic == strange.topic)
            raise ConfigError(option, offset_ranges.named(strange), f"no such queue; the topic has {there}")
