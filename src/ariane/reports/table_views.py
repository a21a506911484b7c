"""Questions to the pipeline's tables in SQL: each table is a view over the files that are published now. Never Spark.

    with asked(home, whole(JOURNEYS)) as sql:
        rows(sql, "SELECT topic, count(*) AS messages FROM journeys GROUP BY topic")

Times are TIMESTAMP WITH TIME ZONE in UTC, as in the files. Only the files that a question can need are opened: they are chosen
by bucket or by time from the list (`between`), and inside of a file by its order (`Table.order`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ariane.tables import TableSchema
from ariane.tables.table_format import DataFile, data_paths

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class TablePart(NamedTuple):
    """Those files of a table that a question can need."""

    table: TableSchema
    is_needed: Callable[[DataFile], bool]


def whole_table(table: TableSchema) -> TablePart:
    return TablePart(table, lambda _: True)


def files_between(table: TableSchema, since_ms: int, until_ms: int) -> TablePart:
    """The files that hold times (of `Table.time`) between two instants, or rows without a time."""

    def wanted(file: DataFile) -> bool:
        if file.first_ms is None or file.last_ms is None:
            return True
        return file.first_ms <= until_ms and file.last_ms >= since_ms

    return TablePart(table, wanted)


def files_of_buckets(table: TableSchema, buckets: set[str]) -> TablePart:
    return TablePart(table, lambda file: file.bucket in buckets)


@contextmanager
def open_views(home: Path, *parts: TablePart) -> Iterator[DuckDBPyConnection]:
    """A connection with one view per part, named as its table. A table that is not published has no rows."""
    import duckdb

    with duckdb.connect() as sql:
        sql.execute("SET TimeZone = 'UTC'")
        for table, wanted in parts:
            files = [str(path) for path in data_paths(home, table, wanted)]
            columns = ", ".join(f'NULL::{sql_type(column.type)} AS "{column.name}"' for column in table.columns)
            nothing = f"SELECT {columns} WHERE false"
            # By name, because files of an older schema may lack columns; the empty part tells the types.
            listed = "[" + ", ".join("'" + file.replace("'", "''") + "'" for file in files) + "]"
            there = f"SELECT * FROM read_parquet({listed}, union_by_name = true, hive_partitioning = false)"
            view = f"{nothing} UNION ALL BY NAME {there}" if files else nothing
            sql.execute(f'CREATE VIEW "{table.name}" AS {view}')
        yield sql


def query(sql: DuckDBPyConnection, question: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
    """The answer, as dicts by the names of its columns."""
    answer = sql.execute(question, list(values))
    names = [column[0] for column in answer.description]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


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
    """DuckDB's name of a type that Spark calls `ddl`; KeyError for one that no table has."""
    if ddl in SIMPLE:
        return SIMPLE[ddl]
    kind, parts = split_type(ddl)
    if kind == "ARRAY":
        return f"{sql_type(parts[0])}[]"
    if kind == "MAP":
        return f"MAP({', '.join(map(sql_type, parts))})"
    fields = (part.split(":", 1) for part in parts)
    return "STRUCT(" + ", ".join(f'"{name.strip()}" {sql_type(inner.strip())}' for name, inner in fields) + ")"


def split_type(ddl: str) -> tuple[str, list[str]]:
    """ARRAY, MAP or STRUCT, and the parts between its angle brackets; KeyError for another type."""
    found = re.fullmatch(r"(ARRAY|MAP|STRUCT)<(.*)>", ddl, re.DOTALL)
    if found is None:
        raise KeyError(ddl)
    kind, inside = found.groups()
    parts, depth = [""], 0
    for char in inside:
        depth += (char == "<") - (char == ">")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return kind, [part.strip() for part in parts]
