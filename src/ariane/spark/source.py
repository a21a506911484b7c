"""`spark.read.format("rocketmq")` and `spark.readStream.format("rocketmq")`: a topic as rows, one partition per queue.

    spark.dataSource.register(RocketMQSource)
    spark.readStream.format("rocketmq").option("namesrv", "127.0.0.1:9876").option("topic", "T").load()

Exactly once by the checkpoint alone: the offsets of a batch stand in it before the batch runs, with their start, so a replay
reads the same rows (`offsets`). A schema given by the user (`.schema("body BINARY")`) leaves the other columns undecoded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ariane.errors import ConfigError, RouteNotFound
from ariane.model.message import MessageQueue
from ariane.spark import decode, offsets, pull, reading
from ariane.spark.offsets import Positions, Range
from ariane.spark.options import SourceOptions, parse

log = logging.getLogger("ariane.spark")


class Ends(NamedTuple):
    """First and last offsets of the queues that could be asked, and those of them for which a slave answered."""

    first: Positions
    last: Positions
    by_slave: frozenset[MessageQueue] = frozenset()


class QueuePartition(InputPartition):
    """A range of one queue: one task."""

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self.part = part


class RocketMQSource(DataSource):
    """The source as Spark registers it."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        return decode.DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(parse(self.options), _columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(parse(self.options), _columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from ariane.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from ariane.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


class BatchReader(DataSourceReader):
    """What is between startingOffsets and endingOffsets."""

    def __init__(self, options: SourceOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        options = self._options
        cluster = pull.cluster(options)
        queues = cluster.retry(f"route of {options.topic}", cluster.queues)
        if not queues:
            raise RouteNotFound(options.topic, f"none of {', '.join(options.namesrv)} knows it")
        first = {
            queue: cluster.retry(f"start of {offsets.named(queue)}", cluster.min_offset, queue) for queue in queues
        }
        last = {queue: cluster.retry(f"end of {offsets.named(queue)}", cluster.max_offset, queue) for queue in queues}
        begin = _asked("startingOffsets", options.starting_offsets, first, last)
        until = _asked("endingOffsets", options.ending_offsets, first, last)
        named = options.ending_offsets if isinstance(options.ending_offsets, dict) else {}
        end = {**last, **{queue: until[queue] for queue in named}}
        return [QueuePartition(part) for part in offsets.ranges(begin, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._columns)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches. New queues and brokers are found with each; one that is away is waited for."""

    def __init__(self, options: SourceOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns
        self._initial: dict[str, Any] | None = None
        self._at_stop: Ends | None = None  # AvailableNow: the ends when it began

    def initialOffset(self) -> dict[str, Any]:
        # Spark asks again in the first batch: the answer has to be the same.
        if self._initial is None:
            first, last, _ = self._ends(wait=True)
            self._initial = offsets.initial(_asked("startingOffsets", self._options.starting_offsets, first, last))
        return self._initial

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        first, last, by_slave = self._at_stop or self._ends(wait=False)
        # A slave lags: an end behind what was read is no loss when a slave told it.
        behind = {queue: at for queue, at in offsets.reached(start).items() if queue in by_slave and last[queue] < at}
        last = {**last, **behind}
        for loss in offsets.losses(start, first, last):
            if self._options.fail_on_data_loss:
                raise reading.DataLoss(f"{loss}; set failOnDataLoss to false to go on at {loss.resume}")
            log.warning("%s; going on at %d", loss, loss.resume)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return offsets.advance(start, first, last, most)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._at_stop = self._ends(wait=True)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [QueuePartition(part) for part in offsets.planned(end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: offsets live in the checkpoint."""

    def _ends(self, *, wait: bool) -> Ends:
        """The ends of all queues that can be asked now; with `wait`, an absent server is waited for."""
        cluster = pull.cluster(self._options)
        topic = self._options.topic
        try:
            queues = cluster.retry(f"route of {topic}", cluster.queues) if wait else cluster.queues()
        except pull.AWAY as error:
            pull.raise_unless_passing(error)
            log.warning("no name server answers, the next micro-batch asks again: %s", error)
            return Ends({}, {})
        first, last, by_slave = {}, {}, set()
        for queue in queues:
            try:
                if wait:
                    low = cluster.retry(f"start of {offsets.named(queue)}", cluster.min_offset, queue)
                    high = cluster.retry(f"end of {offsets.named(queue)}", cluster.max_offset, queue)
                else:
                    low, high = cluster.min_offset(queue), cluster.max_offset(queue)
                told_by_slave = not cluster.from_master(queue)
            except pull.AWAY as error:
                pull.raise_unless_passing(error)
                log.warning("%s is away, its queues keep their positions: %s", queue.broker, error)
                continue
            first[queue], last[queue] = low, high
            if told_by_slave:
                by_slave.add(queue)
        return Ends(first, last, frozenset(by_slave))


def read_partition(partition: InputPartition, options: SourceOptions, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a task. Spark makes one task of its own when there is nothing to read: it has none."""
    if isinstance(partition, QueuePartition):
        yield from reading.read_range(pull.cluster(options), partition.part, options, columns)


def _asked(option: str, wanted: str | Positions, first: Positions, last: Positions) -> Positions:
    """Positions that an option means; ConfigError when it names a queue that an existing topic does not have."""
    strange = sorted(set(wanted) - set(first)) if isinstance(wanted, dict) and first else []
    if strange:
        there = ", ".join(f"{queue.broker} {queue.queue_id}" for queue in sorted(first))
        raise ConfigError(option, offsets.named(strange[0]), f"no such queue; the topic has {there}")
    return offsets.asked(wanted, first, last)


def _columns(schema: StructType) -> list[str]:
    """The columns that are asked for; ConfigError for one that the source does not have."""
    for field in schema.fields:
        if field.name not in decode.COLUMNS:
            raise ConfigError("schema", field.name, f"is no column of the source; it has {', '.join(decode.COLUMNS)}")
        ddl = decode.COLUMNS[field.name][1].replace(" ", "").lower()
        if field.dataType.simpleString() != ddl:
            raise ConfigError("schema", f"{field.name} {field.dataType.simpleString()}", f"the column is {ddl}")
    return list(schema.names)
