"""SQL queries over the pipeline's tables with DuckDB: each table is a view over its published files. No Spark.

    with open_views(home, whole_table(JOURNEYS)) as sql:
        query(sql, "SELECT topic, count(*) AS messages FROM journeys GROUP BY topic")

Times are TIMESTAMP WITH TIME ZONE in UTC, as in the files. Only files that may contain matching rows are opened: they are selected
by bucket or by time from the list (`files_between`), and inside of a file by its order (`TableSchema.sort_columns`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ariane.tables import TableSchema
from ariane.tables.table import split_type
from ariane.tables.table_format import DataFile
from ariane.tables.table_home import Home
from ariane.tables.table_store import open_store

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Result = TypeVar("Result")

REPEAT_S = 0.1  # time after which an interruption of a connection is repeated


class TablePart(NamedTuple):
    """The files of a table that a query may need."""

    table: TableSchema
    is_needed: Callable[[DataFile], bool]


def whole_table(table: TableSchema) -> TablePart:
    """Select all files of a table."""
    return TablePart(table, lambda _: True)


def files_between(table: TableSchema, since_ms: int, until_ms: int) -> TablePart:
    """Select the files with times (column `TableSchema.time_column`) in a range, and those with rows without a time."""

    def is_needed(file: DataFile) -> bool:
        if file.first_ms is None or file.last_ms is None:
            return True
        return file.first_ms <= until_ms and file.last_ms >= since_ms

    return TablePart(table, is_needed)


def files_of_buckets(table: TableSchema, buckets: set[str]) -> TablePart:
    return TablePart(table, lambda file: file.bucket in buckets)


class QueryInterruption:
    """Ends the queries of a function from another thread.

    The function runs as `interruption.run(function)`; `interrupt()` lets its query, or its next one, raise duckdb.Error.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the two attributes below
        self._sql: DuckDBPyConnection | None = None
        self._is_interrupted = False

    def run(self, function: Callable[[], Result]) -> Result:
        """Return the result of a function that opens views."""
        context = copy_context()
        context.run(_interruption.set, self)
        return context.run(function)

    def interrupt(self) -> None:
        """End the running query, and all later ones."""
        with self._lock:
            self._is_interrupted = True
            if self._sql is None:
                return
            self._sql.interrupt()
        # Between two queries a connection ignores it, so it is repeated until the connection is closed.
        repeat = threading.Timer(REPEAT_S, self.interrupt)
        repeat.daemon = True
        repeat.start()

    @contextmanager
    def watch(self, sql: DuckDBPyConnection) -> Iterator[None]:
        """Interrupt a connection together with the function that opened it."""
        import duckdb

        with self._lock:
            if self._is_interrupted:
                raise duckdb.InterruptException("the query was interrupted before it began")
            outer, self._sql = self._sql, sql
        try:
            yield
        finally:
            with self._lock:
                self._sql = outer


_interruption: ContextVar[QueryInterruption | None] = ContextVar("interruption", default=None)

RowSelection = Callable[["DuckDBPyConnection", TableSchema, str], str]
"""Returns the statement that selects the rows to show from a view with all rows of a table: (connection, table, view)."""

_selection: ContextVar[RowSelection | None] = ContextVar("selection", default=None)


@contextmanager
def with_rows(selection: RowSelection | None) -> Iterator[None]:
    """Let the views that the block opens contain the selected rows only; None: all rows."""
    token = _selection.set(selection)
    try:
        yield
    finally:
        _selection.reset(token)


@contextmanager
def open_views(home: Home, *parts: TablePart) -> Iterator[DuckDBPyConnection]:
    """Provide a connection with one view per part, named like its table. An unpublished table has no rows."""
    import duckdb

    interruption, selection = _interruption.get(), _selection.get()
    with duckdb.connect() as sql, interruption.watch(sql) if interruption else nullcontext():
        sql.execute("SET TimeZone = 'UTC'")
        for table, is_needed in parts:
            # An empty part with all columns, so that a query is valid before the table is published.
            columns = ", ".join(f'NULL::{sql_type(column.type)} AS "{column.name}"' for column in table.columns)
            empty = f"SELECT {columns} WHERE false"
            files = _add_files(sql, home, TablePart(table, is_needed))
            # BY NAME, because files of an older schema may lack columns; the empty part supplies their types.
            view = f"{empty} UNION ALL BY NAME SELECT * FROM {files}" if files else empty
            if selection is not None:
                sql.execute(f'CREATE VIEW "all {table.name}" AS {view}')
                view = selection(sql, table, f'"all {table.name}"')
            sql.execute(f'CREATE VIEW "{table.name}" AS {view}')
        yield sql


def _add_files(sql: DuckDBPyConnection, home: Home, part: TablePart) -> str | None:
    """Return an expression for FROM with the rows of the published files; None without files."""
    table, is_needed = part
    store = open_store(home)
    version = store.read_version(table)
    files = [file for file in version.files if is_needed(file)] if version else []
    if not files:
        return None
    if store.directory is None:
        sql.register(f"{table.name} files", store.open_dataset(table, files))
        return f'"{table.name} files"'
    paths = (str(store.directory / table.name / file.path) for file in files)
    listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
    return f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"


def query(sql: DuckDBPyConnection, statement: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
    """Return the rows of a query as dicts by column name."""
    result = sql.execute(statement, list(values))
    names = [column[0] for column in result.description]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


SIMPLE = {
    "STRING": "VARCHAR",
    "BIGINT": "BIGINT",
    "INT": "INTEGER",
    "DOUBLE": "DOUBLE",
    "BOOLEAN": "BOOLEAN",
    "TIMESTAMP": "TIMESTAMP WITH TIME ZONE",
    "DATE": "DATE",
    "BINARY": "BLOB",
}


def sql_type(ddl: str) -> str:
    """Return the DuckDB type of a Spark type.

    Raises:
        KeyError: no table uses the type.
    """
    if ddl in SIMPLE:
        return SIMPLE[ddl]
    kind, parts = split_type(ddl)
    if kind == "ARRAY":
        return f"{sql_type(parts[0])}[]"
    if kind == "MAP":
        return f"MAP({', '.join(map(sql_type, parts))})"
    fields = (part.split(":", 1) for part in parts)
    return "STRUCT(" + ", ".join(f'"{name.strip()}" {sql_type(inner.strip())}' for name, inner in fields) + ")"
