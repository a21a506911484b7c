"""Schema of a table: name, columns with types and descriptions, and the physical layout of its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


class ColumnSchema(NamedTuple):
    """A column. `type` is a Spark SQL type (DDL). `description` may be empty if the name is self-explanatory."""

    name: str
    type: str
    description: str


# Small enough that a lookup of one message reads little, large enough to compress well.
ROW_GROUP_BYTES = 16 * 1024 * 1024


class TableSchema(NamedTuple):
    """A table of Parquet files under HOME/<name>, see `ariane.tables.table_format`."""

    name: str  # also the directory below HOME and the name of the view in queries
    description: str  # one sentence for `ariane pipeline tables`
    definitions: Mapping[str, str]
    """`name TYPE` of each column → its description, in the order of the files; readers select by name."""
    time_column: str
    """TIMESTAMP column that determines the age of files."""
    sort_columns: tuple[str, ...]
    """Columns by which the rows of a file are sorted, so that a query reads few of its pages."""
    schema: int = 1
    """Number of the column set, increased with each change. Files of another schema remain readable: missing columns are null.
    Tables that are computed from other tables are rebuilt."""

    row_group_bytes: int = ROW_GROUP_BYTES
    """Approximate size of a row group. A query that finds one row by `sort_columns` reads one row group."""

    @property
    def columns(self) -> tuple[ColumnSchema, ...]:
        split = ((key.partition(" "), description) for key, description in self.definitions.items())
        return tuple(ColumnSchema(name, kind, description) for (name, _, kind), description in split)

    @property
    def ddl(self) -> str:
        """The columns as Spark DDL."""
        return ", ".join(self.definitions)

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def split_type(ddl: str) -> tuple[str, list[str]]:
    """Return ARRAY, MAP or STRUCT, and the parts between its angle brackets.

    Raises:
        KeyError: another type.
    """
    match = re.fullmatch(r"(ARRAY|MAP|STRUCT)<(.*)>", ddl, re.DOTALL)
    if match is None:
        raise KeyError(ddl)
    kind, inside = match.groups()
    # Commas within nested types do not separate parts.
    parts, depth = [""], 0
    for char in inside:
        depth += (char == "<") - (char == ">")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return kind, [part.strip() for part in parts]


def markdown_page(table: TableSchema) -> str:
    """Return the description of a table as Markdown."""
    rows = [f"| `{column.name}` | {column.type} | {column.description} |\n" for column in table.columns]
    layout = f"Schema {table.schema}. Files are sorted by {', '.join(table.sort_columns)}; retention uses `{table.time_column}`."
    return f"## {table.name}\n\n{table.description}\n{layout}\n\n| column | type | |\n|---|---|---|\n{''.join(rows)}"
