"""Steps of planning that batches and micro-batches share: starting positions, and the ranges of the tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ariane.errors import ConfigError
from ariane.model.message import MessageQueue
from ariane.spark.read import offset_ranges, pull_client
from ariane.spark.read import queue_bounds as queue_ends
from ariane.spark.read.offset_ranges import OffsetRange, Positions
from ariane.spark.read.queue_bounds import QueueBounds
from ariane.spark.read.source_options import SourceOptions, TimeOption, time_for_queue

if TYPE_CHECKING:
    from ariane.spark.read.partitions import QueuePartition


def split_for_tasks(offset_ranges_to_read: list[OffsetRange], options: SourceOptions) -> list[OffsetRange]:
    """Split ranges as minPartitions and maxRecordsPerPartition require."""
    return offset_ranges.split_ranges(offset_ranges_to_read, options.min_partitions, options.max_records_per_partition)


def queue_partition(offset_range: OffsetRange) -> QueuePartition:
    """Return the partition of a stream's task. Called by tasks that unpickle what `planner_process` has planned."""
    from ariane.spark.read.partitions import QueuePartition

    return QueuePartition(offset_range)


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
