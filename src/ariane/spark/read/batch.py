"""Batch reads: what is between the starting and the ending offsets or times, less what filters leave out."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ariane.errors import ConfigError, RouteNotFound
from ariane.model.message import MessageQueue
from ariane.spark.read import offset_ranges, pull_client, pushdown
from ariane.spark.read import queue_bounds as queue_ends
from ariane.spark.read.offset_ranges import Positions
from ariane.spark.read.partitions import QueuePartition, begin_of, pieces, read_partition, refuse_unknown
from ariane.spark.read.queue_bounds import QueueBounds
from ariane.spark.read.read_task import DataLoss
from ariane.spark.read.source_options import SourceOptions, listed_topics, refuse_stream_options, time_of
from ariane.spark.reporting import message_only, readable

log = logging.getLogger("ariane.spark")


class BatchReader(DataSourceReader):
    """What is between the starting and ending offsets or times."""

    def __init__(self, options: SourceOptions, columns: list[str]) -> None:
        refuse_stream_options(options)
        self._options = options
        self._columns = columns
        self._wanted = pushdown.PushedFilters()

    @readable
    def partitions(self) -> list[QueuePartition]:
        options = self._options
        cluster = pull_client.cluster(options)
        chosen = cluster.retry("topics", queue_ends.topics, cluster, options)
        queues = cluster.retry(f"routes of {', '.join(chosen[:3])}", cluster.queues, *chosen) if chosen else []
        missing = sorted(set(listed_topics(options)) - {queue.topic for queue in queues})
        if missing:
            raise RouteNotFound(missing[0], f"none of {', '.join(options.namesrv)} knows it")
        if not chosen:
            log.warning("topicsPattern %r matches no topic: the batch has no rows", options.topics_pattern)
        self._refuse_unknown(queues)
        ends = queue_ends.measured(cluster, [queue for queue in queues if self._wanted.has(queue)])
        if ends.by_slave:
            log.warning("slaves answered for %d queues: what they have not copied yet is not read", len(ends.by_slave))
        begin = begin_of(cluster, options, queues, ends)
        end = self._end_of(cluster, ends)
        self._check_held(begin, end, ends)
        parts = offset_ranges.ranges(begin, end)
        parts = [part for part in self._cut(cluster, parts) if part.start < part.end]
        return [QueuePartition(part, by_time=True) for part in pieces(parts, options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with message_only():
            yield from read_partition(partition, self._options, self._columns)

    def _refuse_unknown(self, queues: list[MessageQueue]) -> None:
        """Raise ConfigError when an option names a queue that is not read. A stream waits for it, a batch cannot."""
        options = self._options
        for name, wanted in (
            ("startingOffsets", options.starting_offsets),
            ("startingTimestamp", options.starting_timestamp),
            ("endingOffsets", options.ending_offsets),
            ("endingTimestamp", options.ending_timestamp),
        ):
            refuse_unknown(name, wanted, queues)
            topics = {queue.topic for queue in wanted} if isinstance(wanted, dict) else set()
            if missing := sorted(topics - {queue.topic for queue in queues}):
                raise ConfigError(name, missing[0], "no such topic: leave it out, or create it")

    def _check_held(self, begin: Positions, end: Positions, ends: QueueBounds) -> None:
        """Compare what the options name with what the queues hold.

        Raises:
            ConfigError: a queue ends before it starts.
            DataLoss: offsets that were asked for are not there, and failOnDataLoss is true.
        """
        options = self._options
        starting, ending = options.starting_offsets, options.ending_offsets
        low = {queue: begin[queue] for queue in ends.last if isinstance(starting, dict) and queue in starting}
        high = {queue: end[queue] for queue in ends.last if isinstance(ending, dict) and queue in ending}
        for fault in offset_ranges.unreadable(low, high, ends.first, ends.last):
            if options.fail_on_data_loss:
                slave = "" if not ends.by_slave else " (slaves answered, and may lack the newest messages)"
                raise DataLoss(f"{fault}{slave}; set failOnDataLoss to false to read what there is")
            log.warning("%s; reading what there is", fault)
        for queue in sorted(high):
            if (queue in low or starting == "latest") and high[queue] < begin[queue]:
                why = f"{offset_ranges.named(queue)}: lies before the start, {begin[queue]}"
                raise ConfigError("endingOffsets", high[queue], why)

    def _end_of(self, cluster: pull_client.BlockingCluster, ends: QueueBounds) -> Positions:
        """Where to stop, of the queues in `ends`; those that an option does not name are read to their last."""
        options = self._options
        if options.ending_timestamp is not None:
            times = {queue: time_of(options.ending_timestamp, queue) for queue in ends.last}
            return {**ends.last, **queue_ends.first_at(cluster, _said(times), ends)}
        wanted = options.ending_offsets
        until = offset_ranges.asked(wanted, ends.first, ends.last)
        named = wanted if isinstance(wanted, dict) else {}
        return {queue: until[queue] if queue in named else last for queue, last in ends.last.items()}

    def _cut(
        self, cluster: pull_client.BlockingCluster, parts: list[offset_ranges.OffsetRange]
    ) -> list[offset_ranges.OffsetRange]:
        """What pushed filters leave of the ranges."""
        wanted = self._wanted
        cut = [wanted.cut(part) for part in parts]
        cut = [part for part in cut if part.start < part.end]
        within = QueueBounds({part.queue: part.start for part in cut}, {part.queue: part.end for part in cut})
        first, last = within.first, within.last
        if wanted.first_ms is not None:
            first = queue_ends.first_at(cluster, dict.fromkeys(first, wanted.first_ms), within)
        if wanted.end_ms is not None:
            last = queue_ends.first_at(cluster, dict.fromkeys(last, wanted.end_ms), within)
        return [offset_ranges.OffsetRange(part.queue, first[part.queue], last[part.queue]) for part in cut]


class FilteredReader(BatchReader):
    """The same, for sessions that push filters down. Spark applies all of them again."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._wanted = pushdown.wanted(filters)
        return filters


def _said(times: Mapping[MessageQueue, int | None]) -> dict[MessageQueue, int]:
    return {queue: ms for queue, ms in times.items() if ms is not None}
