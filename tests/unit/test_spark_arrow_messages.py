"""Batches as values of one column: which schema requests them, and that each message has the rows of its batch."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

import json

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from ariane.errors import ConfigError
from ariane.spark import RocketMQSource
from ariane.spark.records import arrow_messages

COLUMNS = StructType([StructField("keys", StringType()), StructField("queue_id", IntegerType())])
MESSAGES = StructType(
    [StructField("batch", BinaryType(), True, {arrow_messages.COLUMNS: json.dumps(COLUMNS.jsonValue())})]
)
BATCH = pa.record_batch(
    {
        "keys": pa.array(["a", None, "", "ä"]),
        "body": pa.array([b"x" * 3_000_000, None, b"", b"y"]),
        "delay_level": pa.nulls(4, pa.int32()),
        "properties": pa.array([[("k", "v"), ("l", "")], None, [], [("m", "w")]], pa.map_(pa.string(), pa.string())),
    }
)


def test_the_metadata_of_a_schema_requests_messages() -> None:
    assert arrow_messages.requested_schema(MESSAGES) == COLUMNS
    assert arrow_messages.requested_schema(COLUMNS) is None
    assert arrow_messages.requested_schema(StructType([StructField("body", BinaryType())])) is None
    assert arrow_messages.requested_schema(StructType()) is None


def test_the_source_reads_the_requested_columns() -> None:
    source = RocketMQSource({"namesrv": "127.0.0.1:1", "topic": "T"})
    columns = source._columns(MESSAGES)
    assert columns.names == ["keys", "queue_id"]
    assert columns.message_schema == pa.schema([("keys", pa.string()), ("queue_id", pa.int32())])
    assert source._columns(COLUMNS).message_schema is None


@pytest.mark.parametrize("batch", [BATCH, BATCH.slice(1, 2), BATCH.slice(0, 0), BATCH.select([])])
def test_a_message_has_the_rows_of_its_batch(batch: pa.RecordBatch) -> None:
    (message,) = arrow_messages.to_messages([batch], batch.schema)
    assert (message.num_rows, message.schema) == (1, pa.schema([("batch", pa.binary())]))
    assert pa.ipc.read_record_batch(pa.py_buffer(message.column(0)[0].as_py()), batch.schema).equals(batch)


@pytest.mark.parametrize("schema", [BATCH.schema.remove(0), BATCH.schema.set(2, pa.field("delay_level", pa.int64()))])
def test_a_batch_with_other_columns_is_refused(schema: pa.Schema) -> None:
    with pytest.raises(ConfigError, match=r"schema = '.*': expected keys: string"):
        list(arrow_messages.to_messages([BATCH], schema))
