"""Computes the base tables of a micro-batch of few messages: one job for all tables, and no plan that is built for it.

    offsets ─ read by the driver → Arrow ─ `staged_tables` → rows of all tables → rows of each table by bucket

The functions are those of large micro-batches, whose messages are read by tasks, and whose tables are written by a job each.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

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

MAX_MESSAGES = 100  # the driver collects them, and a broker accepts messages of 4 MiB
MAX_INTERPRETED_BYTES = 1 << 20  # of the messages; code is generated for more

Select = Callable[["DataFrame"], "DataFrame"]
Tables = Sequence[tuple[TableSchema, Select]]

_reading = threading.Lock()  # sources share the connections of this process


def small_ranges(checkpoint: Path, number: int) -> list[OffsetRange] | None:
    """Return the ranges of a micro-batch of few messages, according to its offsets; None if it has more."""
    offset = json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[-1])
    ranges = offset_ranges.batch_ranges(offset)
    return ranges if sum(end - start for _, start, end in ranges) <= MAX_MESSAGES else None


def read_ranges(reader: StreamReader, ranges: Iterable[OffsetRange]) -> pa.Table:
    """Return the messages of ranges, read in this process: a job with a Python worker costs more than few messages."""
    with _reading:
        batches = [batch for part in ranges for batch in reader.read(QueuePartition(part))]
    return pa.Table.from_batches(batches) if batches else pa.table({})


class SmallBatches:
    """The micro-batches of one source that have few messages.

    Args:
        staged: Frames of the session.
        source: Name of the source.
        schema: Columns of its messages.
        prepare: Shared preparation of the messages for all tables.
        tables: Tables, and how their rows (with `bucket`) are selected from prepared messages.
    """

    def __init__(
        self, staged: staged_tables.StagedTables, source: str, schema: str, prepare: Select, tables: Tables
    ) -> None:
        self._staged = staged
        self._inputs = {source: schema}
        self._tables = tables
        self._function = partial(_select_all, prepare, tables)  # identifies the frame, so it is created once

    def compute(self, messages: pa.Table) -> dict[str, Rows]:
        """Return the rows of a micro-batch by table and bucket."""
        if not messages.num_rows:  # the first one of an empty topic
            return {table.name: {} for table, _ in self._tables}
        (source,) = self._inputs
        is_interpreted = messages.nbytes <= MAX_INTERPRETED_BYTES
        selections = {source: [messages]}
        result = self._staged.run(source, self._inputs, self._function, selections, is_interpreted=is_interpreted)
        return {table.name: _rows_of(result, table) for table, _ in self._tables}


def _select_all(prepare: Select, tables: Tables, messages: DataFrame) -> DataFrame:
    """Return the rows of all tables, each in the columns of its table; all other columns are null."""
    prepared = prepare(messages.drop(BUCKET))
    parts = [
        select(prepared).select(*(F.col(name).alias(f"{table.name}.{name}") for name in (*table.column_names, BUCKET)))
        for table, select in tables
    ]
    return reduce(_union, parts).coalesce(1)


def _union(rows: DataFrame, others: DataFrame) -> DataFrame:
    return rows.unionByName(others, allowMissingColumns=True)


def _rows_of(result: pa.Table, table: TableSchema) -> Rows:
    names = [*table.column_names, BUCKET]
    rows = result.select([f"{table.name}.{name}" for name in names]).rename_columns(names)
    return staged_tables.by_bucket(rows.filter(pc.is_valid(rows[BUCKET])), table)
