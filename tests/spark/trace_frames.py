"""Trace messages and events as small data frames, for the pipeline tests."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ariane.model import clock_offset
from ariane.model.message import UNIQ_KEY
from ariane.model.trace_event import ConsumeEndEvent, ConsumeStartEvent, MessageType, PublishEvent, TraceEvent
from ariane.pipeline.jobs import TRACES
from ariane.pipeline.tables import bucket_columns, trace_decoding
from ariane.protocol import trace_codec
from ariane.tables import MESSAGES
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


def messages(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame(rows, TRACES.schema)


def events(spark: SparkSession, *bodies: Iterable[TraceEvent]) -> DataFrame:
    """Return the trace_events of these events, one trace message each."""
    rows = [message(body(item), offset) for offset, item in enumerate(bodies)]
    return events_of_messages(spark, rows)


def events_of_messages(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    """Return the trace_events of trace messages."""
    return trace_decoding.trace_events(trace_decoding.decode_records(messages(spark, rows)))


def stored(message_id: str, ms: int, topic: str = "T", **other: Any) -> dict[str, Any]:
    """Return a row of `messages` stored at `ms` by the broker's clock."""
    values = dict.fromkeys(MESSAGES.column_names) | {"properties": {}} | other
    about = {"message_id": message_id, "topic": topic, "store_timestamp": at(ms)}
    return about | {name: value for name, value in values.items() if name not in about}


def stored_messages(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    frame = spark.createDataFrame([{name: row[name] for name in MESSAGES.column_names} for row in rows], MESSAGES.ddl)
    return bucket_columns.add_message_bucket(frame, F.col("message_id"), F.col("store_timestamp"))


def solid(spark: SparkSession, frame: DataFrame) -> DataFrame:
    """Return the rows of a data frame without its plan, as if read from a file, so that queries on it are planned quickly."""
    return spark.createDataFrame(frame.collect(), frame.schema)


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    collected: list[dict[str, Any]] = frame.toArrow().to_pylist()
    check_rows(collected)
    return collected
