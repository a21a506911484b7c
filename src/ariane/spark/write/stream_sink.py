"""`df.writeStream.format("rocketmq")`: the rows of micro-batches as messages, at least once.

A module of its own, because Spark 4.0 has no Arrow writer for streams: its class cannot be defined there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ariane.errors import ConfigError
from ariane.spark.reporting import hide_traceback
from ariane.spark.write.sink import (
    NOT_ROLLED_BACK,
    TaskCommit,
    parse_and_check,
    summarize,
    task_context,
    write_partition,
)
from ariane.spark.write.sink_options import SinkOptions

log = logging.getLogger("ariane.spark")

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Return the writer of a micro-batch; raise ConfigError if an option or column is invalid."""
    fix = 'expected .outputMode("append") or "update": a topic cannot be overwritten'
    checked = parse_and_check(options, schema, overwrite, fix, is_stream=True)
    if checked.run_id:
        raise ConfigError(
            "runId", checked.run_id, "only for batch writes: a streaming query is identified by its query id; remove it"
        )
    return StreamWriter(checked)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of one query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @hide_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        task = task_context()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise ConfigError(
                "query", query, f"Spark sets neither {QUERY_ID} nor {BATCH_ID} for the task: use Spark 4.2 or newer"
            )
        return write_partition(iterator, self._options, query, int(batch), task.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        log.info("Batch %d committed: %s", batchId, summarize(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        log.error("Batch %d failed: %s; %s", batchId, summarize(messages), NOT_ROLLED_BACK)
