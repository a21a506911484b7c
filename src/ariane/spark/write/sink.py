"""`df.write.format("rocketmq")`: rows as messages, at least once. (`stream_sink` writes streams in the same way.)

    df.selectExpr("to_json(struct(*)) AS body", "id AS ordering_key") \\
      .write.format("rocketmq").option("namesrv", "127.0.0.1:9876").option("topic", "T").mode("append").save()

    record batch ─ message_encoder ─→ messages ─ Partitioner ─→ requests ─ RequestSender ─→ brokers

Stored messages cannot be removed: a task that fails and runs again writes its rows again. Each message identifies its row and run
(ARIANE_DEDUP), by which `drop_duplicates` (`read.dedup`) and `client.idempotent` recognise copies.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, fields

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ariane.client.sending.timer_support import check_response, recall_without_effect
from ariane.errors import ConfigError
from ariane.protocol.codes import RequestCode
from ariane.spark.reporting import hide_traceback
from ariane.spark.wire.access import credentials, tls_context
from ariane.spark.wire.blocking_connection import Request
from ariane.spark.wire.connections_by_address import BlockingConnectionPool
from ariane.spark.wire.name_servers import BlockingNameServerClient, BlockingRequester
from ariane.spark.wire.pipelined_connections import PipelinedConnectionPool
from ariane.spark.write import message_encoder, send_client
from ariane.spark.write.partitioner import Partitioner
from ariane.spark.write.send_client import SendStats
from ariane.spark.write.sink_options import SinkOptions, check_columns, parse

log = logging.getLogger("ariane.spark")


@dataclass
class TaskCommit(SendStats, WriterCommitMessage):
    """Counts of what one task stored."""

    partition: int = 0


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Return the writer of a batch job.

    Raises:
        ConfigError: an option or column is invalid.
        RouteNotFound: the topic does not exist.
    """
    checked = parse_and_check(
        options, schema, overwrite, 'expected .mode("append"): a topic cannot be overwritten', is_stream=False
    )
    if checked.topic:  # fail once here for a mistyped topic, not in each task after its retries
        with closing(BlockingConnectionPool(checked)) as connections:
            _routes(checked, connections).find_queues(checked.topic)
    return BatchWriter(checked, checked.run_id or secrets.token_hex(16))


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch job. All its tasks, including repeated ones, have the same `run_id`."""

    def __init__(self, options: SinkOptions, run_id: str) -> None:
        self._options = options
        self._run_id = run_id

    @hide_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        return write_partition(iterator, self._options, self._run_id, 0, task_context().partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        log.info("Run %s committed: %s", self._run_id, summarize(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.error("Run %s failed: %s; %s", self._run_id, summarize(messages), NOT_ROLLED_BACK)


def write_partition(
    iterator: Iterator[pa.RecordBatch],
    options: SinkOptions,
    run_id: str,
    batch_id: int,
    partition: int,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> TaskCommit:
    """Send the rows of a partition; return when all of them are stored."""
    ids = message_encoder.row_ids(run_id, batch_id, partition, now_ms())
    # Separate connections: a look-up waits for its response and would take those of pending sends.
    with closing(BlockingConnectionPool(options)) as look_ups, closing(_connect(options)) as connections:
        routes = _routes(options, look_ups)
        partitioner = Partitioner(options, ids, partition, routes.queues)
        require_timers = timer_check(options, look_ups.call_all)
        sender = send_client.RequestSender(options, routes, connections, require_timers=require_timers, now_ms=now_ms)
        first_sequence = 0
        for batch in iterator:
            for part in message_encoder.split_batch(batch):
                rows = message_encoder.encode(part, ids, first_sequence, options)
                for request in partitioner.requests(part, rows):
                    sender.put(request)
                first_sequence += part.num_rows
        sent = sender.finish()
    return TaskCommit(**{field.name: getattr(sent, field.name) for field in fields(SendStats)}, partition=partition)


NOT_ROLLED_BACK = "messages already sent cannot be removed from their topics, and a retry sends them again"


def summarize(messages: list[WriterCommitMessage | None]) -> str:
    """Summarise the counts of a job for log lines. A failed task has no counts."""
    commits = [commit for commit in messages if isinstance(commit, TaskCommit)]
    text = (
        f"{sum(commit.messages for commit in commits)} messages, {sum(commit.bytes for commit in commits)} bytes "
        f"in {sum(commit.requests for commit in commits)} requests by {len(commits)} of {len(messages)} tasks"
    )
    if retried := sum(commit.retried for commit in commits):
        text += f", {retried} requests retried (their messages may be stored twice)"
    if not_durable := sum(commit.not_durable for commit in commits):
        text += f", {not_durable} messages stored without confirmation of flush or replication"
    return text


def parse_and_check(
    options: Mapping[str, str], schema: StructType, overwrite: bool, fix: str, *, is_stream: bool
) -> SinkOptions:
    """Return the options; raise ConfigError if an option, a column or the mode is invalid."""
    if overwrite:
        raise ConfigError("mode", "overwrite", fix)
    parsed = parse(options, is_stream=is_stream)
    check_columns(schema, parsed)
    return parsed


def task_context() -> TaskContext:
    """Return the context of the task that runs `write`."""
    task = TaskContext.get()
    assert task is not None, "write() runs in a task"
    return task


def timer_check(options: SinkOptions, send: BlockingRequester) -> Callable[[str, str], None]:
    """Return a function (addr, topic) that asks each broker once whether it supports delivery times.

    It raises MessageRefused if the broker does not, and ConnectionLost or RequestTimeout if it does not respond.
    """
    confirmed: set[str] = set()

    def require(addr: str, topic: str) -> None:
        if addr in confirmed or not options.check_timers:
            return
        request = Request(RequestCode.RECALL_MESSAGE, recall_without_effect(topic, options.group_id))
        (response,) = send(addr, [request])
        check_response(response, addr, "the option checkTimers=false")
        confirmed.add(addr)

    return require


def _routes(options: SinkOptions, connections: BlockingConnectionPool) -> send_client.WriteRoutes:
    return send_client.WriteRoutes(options, BlockingNameServerClient(connections.call_all, options.namesrv))


def _connect(options: SinkOptions) -> PipelinedConnectionPool:
    return PipelinedConnectionPool(options.timeout_ms, credentials(options), tls_context(options))
