"""What a table is: a name, columns with types and meanings, and how its files lie."""

from __future__ import annotations

from typing import NamedTuple


class ColumnSchema(NamedTuple):
    """`type` is Spark's name of it (DDL). `meaning` may be empty where the name says it all."""

    name: str
    type: str
    description: str


# Small enough that a question for one message reads little, large enough to compress.
ROW_GROUP_BYTES = 16 * 1024 * 1024


class TableSchema(NamedTuple):
    """A table of Parquet files under HOME/<name>; which files, says HOME/<name>/CURRENT (`ariane.tables.table_format`)."""

    name: str
    description: str
    columns: tuple[ColumnSchema, ...]
    time_column: str
    """The TIMESTAMP column by which files are known to be old or new."""
    sort_columns: tuple[str, ...]
    """The columns by which the rows of a file are sorted, so that a question reads few of its pages."""
    schema: int = 1
    """Counts changes of the columns. Files of another number are still read: columns that they lack are null; a table that
    is folded from others is folded anew."""

    row_group_bytes: int = ROW_GROUP_BYTES
    """About the size of a row group: a question that finds one row by `order` reads one of them."""

    @property
    def ddl(self) -> str:
        return ", ".join(f"{column.name} {column.type}" for column in self.columns)

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def markdown_page(table: TableSchema) -> str:
    """The table for people, as Markdown."""
    rows = [f"| `{column.name}` | {column.type} | {column.description} |\n" for column in table.columns]
    about = f"Schema {table.schema}. Files are sorted by {', '.join(table.sort_columns)}; old and new go by `{table.time_column}`."
    return f"## {table.name}\n\n{table.description}\n{about}\n\n| column | type | |\n|---|---|---|\n{''.join(rows)}"
