"""Trace messages and events as small data frames, for the pipeline tests."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ariane.model import clock_offset
from ariane.model.message import UNIQ_KEY
from ariane.model.trace_event import ConsumeEndEvent, ConsumeStartEvent, MessageType, PublishEvent, TraceEvent
from ariane.pipeline.jobs import TRACES
from ariane.pipeline.tables import bucket_columns, trace_decoding
from ariane.protocol import trace_codec
from ariane.tables import MESSAGES, TRACE_EVENTS, arrow_types
from ariane.tables.table import split_type
from table_contract_checks import check_rows

T0_MS = 1_700_000_000_000
T0 = datetime.fromtimestamp(T0_MS / 1000, UTC)
STORED = T0 + timedelta(minutes=1)


def at(ms: int) -> datetime:
    """Return the time `ms` after the tests' epoch."""
    return T0 + timedelta(milliseconds=ms)


def pub(message_id: str, ms: int = 0, **other: Any) -> PublishEvent:
    values: dict[str, Any] = {
        "region": "r", "group": "P", "topic": "T", "tags": "a", "keys": f"key-{message_id}", "store_host": "10.0.0.1:10911",
        "body_length": 5, "cost_ms": 3, "message_type": MessageType.NORMAL, "offset_message_id": f"OFF-{message_id}",
        "success": True,
    }  # fmt: skip
    return PublishEvent(timestamp_ms=T0_MS + ms, message_id=message_id, **(values | other))


def before(message_id: str, request_id: str, ms: int, group: str = "G", retry_times: int = 0) -> ConsumeStartEvent:
    return ConsumeStartEvent(
        timestamp_ms=T0_MS + ms, region="", group=group, request_id=request_id, message_id=message_id,
        retry_times=retry_times, keys=f"key-{message_id}",
    )  # fmt: skip


def after(
    message_id: str, request_id: str, ms: int, cost_ms: int = 7, code: int = 0, group: str = "G"
) -> ConsumeEndEvent:
    return ConsumeEndEvent(
        request_id=request_id, message_id=message_id, cost_ms=cost_ms, success=code == 0, keys=f"key-{message_id}",
        context_code=code, timestamp_ms=T0_MS + ms, group=group,
    )  # fmt: skip


def body(events: Iterable[TraceEvent]) -> bytes:
    return "".join(map(trace_codec.encode, events)).encode()


def message(
    body: bytes, offset: int, born_host: str = "10.0.0.9:5000", stored_at: datetime = STORED, clock_offsets: str = "",
    unique_id: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Return a trace message as the source returns it."""
    properties = {clock_offset.PROPERTY: clock_offsets, UNIQ_KEY: unique_id}
    properties = {name: value for name, value in properties.items() if value}
    return {
        "body": body, "broker": "broker-a", "queue_id": 0, "queue_offset": offset, "store_timestamp": stored_at,
        "born_host": born_host, "properties": properties,
    }  # fmt: skip


def arrow_of(ddl: str) -> pa.Schema:
    """Return columns of Spark in Arrow."""
    columns = (column.split(" ", 1) for column in split_type(f"STRUCT<{ddl}>")[1])
    return pa.schema((name, arrow_types.arrow_type(kind)) for name, kind in columns)


def messages(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, arrow_of(TRACES.schema))


def events(spark: SparkSession, *bodies: Iterable[TraceEvent]) -> DataFrame:
    """Return the trace_events of these events, one trace message each."""
    rows = [message(body(item), offset) for offset, item in enumerate(bodies)]
    return events_of_messages(spark, rows)


def events_of_messages(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    """Return the trace_events of trace messages."""
    return spark.createDataFrame(trace_decoding.decode(messages(rows))[TRACE_EVENTS.name])


def stored(message_id: str, ms: int, topic: str = "T", **other: Any) -> dict[str, Any]:
    """Return a row of `messages` stored at `ms` by the broker's clock."""
    values = dict.fromkeys(MESSAGES.column_names) | {"properties": {}} | other
    about = {"message_id": message_id, "topic": topic, "store_timestamp": at(ms)}
    return about | {name: value for name, value in values.items() if name not in about}


def stored_messages(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    table = pa.Table.from_pylist(rows, arrow_types.arrow_schema(MESSAGES))
    stored_ms = bucket_columns.ms_of_times(table["store_timestamp"].combine_chunks())
    buckets = bucket_columns.buckets_of_messages(table["message_id"].combine_chunks(), stored_ms)
    return spark.createDataFrame(bucket_columns.with_buckets(table, MESSAGES, buckets))


def solid(spark: SparkSession, frame: DataFrame) -> DataFrame:
    """Return the rows of a data frame without its plan, as if read from a file, so that queries on it are planned quickly."""
    return spark.createDataFrame(frame.collect(), frame.schema)


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    collected: list[dict[str, Any]] = frame.toArrow().to_pylist()
    check_rows(collected)
    return collected
