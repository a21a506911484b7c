"""`df.write.format("rocketmq")` and `df.writeStream.format("rocketmq")`: rows as messages, at least once.

    df.selectExpr("to_json(struct(*)) AS body", "id AS ordering_key") \\
      .write.format("rocketmq").option("namesrv", "127.0.0.1:9876").option("topic", "T").mode("append").save()

    record batch ─ encode.messages ─→ property texts ─ spread.chunks ─→ requests ─ send.Sender ─→ brokers

What is stored stays stored: a task that fails, and runs again, writes its rows again. Each message says which row of which run
it is (ARIANE_DEDUP), and `drop_duplicates` (`read.dedup`) and `client.idempotent` know the second copy by that.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ariane.errors import ConfigError
from ariane.spark.reporting import readable
from ariane.spark.wire.access import credentials, tls_context
from ariane.spark.wire.pipelined_connections import PipelinedConnectionPool
from ariane.spark.write import message_encoder, send_client
from ariane.spark.write.partitioner import Partitioner
from ariane.spark.write.send_client import SentChunk
from ariane.spark.write.sink_options import SinkOptions, check_columns, parse

log = logging.getLogger("ariane.spark")

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"


@dataclass
class TaskCommit(SentChunk, WriterCommitMessage):
    """What one task stored."""

    partition: int = 0


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of a batch job; ConfigError, or RouteNotFound, says why it cannot begin."""
    checked = _checked(options, schema, overwrite, 'a topic cannot be overwritten: .mode("append")', is_stream=False)
    if checked.topic:  # a mistyped one is told now, and not by each task after its retries
        wires = _wires(checked)
        try:
            send_client.WriteRoutes(checked, wires).find(checked.topic)
        finally:
            wires.close()
    return BatchWriter(checked, checked.run_id or secrets.token_hex(16))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of a micro-batch."""
    fix = 'a topic cannot be overwritten: .outputMode("append") or "update"'
    checked = _checked(options, schema, overwrite, fix, is_stream=True)
    if checked.run_id:
        raise ConfigError("runId", checked.run_id, "is for batch writes: a streaming query is named by its query id")
    return StreamWriter(checked)


class BatchWriter(DataSourceArrowWriter):
    """Tasks of one job. `run` is the same for all of them, and for those that run again."""

    def __init__(self, options: SinkOptions, run: str) -> None:
        self._options = options
        self._run = run

    @readable
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        return write_partition(iterator, self._options, self._run, 0, _task().partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        log.info("run %s: %s", self._run, told(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.error("run %s failed: %s; %s", self._run, told(messages), STAYS)


class StreamWriter(DataSourceStreamArrowWriter):
    """Tasks of the micro-batches of one query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @readable
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise ConfigError(
                "query", query, f"Spark tells the task neither {QUERY_ID} nor {BATCH_ID}: use Spark 4.2 or later"
            )
        return write_partition(iterator, self._options, query, int(batch), task.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        log.info("batch %d: %s", batchId, told(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        log.error("batch %d failed: %s; %s", batchId, told(messages), STAYS)


def write_partition(
    iterator: Iterator[pa.RecordBatch],
    options: SinkOptions,
    run: str,
    batch: int,
    partition: int,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> TaskCommit:
    """Send the rows of a partition; returns when all of them are stored."""
    called = message_encoder.names_of(run, batch, partition, now_ms())
    names, wires = _wires(options), _wires(options)
    try:
        routes = send_client.WriteRoutes(options, names)
        spread = Partitioner(options, called, partition, routes.queues)
        sender = send_client.ChunkSender(options, routes, wires, now_ms=now_ms)
        first = 0
        for whole in iterator:
            for part in message_encoder.slices(whole):
                rows = message_encoder.messages(part, called, first, options)
                for chunk in spread.chunks(part, rows):
                    sender.put(chunk)
                first += part.num_rows
        sent = sender.finish()
    finally:
        wires.close()
        names.close()
    return TaskCommit(**{field.name: getattr(sent, field.name) for field in fields(SentChunk)}, partition=partition)


STAYS = "what was sent stays in its topics: no message is taken back, and a run again sends it again"


def told(messages: list[WriterCommitMessage | None]) -> str:
    """The counts of a job for people. A task that failed has no counts."""
    done = [one for one in messages if isinstance(one, TaskCommit)]
    text = (
        f"{sum(one.messages for one in done)} messages, {sum(one.bytes for one in done)} bytes "
        f"in {sum(one.requests for one in done)} requests by {len(done)} of {len(messages)} tasks"
    )
    if retried := sum(one.retried for one in done):
        text += f", {retried} requests sent again (their messages may be there twice)"
    if unsafe := sum(one.unsafe for one in done):
        text += f", {unsafe} messages stored before flush or replica answered"
    return text


def _checked(
    options: Mapping[str, str], schema: StructType, overwrite: bool, fix: str, *, is_stream: bool
) -> SinkOptions:
    if overwrite:
        raise ConfigError("mode", "overwrite", fix)
    checked = parse(options, is_stream=is_stream)
    check_columns(schema, checked)
    return checked


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "write() runs in a task"
    return task


def _wires(options: SinkOptions) -> PipelinedConnectionPool:
    return PipelinedConnectionPool(options.timeout_ms, credentials(options), tls_context(options))
