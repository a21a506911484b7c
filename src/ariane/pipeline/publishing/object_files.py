"""Data files of tables in an object store or in HDFS, read and written by Spark's Python workers through pyarrow.

Spark's own access to object stores needs hadoop-aws and a bundle of 686 MB, and its committer renames files: copies, in a store.
Here each task puts its files under names that are used once; they belong to the table once the driver has committed them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ariane.clock import ms_of
from ariane.pipeline.publishing.data_files import Target
from ariane.pipeline.publishing.few_rows import Rows
from ariane.tables import TableSchema
from ariane.tables.arrow_types import arrow_schema
from ariane.tables.object_tables import ObjectTables, file_path
from ariane.tables.table_format import BUCKET, DataFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

WRITTEN = "path STRING, bucket STRING, rows BIGINT, bytes BIGINT, added_version BIGINT, first_ms BIGINT, last_ms BIGINT"
MAX_READ_TASKS = 32
CREDENTIALS = (
    "AWS_",
    "GOOGLE_",
    "AZURE_",
    "HADOOP_USER_NAME",
)  # beginnings of names; HADOOP_CONF_DIR is a path of one machine


@dataclass(frozen=True)
class ObjectFiles:
    """The `DataFiles` of an object store."""

    store: ObjectTables

    def read(self, spark: SparkSession, table: TableSchema, files: Sequence[DataFile]) -> DataFrame:
        listed = spark.createDataFrame([(file.path, file.bucket) for file in files], "path STRING, bucket STRING")
        listed = listed.repartition(min(len(files), MAX_READ_TASKS))
        read = partial(_read_partition, self.store, _environment(), _plain(table))
        return listed.mapInArrow(read, f"{table.ddl}, {BUCKET} STRING")

    def write(self, target: Target, frame: DataFrame | None, rows: Iterable[Rows]) -> list[DataFile]:
        table = target.table
        order = [(name, "ascending") for name in table.sort_columns]
        parts = (
            (bucket, part.sort_by(order)) for by_bucket in rows for bucket, part in by_bucket.items() if part.num_rows
        )
        written = [_write_file(self.store, target, bucket, part) for bucket, part in parts]
        if frame is not None:
            sorted_rows = frame.select(*table.column_names, BUCKET).repartition(BUCKET)
            sorted_rows = sorted_rows.sortWithinPartitions(BUCKET, *table.sort_columns)
            write = partial(_write_partition, self.store, target._replace(table=_plain(table)), _environment())
            written += (DataFile(*row) for row in sorted_rows.mapInArrow(write, WRITTEN).collect())
        return sorted(written, key=lambda file: file.bucket)


def _environment() -> dict[str, str]:
    """Return the variables that tasks need: executors may run on other machines, and their Python processes may be older."""
    return {name: value for name, value in os.environ.items() if name.startswith(CREDENTIALS)}


def _plain(table: TableSchema) -> TableSchema:
    # Descriptions are not needed by tasks, and module-level mappings may not be serializable.
    return table._replace(description="", definitions=dict.fromkeys(table.definitions, ""))


def _write_partition(
    store: ObjectTables, target: Target, environment: dict[str, str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of each bucket, which follow each other, to a file, and yield one row per file."""
    import pyarrow as pa

    os.environ.update(environment)
    written: list[DataFile] = []
    collected: list[pa.RecordBatch] = []
    bucket: str | None = None
    for batch in batches:
        for start, end, value in _runs(batch.column(BUCKET)):
            if value != bucket and collected:
                written.append(_write_file(store, target, bucket or "", _table(collected)))
                collected = []
            bucket = value
            collected.append(batch.slice(start, end - start))
    if collected:
        written.append(_write_file(store, target, bucket or "", _table(collected)))
    if written:
        names = [field.partition(" ")[0] for field in WRITTEN.split(", ")]
        yield pa.RecordBatch.from_pylist([{name: getattr(file, name) for name in names} for file in written])


def _runs(column: Any) -> Iterator[tuple[int, int, str]]:
    """Yield the start, end and value of each run of equal values."""
    encoded = column.dictionary_encode()
    values, indices = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    start = 0
    for position in range(1, len(indices) + 1):
        if position == len(indices) or indices[position] != indices[start]:
            yield start, position, values[indices[start]]
            start = position


def _table(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_batches(batches).drop_columns([BUCKET])


def _write_file(store: ObjectTables, target: Target, bucket: str, rows: pa.Table) -> DataFile:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table, number, added_version = target
    rows = rows.select(table.column_names).cast(arrow_schema(table))
    bounds = pc.min_max(rows[table.time_column])
    first_ms, last_ms = (
        None if bounds[name].as_py() is None else ms_of(bounds[name].as_py()) for name in ("min", "max")
    )
    path = file_path(number, bucket, added_version, first_ms, last_ms)
    buffer = pa.BufferOutputStream()
    group_rows = max(1, int(rows.num_rows * table.row_group_bytes / max(rows.nbytes, 1)))
    pq.write_table(rows, buffer, compression="zstd", row_group_size=group_rows)
    content = buffer.getvalue()
    store.write_file(f"{table.name}/{path}", content)
    return DataFile(path, bucket, rows.num_rows, content.size, added_version, first_ms, last_ms)


def _read_partition(
    store: ObjectTables, environment: dict[str, str], table: TableSchema, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.dataset as ds

    os.environ.update(environment)
    system, root = store.filesystem()
    schema = arrow_schema(table)
    for batch in batches:
        for path, bucket in zip(batch.column("path").to_pylist(), batch.column("bucket").to_pylist(), strict=True):
            dataset = ds.dataset(f"{root}/{table.name}/{path}", schema, format="parquet", filesystem=system)
            for rows in dataset.to_batches():
                yield rows.append_column(BUCKET, pa.array([bucket] * rows.num_rows, pa.string()))
