"""Computes tables in one task, by data frames that are built once.

    rows of buckets or messages, or a micro-batch ─→ HOME/checkpoint/staged ─ compute ─→ Arrow

For few rows Spark's planning, code generation and files cost more than the rows. Most of it is building a data frame, which Spark
analyzes step by step, and planning it. `StagedFrame` does both once per table, over a directory whose files are replaced for each
computation, and runs a copy of the physical plan.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ariane.pipeline.publishing import few_rows
from ariane.pipeline.publishing.few_rows import Rows
from ariane.tables import TableSchema
from ariane.tables.table_format import BUCKET

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


class FileRows(NamedTuple):
    """Rows of a data file."""

    bucket: str
    """Bucket in which they are computed."""
    path: Path
    rows: frozenset[str] | pc.Expression | None = None
    """Those of these messages, or for which the condition is true; None: all."""


SelectedRows = Mapping[str, Iterable[FileRows | pa.Table]]  # by name of the input
Function = Callable[..., "DataFrame"]


class StagedTables:
    """The staged frames of a session, by name, function, and whether it is interpreted."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self._spark = spark
        self._home = home
        self._sessions: dict[bool, SparkSession] = {}  # by whether their plans are interpreted
        self._frames: dict[tuple[str, Function, bool], StagedFrame] = {}

    def compute(
        self,
        table: TableSchema,
        inputs: tuple[TableSchema, ...],
        function: Function,
        selections: SelectedRows,
        *,
        is_interpreted: bool,
    ) -> Rows:
        """Return the rows of a table by bucket.

        Args:
            table: table of the results.
            inputs: tables of the arguments of `function`.
            function: returns the table's columns and `bucket`.
            selections: rows of the inputs.
            is_interpreted: whether to generate no code.
        """
        columns = {input_.name: input_.ddl for input_ in inputs}
        return by_bucket(self.run(table.name, columns, function, selections, is_interpreted=is_interpreted), table)

    def run(
        self,
        name: str,
        inputs: Mapping[str, str],
        function: Function,
        selections: SelectedRows,
        *,
        is_interpreted: bool,
    ) -> pa.Table:
        """Return the rows of a function of staged inputs.

        Args:
            name: directory of the inputs.
            inputs: name and columns (as DDL) of the arguments of `function`.
            function: takes a frame with `bucket` for each input.
            selections: rows of the inputs.
            is_interpreted: whether to generate no code.
        """
        key = (name, function, is_interpreted)
        if key not in self._frames:
            directory = self._home / "checkpoint" / "staged" / name
            self._frames[key] = StagedFrame(self._session(is_interpreted), directory, inputs, function)
        return self._frames[key].run(selections)

    def _session(self, is_interpreted: bool) -> SparkSession:
        """Return a session of the same application whose queries run in one task."""
        if is_interpreted not in self._sessions:
            session = self._sessions[is_interpreted] = self._spark.newSession()
            for key, value in (SETTINGS | (INTERPRETED if is_interpreted else {})).items():
                session.conf.set(key, value)
        return self._sessions[is_interpreted]


class StagedFrame:
    """A function of inputs, as a data frame that is built once.

    Args:
        spark: Session whose queries run in one task.
        directory: Directory of the rows, which executors see; it is created.
        inputs: Name and columns of the arguments of `function`.
        function: Takes a frame for each input.
    """

    def __init__(self, spark: SparkSession, directory: Path, inputs: Mapping[str, str], function: Function) -> None:
        self._spark = spark
        self._directory = directory
        self._inputs = inputs
        self._function = function
        self._frame: DataFrame | None = None  # built by the first computation
        self._plan: Any = None  # physical plan of the frame, never executed itself

    def run(self, selections: SelectedRows) -> pa.Table:
        """Return the rows computed from rows of the inputs."""
        from pyspark.sql import DataFrame

        try:
            for name, ddl in self._inputs.items():
                _stage(self._directory / name, ddl, selections.get(name, ()))
            frame = self._refreshed()
            session = self._spark._jsparkSession
            with _active_session(self._spark):
                # A physical plan keeps what it has read. A copy reads again, and costs a third of planning.
                rows = self._plan.clone().execute()
            copy = session.internalCreateDataFrame(rows, frame._jdf.schema(), False)
            return DataFrame(copy, self._spark).toArrow()
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _refreshed(self) -> DataFrame:
        """Return the frame after Spark has listed the staged files."""
        if self._frame is None:
            # With all rows in one partition no step needs a shuffle.
            frames = [
                self._spark.read.schema(f"{ddl}, {BUCKET} STRING").parquet(str(self._directory / name)).coalesce(1)
                for name, ddl in self._inputs.items()
            ]
            self._frame = self._function(*frames)
            self._plan = self._frame._jdf.queryExecution().executedPlan()
        else:
            leaves = self._frame._jdf.queryExecution().analyzed().collectLeaves()
            for number in range(leaves.size()):
                leaves.apply(number).relation().location().refresh()
        return self._frame


@contextmanager
def _active_session(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread: a copied plan belongs to it, and a thread may have none."""
    sessions = spark._get_j_spark_session_class(spark._jvm)
    former = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if former.isDefined():
            sessions.setActiveSession(former.get())
        else:
            sessions.clearActiveSession()


def by_bucket(result: pa.Table, table: TableSchema) -> Rows:
    """Return the rows of a table by bucket, from rows with `bucket`."""
    rows, encoded = result.select(table.column_names), result[BUCKET].combine_chunks().dictionary_encode()
    return {
        bucket: rows.filter(pc.equal(encoded.indices, number))
        for number, bucket in enumerate(encoded.dictionary.to_pylist())
    }


def _read_part(path: Path, part: frozenset[str] | pc.Expression) -> pa.Table:
    if isinstance(part, frozenset):
        return few_rows.rows_of_messages(path, part)
    return pq.read_table(path, filters=part, partitioning=None)


def _stage(directory: Path, ddl: str, selections: Iterable[FileRows | pa.Table]) -> None:
    """Fill a directory with rows of an input."""
    shutil.rmtree(directory, ignore_errors=True)
    # Without any file Spark would not recognize the partition column.
    untimed = directory / f"{BUCKET}=none"
    untimed.mkdir(parents=True)
    pq.write_table(pa.table({ddl.partition(" ")[0]: pa.array([], pa.string())}), untimed / "none.parquet")
    few: dict[
        Path, list[pa.Table]
    ] = {}  # of files that are read in part, by directory: tasks open one file in place of many
    for number, selection in enumerate(selections):
        if isinstance(selection, pa.Table):
            few.setdefault(untimed, []).append(selection)
            continue
        target = directory / f"{BUCKET}={quote(selection.bucket)}"
        if selection.rows is not None:
            rows = _read_part(selection.path, selection.rows)
            if rows.num_rows:
                few.setdefault(target, []).append(rows)
            continue
        target.mkdir(exist_ok=True)
        try:
            os.link(selection.path, target / f"{number}.parquet")
        except OSError:  # the file system has no hard links
            shutil.copyfile(selection.path, target / f"{number}.parquet")
    for target, parts in few.items():
        target.mkdir(exist_ok=True)
        pq.write_table(
            pa.concat_tables(parts, promote_options="permissive"), target / "few.parquet", compression="none"
        )
