"""Reading in micro-batches: which entries the next one has. [KafkaMicroBatchStream]

    Spark asks        initialOffset() → latestOffset(start, limit) → reportLatestOffset() → partitions(start, end) → tasks
    with the answers  {"initial": …}    {"from": …, "to": …}         {"ends": …}            from → to of `end` alone

Topics, queues and brokers are looked up for each micro-batch: what appears is read from its beginning, what is away keeps its
position. Spark does not keep the initial offset and asks for it again, and its commit() comes late and never for the last
batch; neither matters here, as every end carries its start, and Spark asks for what follows `start` only when the batch
before has been finished: that is when the group's offsets are committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ariane.errors import RouteNotFound
from ariane.model.message import MessageQueue
from ariane.spark.read import offset_ranges, pull_client, read_task
from ariane.spark.read import queue_bounds as queue_ends
from ariane.spark.read.group_offsets import GroupOffsets
from ariane.spark.read.offset_ranges import Positions, ReadLimits
from ariane.spark.read.partitions import QueuePartition, begin_of, pieces, read_partition
from ariane.spark.read.queue_bounds import QueueBounds
from ariane.spark.read.source_options import SourceOptions, refuse_batch_options
from ariane.spark.reporting import message_only, readable

log = logging.getLogger("ariane.spark")

UNKNOWN = "no name server knows it"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of one query."""

    def __init__(
        self, options: SourceOptions, columns: list[str], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        refuse_batch_options(options)
        self._options = options
        self._columns = columns
        self._monotonic = monotonic
        self._initial: dict[str, Any] | None = None
        self._at_stop: QueueBounds | None = None  # AvailableNow: the ends when it began
        self._seen: Positions = {}  # the ends that were told last, of the queues that were told
        self._away: dict[str, str] = {}  # who did not answer when asked last, and why
        self._gone: set[str] = set()  # topics that were read, and that are not there any more
        self._group = GroupOffsets(options.group_id)
        self._planned_s = monotonic()  # when a batch was planned last

    @readable
    def initialOffset(self) -> dict[str, Any]:
        # Spark asks again in the first batch: the answer has to be the same.
        if self._initial is None:
            cluster, queues = self._waited()
            ends = queue_ends.measured(cluster, queues)
            self._initial = offset_ranges.initial(begin_of(cluster, self._options, queues, ends))
        return self._initial

    @readable
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if self._options.commit_offsets and "to" in start:
            self._commit(offset_ranges.reached(start))
        reached = offset_ranges.reached(start)
        first, last, by_slave = (
            self._ends(reached) if self._at_stop is None else self._ends_at_stop(self._at_stop, reached)
        )
        # A slave lags: an end behind what was read is no loss when a slave told it.
        last = {**last, **{queue: at for queue, at in reached.items() if queue in by_slave and last[queue] < at}}
        for loss in offset_ranges.losses(start, first, last):
            if self._options.fail_on_data_loss:
                raise read_task.DataLoss(f"{loss}; set failOnDataLoss to false to go on at {loss.resume}")
            log.warning("%s; going on at %d", loss, loss.resume)
        self._seen = last
        if self._is_too_little(offset_ranges.waiting(start, first, last), limit):
            return start
        self._planned_s = self._monotonic()
        return offset_ranges.advance(start, first, last, self._limits(start, first, last, limit))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark knows one limit at a time; with any of them all options count (`_limits`)."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What there is to read: with the end of a batch it tells the lag (`progress.lags`); and what is away."""
        ends = {"ends": offset_ranges.positions_to_json(self._seen)} if self._seen else {}
        return {**ends, **({"away": self._away} if self._away else {})} or None

    @readable
    def prepareForTriggerAvailableNow(self) -> None:
        cluster, queues = self._waited()
        self._at_stop = queue_ends.measured(cluster, queues)

    @readable
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[QueuePartition]:
        return [QueuePartition(part) for part in pieces(offset_ranges.planned(end), self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with message_only():
            yield from read_partition(partition, self._options, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: offsets live in the checkpoint, and those for others to see are committed earlier than this comes."""

    def _waited(self) -> tuple[pull_client.BlockingCluster, list[MessageQueue]]:
        """The queues there are; absent servers are waited for."""
        cluster = pull_client.cluster(self._options)
        chosen = cluster.retry("topics", queue_ends.topics, cluster, self._options)
        return cluster, cluster.retry("routes", cluster.queues, *chosen)

    def _ends(self, reached: Positions) -> QueueBounds:
        """The ends of all queues that can be asked now. What cannot be keeps its positions, and the next micro-batch asks again."""
        cluster = pull_client.cluster(self._options)
        try:
            queues = cluster.queues(*queue_ends.topics(cluster, self._options))
            missing = sorted(reached.keys() - set(queues))
            brokers = cluster.brokers().broker_addr_table if missing else {}
        except pull_client.AWAY as error:
            pull_client.raise_unless_passing(error)
            self._tell({**self._away, "every name server": str(error)})
            return QueueBounds({}, {})
        ends, away = queue_ends.measured_now(cluster, queues)
        dropped = {queue.broker: UNKNOWN for queue in missing if queue.broker not in brokers}
        self._tell({**away, **dropped, **_masters_away(ends)})
        return self._with_gone(ends, {queue: reached[queue] for queue in missing if queue.broker in brokers})

    def _ends_at_stop(self, at_stop: QueueBounds, reached: Positions) -> QueueBounds:
        """The ends when AvailableNow began. Brokers that were read from, and that name servers have dropped, are waited for."""
        missing = sorted(reached.keys() - at_stop.last.keys())
        if missing:
            cluster = pull_client.cluster(self._options)
            cluster.retry("what was read before", _refuse_dropped, cluster, missing)
            ends = queue_ends.measured(cluster, sorted({*self._waited()[1]} & {*missing}))
            both = QueueBounds(
                {**at_stop.first, **ends.first}, {**at_stop.last, **ends.last}, at_stop.by_slave | ends.by_slave
            )
            at_stop = self._with_gone(both, {queue: reached[queue] for queue in missing if queue not in ends.last})
            self._at_stop = at_stop
        self._tell(_masters_away(at_stop))
        return at_stop

    def _with_gone(self, ends: QueueBounds, gone: Positions) -> QueueBounds:
        """With queues that brokers do not have any more, or that are not chosen any more: nothing is left of them."""
        for topic in sorted({queue.topic for queue in gone} - self._gone):
            log.warning("queues of %s are not there any more: what was not read of them is not known", topic)
        self._gone = {queue.topic for queue in gone}
        return ends._replace(first={**ends.first, **gone}, last={**ends.last, **gone}) if gone else ends

    def _tell(self, away: dict[str, str]) -> None:
        """Say who has gone away and who is back, once each."""
        for name in sorted(away.keys() - self._away.keys()):
            log.warning("%s is away: %s", name, away[name])
        for name in sorted(self._away.keys() - away.keys()):
            log.warning("%s is back", name)
        self._away = away

    def _is_too_little(self, waiting: Positions, limit: ReadLimit) -> bool:
        """Whether to wait for more. With AvailableNow no more will come."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._at_stop is not None or isinstance(limit, ReadAllAvailable):
            return False
        is_late = self._monotonic() - self._planned_s >= self._options.max_trigger_delay / 1000
        return sum(waiting.values()) < least and not is_late

    def _limits(self, start: dict[str, Any], first: Positions, last: Positions, limit: ReadLimit) -> ReadLimits:
        if isinstance(limit, ReadAllAvailable):
            return ReadLimits()
        options = self._options
        if options.max_bytes_per_trigger is None:
            return ReadLimits(options.max_offsets_per_trigger)
        begin = {**first, **offset_ranges.reached(start)}
        at = {queue: begin[queue] for queue in offset_ranges.waiting(start, first, last)}
        sizes = queue_ends.sizes(pull_client.cluster(options), at) if at else {}
        return ReadLimits(options.max_offsets_per_trigger, options.max_bytes_per_trigger, sizes)

    def _commit(self, reached: Positions) -> None:
        """Tell the brokers how far the query is. What fails is tried with the next batch, and fails no query."""
        for queue, error in self._group.commit(pull_client.cluster(self._options), reached).items():
            log.warning("%s: offset %d is not committed: %s", offset_ranges.named(queue), reached[queue], error)


def _masters_away(ends: QueueBounds) -> dict[str, str]:
    return {f"the master of {queue.broker}": "a slave answers, and may lack the newest" for queue in ends.by_slave}


def _refuse_dropped(cluster: pull_client.BlockingCluster, queues: Sequence[MessageQueue]) -> None:
    """RouteNotFound when no name server knows the broker of one of the queues."""
    brokers = cluster.brokers().broker_addr_table
    for queue in queues:
        if queue.broker not in brokers:
            raise RouteNotFound(queue.topic, f"{queue.broker} was read from, and {UNKNOWN}")
