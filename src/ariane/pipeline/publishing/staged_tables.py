"""Computes tables in one task, by data frames that are built once.

    rows of buckets or messages ─→ HOME/checkpoint/staged ─ compute ─→ Arrow

For few rows Spark's planning, code generation and files cost more than the rows. Most of it is building a data frame, which Spark
analyzes step by step. `StagedTable` builds one per table, over a directory whose files are replaced for each computation.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ariane.pipeline.publishing.few_rows import ID, Rows
from ariane.tables import TableSchema
from ariane.tables.table_format import BUCKET, TableVersion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_ROWS = 700_000  # of the inputs
MAX_INTERPRETED_ROWS = 5_000  # of the inputs; code is generated for more
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    # A broadcast is a job of its own.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    # Directories are listed by the driver, otherwise by a job if there are many.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}


@cache
def session(spark: SparkSession, *, is_interpreted: bool) -> SparkSession:
    """Return a session of the same application whose queries run in one task."""
    few = spark.newSession()
    for key, value in (SETTINGS | (INTERPRETED if is_interpreted else {})).items():
        few.conf.set(key, value)
    return few


class StagedTable:
    """Computes a table by one data frame that is built once.

    Args:
        spark: Session of `session`.
        directory: Directory of the rows, which executors see; it is created.
        table: Table of the results.
        inputs: Tables of the arguments of `function`.
        function: Returns the table's columns and `bucket`.
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        table: TableSchema,
        inputs: tuple[TableSchema, ...],
        function: Callable[..., DataFrame],
    ) -> None:
        self._spark = spark
        self._directory = directory
        self._table = table
        self._inputs = inputs
        self._function = function
        self._frame: DataFrame | None = None  # built by the first computation

    def compute(self, home: Path, versions: Mapping[str, TableVersion], buckets: Mapping[str, set[str] | None]) -> Rows:
        """Return the table's rows by bucket.

        Args:
            home: directory of the tables.
            versions: versions of the inputs; those without a version are empty.
            buckets: buckets to read; with a set, only the rows of these messages.
        """
        try:
            for table in self._inputs:
                _stage(self._directory / table.name, home, table, versions.get(table.name), buckets)
            # A frame's physical plan keeps what it has read; `select` yields a new one for the same analyzed plan.
            result = self._refreshed().select("*").toArrow()
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
        rows = result.drop_columns([BUCKET])
        return {
            bucket: rows.filter(pc.equal(result[BUCKET], bucket)) for bucket in pc.unique(result[BUCKET]).to_pylist()
        }

    def _refreshed(self) -> DataFrame:
        """Return the frame after Spark has listed the staged files."""
        if self._frame is None:
            # With all rows in one partition no step needs a shuffle.
            frames = [
                self._spark.read.schema(f"{table.ddl}, {BUCKET} STRING")
                .parquet(str(self._directory / table.name))
                .coalesce(1)
                for table in self._inputs
            ]
            self._frame = self._function(*frames).select(*self._table.column_names, BUCKET)
        else:
            leaves = self._frame._jdf.queryExecution().analyzed().collectLeaves()
            for number in range(leaves.size()):
                leaves.apply(number).relation().location().refresh()
        return self._frame


def _stage(
    directory: Path,
    home: Path,
    table: TableSchema,
    version: TableVersion | None,
    buckets: Mapping[str, set[str] | None],
) -> None:
    """Fill a directory with the rows of some buckets of a table."""
    shutil.rmtree(directory, ignore_errors=True)
    # Without any file Spark would not recognize the partition column.
    (directory / f"{BUCKET}=none").mkdir(parents=True)
    pq.write_table(
        pa.table({table.column_names[0]: pa.array([], pa.string())}), directory / f"{BUCKET}=none" / "0.parquet"
    )
    for number, file in enumerate(version.files if version else ()):
        if file.bucket not in buckets:
            continue
        source, ids = home / table.name / file.path, buckets[file.bucket]
        target = directory / source.parent.name / f"{number}.parquet"
        target.parent.mkdir(exist_ok=True)
        if ids is not None and ID in table.column_names:
            rows = pq.read_table(source, filters=pc.field(ID).isin(sorted(ids)), partitioning=None)
            pq.write_table(rows, target, compression="none")
        else:
            try:
                os.link(source, target)
            except OSError:  # the file system has no hard links
                shutil.copyfile(source, target)
