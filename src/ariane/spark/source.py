"""`spark.read.format("rocketmq")` and `spark.readStream.format("rocketmq")`: a topic as rows, one partition per queue.

    spark.dataSource.register(RocketMQSource)
    spark.readStream.format("rocketmq").option("namesrv", "127.0.0.1:9876").option("topic", "T").load()

Exactly once by the checkpoint alone: the offsets of a batch stand in it before the batch runs, with their start, so a replay
reads the same rows (`offsets`). A schema given by the user (`.schema("body BINARY")`) leaves the other columns undecoded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ariane.errors import ArianeError, ConfigError, ConnectionLost, RequestTimeout, RouteNotFound
from ariane.protocol.codes import ResponseCode
from ariane.spark import decode, offsets, pull
from ariane.spark.offsets import Positions, Range
from ariane.spark.options import SourceOptions, parse

log = logging.getLogger("ariane.spark")

# A batch of Arrow rows: enough to share its cost, little enough to stay in the processor's cache.
BATCH_ROWS = 8192
BATCH_BYTES = 8 * 1024 * 1024


class DataLoss(ArianeError):
    """Entries that were to be read are gone. Set failOnDataLoss to false to go on without them."""


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
        first = {queue: cluster.retry(f"start of {queue}", cluster.min_offset, queue) for queue in queues}
        last = {queue: cluster.retry(f"end of {queue}", cluster.max_offset, queue) for queue in queues}
        begin = _start(options.starting_offsets, first, last)
        end = last if not isinstance(options.ending_offsets, dict) else {**last, **options.ending_offsets}
        return [QueuePartition(part) for part in offsets.ranges(begin, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._columns)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches. New queues and brokers are found with each; one that is away is waited for."""

    def __init__(self, options: SourceOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns
        self._initial: dict[str, Any] | None = None
        self._at_stop: tuple[Positions, Positions] | None = None  # AvailableNow: first and last offsets when it began

    def initialOffset(self) -> dict[str, Any]:
        # Spark asks again in the first batch: the answer has to be the same.
        if self._initial is None:
            first, last = self._ends(wait=True)
            self._initial = offsets.initial(_start(self._options.starting_offsets, first, last))
        return self._initial

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        first, last = self._at_stop or self._ends(wait=False)
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

    def _ends(self, *, wait: bool) -> tuple[Positions, Positions]:
        """First and last offsets of all queues that can be asked now; with `wait`, an absent server is waited for."""
        cluster = pull.cluster(self._options)
        topic = self._options.topic
        try:
            queues = cluster.retry(f"route of {topic}", cluster.queues) if wait else cluster.queues()
        except (ConnectionLost, RequestTimeout) as error:
            log.warning("no name server answers, the next micro-batch asks again: %s", error)
            return {}, {}
        first, last = {}, {}
        for queue in queues:
            try:
                low, high = cluster.min_offset(queue), cluster.max_offset(queue)
            except (ConnectionLost, RequestTimeout, RouteNotFound) as error:
                if wait:
                    low = cluster.retry(f"start of {queue}", cluster.min_offset, queue)
                    high = cluster.retry(f"end of {queue}", cluster.max_offset, queue)
                else:
                    log.warning("%s is away, its queues keep their positions: %s", queue.broker, error)
                    continue
            first[queue], last[queue] = low, high
        return first, last


def read_partition(partition: InputPartition, options: SourceOptions, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a task. Spark makes one task of its own when there is nothing to read: it has none."""
    if isinstance(partition, QueuePartition):
        yield from read_range(pull.cluster(options), partition.part, options, columns)


def read_range(
    cluster: pull.Cluster, part: Range, options: SourceOptions, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in order. DataLoss when some are gone and failOnDataLoss is true."""
    offset, bodies, rows, size = part.start, [], 0, 0
    what = (
        f"{part.queue.topic} queue {part.queue.queue_id} of {part.queue.broker}, offsets {part.start} to {part.end - 1}"
    )
    while offset < part.end:
        pulled = cluster.retry(what, cluster.pull, part.queue, offset)
        if pulled.code == ResponseCode.SUCCESS:
            bodies.append(pulled.body)
            rows += pulled.next_offset - offset
            size += len(pulled.body)
        elif pulled.code != ResponseCode.PULL_RETRY_IMMEDIATELY:
            resume = _after_loss(pulled, offset, part.end)
            lost = f"{what}: {offset} to {resume - 1} are gone (the queue holds {pulled.min_offset} to {pulled.max_offset - 1})"
            if options.fail_on_data_loss:
                raise DataLoss(f"{lost}; set failOnDataLoss to false to go on without them")
            log.warning("%s; going on at %d", lost, resume)
            offset = resume
            continue
        offset = max(pulled.next_offset, offset + 1)
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield decode.batch(b"".join(bodies), part.queue.broker, columns, part.end)
            bodies, rows, size = [], 0, 0
    if bodies:
        yield decode.batch(b"".join(bodies), part.queue.broker, columns, part.end)


def _after_loss(pulled: pull.Pulled, offset: int, end: int) -> int:
    """Where to go on when nothing is at `offset`: the queue's start when it lies ahead, else the end of the range."""
    return pulled.min_offset if offset < pulled.min_offset < end else end


def _start(wanted: object, first: Positions, last: Positions) -> Positions:
    if isinstance(wanted, dict):
        return {**first, **wanted}
    return dict(last) if wanted == "latest" else dict(first)


def _columns(schema: StructType) -> list[str]:
    """The columns that are asked for; ConfigError for one that the source does not have."""
    for field in schema.fields:
        if field.name not in decode.COLUMNS:
            raise ConfigError("schema", field.name, f"is no column of the source; it has {', '.join(decode.COLUMNS)}")
        ddl = decode.COLUMNS[field.name][1].replace(" ", "").lower()
        if field.dataType.simpleString() != ddl:
            raise ConfigError("schema", f"{field.name} {field.dataType.simpleString()}", f"the column is {ddl}")
    return list(schema.names)
