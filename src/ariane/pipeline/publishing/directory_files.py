"""Data files of tables in a local directory, read and written by Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ariane.clock import ms_of
from ariane.pipeline.publishing import few_rows
from ariane.pipeline.publishing.data_files import Target
from ariane.tables import TableSchema
from ariane.tables.table_format import BUCKET, DataFile, bucket_of_directory, fsync_path, version_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class DirectoryFiles:
    """The `DataFiles` of a local directory."""

    home: Path

    def read(self, spark: SparkSession, table: TableSchema, files: Sequence[DataFile]) -> DataFrame:
        base = self.home / table.name
        reader = spark.read.schema(f"{table.ddl}, {BUCKET} STRING").option("basePath", str(base))
        return reader.parquet(*(str(base / file.path) for file in files)).select(*table.column_names, BUCKET)

    def write(self, target: Target, frame: DataFrame | None, rows: Iterable[few_rows.Rows]) -> list[DataFile]:
        import pyarrow.parquet as pq

        table, base = target.table, self.home / target.table.name
        directory = base / version_directory(target.number)
        base.mkdir(parents=True, exist_ok=True)  # Spark creates it, too
        if frame is None:
            shutil.rmtree(directory, ignore_errors=True)  # remains of an attempt that failed
        else:
            _write_frame(frame, directory, table)
        for part in rows:
            few_rows.write(directory, table, part)
        written = []
        for path in sorted(directory.glob(f"{BUCKET}=*/*.parquet")):
            footer = pq.read_metadata(path)
            times = _time_range(footer, table.time_column)
            name, bucket = path.relative_to(base).as_posix(), bucket_of_directory(path.parent.name)
            written.append(DataFile(name, bucket, footer.num_rows, path.stat().st_size, target.added_version, *times))
            fsync_path(path)
            fsync_path(path.parent)
        if not written:  # otherwise every empty batch would leave a directory
            shutil.rmtree(directory, ignore_errors=True)
            return []
        fsync_path(directory)
        fsync_path(base)
        return written


def _write_frame(frame: DataFrame, directory: Path, table: TableSchema) -> None:
    rows = frame.select(*table.column_names, BUCKET).repartition(BUCKET)
    writer = rows.sortWithinPartitions(BUCKET, *table.sort_columns).write.mode("overwrite").partitionBy(BUCKET)
    writer = writer.option("compression", few_rows.COMPRESSION).option("parquet.block.size", table.row_group_bytes)
    writer.parquet(str(directory))


def _time_range(footer: Any, column: str) -> tuple[int | None, int | None]:
    """Return the earliest and latest ms of a TIMESTAMP column according to the statistics of the file."""
    # Maps and lists have several leaves, so column numbers differ from leaf numbers: find the leaf by its path.
    (leaf,) = (number for number in range(footer.num_columns) if footer.schema.column(number).path == column)
    statistics = [footer.row_group(number).column(leaf).statistics for number in range(footer.num_row_groups)]
    bounded = [part for part in statistics if part is not None and part.has_min_max]
    if not bounded:
        return None, None
    return ms_of(min(part.min for part in bounded)), ms_of(max(part.max for part in bounded))
