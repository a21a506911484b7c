"""Batches as values of one column, for readers in the JVM that read columns (`pruning/ColumnarReading.java`).

schema   batch BINARY, whose metadata contains the requested columns
value    IPC message of an Arrow batch with these columns, without its schema
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.types import StructType

from ariane.errors import ConfigError

COLUMNS = "ariane.columns"  # key of the metadata: the requested columns as Spark's JSON; the same in Java
_OFFSETS = struct.Struct("=2i")


def requested_schema(schema: StructType) -> StructType | None:
    """Return the columns that a schema of messages requests; None if it requests rows."""
    if len(schema) != 1 or (text := schema[0].metadata.get(COLUMNS)) is None:
        return None
    return StructType.fromJson(json.loads(text))


def to_messages(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return each batch as a batch with one value.

    Raises:
        ConfigError: a batch has other columns than `schema`, which the reader of the messages relies on.
    """
    for batch in batches:
        if not batch.schema.equals(schema):
            raise ConfigError("schema", str(schema), f"expected {batch.schema}")
        message = batch.serialize()
        offsets = pa.py_buffer(_OFFSETS.pack(0, message.size))
        yield pa.record_batch([pa.Array.from_buffers(pa.binary(), 1, [None, offsets, message])], names=["batch"])
