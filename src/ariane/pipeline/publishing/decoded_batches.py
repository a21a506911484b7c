"""Decodes a micro-batch into the rows of the base tables.

    offsets ─┬ within the bounds ─ read by the driver ─→ Arrow ─ `decode` ─→ a file per bucket (`few_rows.write`)
             └ more ─ read by tasks ─→ Arrow ─ `decode`, in Python workers ─→ shuffled by bucket, sorted and written by tasks

A job costs more than its rows: planning, generated code, Python workers, shuffles (docs/decisions/0055).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ariane.pipeline.publishing import staged_tables
from ariane.pipeline.publishing.few_rows import Rows
from ariane.spark.read import offset_ranges
from ariane.spark.read.offset_ranges import OffsetRange
from ariane.spark.read.partitions import QueuePartition
from ariane.tables import TableSchema
from ariane.tables.table_format import BUCKET

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ariane.spark.read.micro_batches import StreamReader

MAX_MESSAGES = 400_000  # the driver decodes them in seconds, and other sources wait
MAX_ROW_BYTES = 512 << 20
PART_BYTES, PART_MESSAGES = 2 << 20, 1_000  # decoded at once

Decode = Callable[[pa.Table], Mapping[str, pa.Table]]
"""Takes messages, and returns the rows of each table, with `bucket`, by name of the table."""

_reading = threading.Lock()  # sources share the connections of this process


def ranges_of(checkpoint: Path, number: int) -> tuple[list[OffsetRange], int]:
    """Return the ranges of a micro-batch according to its offsets, and how many messages they have at most."""
    offset = json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[-1])
    ranges = offset_ranges.batch_ranges(offset)
    return ranges, sum(end - start for _, start, end in ranges)


def read_ranges(reader: StreamReader, ranges: Iterable[OffsetRange]) -> Generator[pa.RecordBatch]:
    """Yield the messages of ranges, read in this process. Other sources wait until the iterator ends or is closed."""
    with _reading:
        for part in ranges:
            yield from reader.read(QueuePartition(part))


def collect(messages: DataFrame) -> list[pa.RecordBatch] | None:
    """Return messages that are in no topic; None if they are more than the driver decodes."""
    collected = messages.limit(MAX_MESSAGES + 1).toArrow()
    return collected.to_batches() if collected.num_rows <= MAX_MESSAGES else None


def rows_of_tables(
    messages: Iterable[pa.RecordBatch], decode: Decode, tables: Iterable[TableSchema]
) -> dict[str, Rows] | None:
    """Return the rows of messages by name of the table; None if they are too large for the driver."""
    decoded: dict[str, list[pa.Table]] = {table.name: [] for table in tables}
    size = 0
    for part in _parts(messages):
        for name, rows in decode(part).items():
            decoded[name].append(rows)
            size += rows.nbytes
        if size > MAX_ROW_BYTES:
            return None
    return {
        table.name: staged_tables.by_bucket(pa.concat_tables(decoded[table.name]), table) if decoded[table.name] else {}
        for table in tables
    }


def _parts(messages: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield messages in parts of about PART_BYTES: one message of a hostile client can have millions of records."""
    part: list[pa.RecordBatch] = []
    size = 0
    for batch in messages:
        for begin in range(0, batch.num_rows, PART_MESSAGES):
            part.append(batch.slice(begin, PART_MESSAGES))
            size += part[-1].nbytes
            if size >= PART_BYTES:
                yield pa.Table.from_batches(part)
                part, size = [], 0
    if part:
        yield pa.Table.from_batches(part)


def rows_of_table(messages: DataFrame, decode: Decode, table: TableSchema) -> DataFrame:
    """Return the rows of a table, with `bucket`, decoded by tasks."""
    return messages.mapInArrow(partial(_decode_parts, decode, table.name), f"{table.ddl}, {BUCKET} STRING")


def _decode_parts(decode: Decode, name: str, messages: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for part in _parts(messages):
        yield from decode(part)[name].to_batches()
