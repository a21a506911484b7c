"""How Spark reads and writes the data files of a home (`directory_files`, `object_files`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ariane.pipeline.publishing.few_rows import Rows
from ariane.tables import TableSchema
from ariane.tables.table_format import DataFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Target(NamedTuple):
    """Which version files are written for."""

    table: TableSchema
    number: int  # version that the files belong to
    added_version: int  # version to which their rows are attributed


class DataFiles(Protocol):
    """The data files of a home."""

    def read(self, spark: SparkSession, table: TableSchema, files: Sequence[DataFile]) -> DataFrame:
        """Return the rows of files with the column `bucket`."""
        ...

    def write(self, target: Target, frame: DataFrame | None, rows: Iterable[Rows]) -> list[DataFile]:
        """Write the rows of a frame, and rows by bucket: durable files, one per bucket, sorted by the table's sort columns."""
        ...
