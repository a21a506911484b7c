"""Batch reader: plans the queue ranges between the starting and ending offsets or times, reduced by pushed filters.

select topics → fetch queue bounds → resolve start and end → apply filters → split into tasks
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ariane.errors import ConfigError, RouteNotFound
from ariane.model.message import MessageQueue
from ariane.spark.read import offset_ranges, pull_client, pushdown
from ariane.spark.read import queue_bounds as queue_ends
from ariane.spark.read.offset_ranges import DataLoss, Positions
from ariane.spark.read.partitions import QueuePartition, read_partition
from ariane.spark.read.planning import reject_unknown_queues, split_for_tasks, start_positions
from ariane.spark.read.queue_bounds import QueueBounds
from ariane.spark.read.source_options import SourceOptions, listed_topics, reject_stream_options, time_for_queue
from ariane.spark.reporting import hide_traceback, message_only
from ariane.spark.values.value_columns import ValueColumns

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

log = logging.getLogger("ariane.spark")


class BatchReader(DataSourceReader):
    """Reads once what is stored between the starting and ending offsets or times."""

    def __init__(self, options: SourceOptions, columns: list[str], values: ValueColumns | None = None) -> None:
        reject_stream_options(options)
        self._options = options
        self._columns = columns
        self._values = values
        self._filters = pushdown.PushedFilters()

    @hide_traceback
    def partitions(self) -> list[QueuePartition]:
        options = self._options
        cluster = pull_client.shared_cluster(options)
        chosen = cluster.retry("topics", queue_ends.select_topics, cluster, options)
        queues = cluster.retry(f"routes of {', '.join(chosen[:3])}", cluster.queues, *chosen) if chosen else []
        missing = sorted(set(listed_topics(options)) - {queue.topic for queue in queues})
        if missing:
            raise RouteNotFound(missing[0], f"not found on any of {', '.join(options.namesrv)}")
        if not chosen:
            log.warning("topicsPattern %r matches no topic: the batch has no rows", options.topics_pattern)
        self._reject_unknown_queues(queues)
        ends = queue_ends.fetch_bounds(cluster, [queue for queue in queues if self._filters.matches(queue)])
        if ends.from_slaves:
            log.warning(
                "Reading %d queues from slaves: messages that are not replicated yet are not read",
                len(ends.from_slaves),
            )
        begin = start_positions(cluster, options, queues, ends)
        end = self._end_positions(cluster, ends)
        self._check_bounds(begin, end, ends)
        parts = offset_ranges.ranges_between(begin, end)
        parts = [part for part in self._apply_filters(cluster, parts) if part.start < part.end]
        return [QueuePartition(part, by_time=True) for part in split_for_tasks(parts, options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with message_only():
            yield from read_partition(partition, self._options, self._columns, self._values)

    def _reject_unknown_queues(self, queues: list[MessageQueue]) -> None:
        """Raise ConfigError if an option names a queue that does not exist. (A stream waits for such a queue, a batch cannot.)"""
        options = self._options
        for name, positions in (
            ("startingOffsets", options.starting_offsets),
            ("startingTimestamp", options.starting_timestamp),
            ("endingOffsets", options.ending_offsets),
            ("endingTimestamp", options.ending_timestamp),
        ):
            reject_unknown_queues(name, positions, queues)
            topics = {queue.topic for queue in positions} if isinstance(positions, dict) else set()
            if missing := sorted(topics - {queue.topic for queue in queues}):
                raise ConfigError(name, missing[0], "no such topic: remove it from the option, or create it")

    def _check_bounds(self, begin: Positions, end: Positions, bounds: QueueBounds) -> None:
        """Compare the offsets that options name with the offsets that the queues hold.

        Raises:
            ConfigError: a queue ends before it starts.
            DataLoss: requested offsets are not available, and failOnDataLoss is true.
        """
        options = self._options
        # Only offsets that an option names are compared: those of `earliest` and `latest` come from the queues
        # themselves.
        starting, ending = options.starting_offsets, options.ending_offsets
        low = {queue: begin[queue] for queue in bounds.end if isinstance(starting, dict) and queue in starting}
        high = {queue: end[queue] for queue in bounds.end if isinstance(ending, dict) and queue in ending}
        for fault in offset_ranges.find_out_of_range(low, high, bounds.first, bounds.end):
            if options.fail_on_data_loss:
                slave = "" if not bounds.from_slaves else " (read from slaves, which may lack the newest messages)"
                raise DataLoss(f"{fault}{slave}; set failOnDataLoss to false to read the available offsets")
            log.warning("%s; reading the available offsets", fault)
        for queue in sorted(high):
            if (queue in low or starting == "latest") and high[queue] < begin[queue]:
                reason = f"{offset_ranges.describe_queue(queue)}: ends before its start, {begin[queue]}"
                raise ConfigError("endingOffsets", high[queue], reason)

    def _end_positions(self, cluster: pull_client.BlockingCluster, bounds: QueueBounds) -> Positions:
        """Return the end offset of each queue in `bounds`; queues that no option names are read to their end."""
        options = self._options
        if options.ending_timestamp is not None:
            times = {queue: time_for_queue(options.ending_timestamp, queue) for queue in bounds.end}
            return {**bounds.end, **queue_ends.find_offsets_by_time(cluster, _without_none(times), bounds)}
        ending_offsets = options.ending_offsets
        until = offset_ranges.resolve_offsets(ending_offsets, bounds.first, bounds.end)
        named = ending_offsets if isinstance(ending_offsets, dict) else {}
        return {queue: until[queue] if queue in named else last for queue, last in bounds.end.items()}

    def _apply_filters(
        self, cluster: pull_client.BlockingCluster, parts: list[offset_ranges.OffsetRange]
    ) -> list[offset_ranges.OffsetRange]:
        """Return the ranges reduced to what the pushed filters can match."""
        filters = self._filters
        # Offsets before times: a time costs a look-up at the broker for each queue.
        cut = [filters.clip(part) for part in parts]
        cut = [part for part in cut if part.start < part.end]
        bounds = QueueBounds({part.queue: part.start for part in cut}, {part.queue: part.end for part in cut})
        first, last = bounds.first, bounds.end
        if filters.first_ms is not None:
            first = queue_ends.find_offsets_by_time(cluster, dict.fromkeys(first, filters.first_ms), bounds)
        if filters.end_ms is not None:
            last = queue_ends.find_offsets_by_time(cluster, dict.fromkeys(last, filters.end_ms), bounds)
        return [offset_ranges.OffsetRange(part.queue, first[part.queue], last[part.queue]) for part in cut]


class FilteredReader(BatchReader):
    """A batch reader that accepts pushed filters. Spark applies those that it gets back, which may exclude more rows."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._filters = pushdown.parse_filters(filters)
        return [filter_ for filter_ in filters if not pushdown.is_exact(filter_)]


def _without_none(times: Mapping[MessageQueue, int | None]) -> dict[MessageQueue, int]:
    return {queue: ms for queue, ms in times.items() if ms is not None}
