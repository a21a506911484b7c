"""Schema of a table: its columns (types, units, nullability, meaning, sources) and the physical layout of its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

NOT_NULL = " NOT NULL"
# Units that the end of a column's name states; others are in `TableSchema.units`.
UNIT_SUFFIXES = {"_ms": "ms", "_s": "s", "_tps": "1/s", "_bytes": "bytes"}


class ColumnSchema(NamedTuple):
    """A column.

    Attributes:
        name: Name.
        type: Spark SQL type (DDL).
        description: Its meaning; may be empty if the name is self-explanatory.
        is_nullable: Whether rows of the present schema can have null.
        unit: ms, s, 1/s, bytes, or empty. Times are UTC.
        sources: Columns that its values are computed from: `table.column`, or `@topic.column` of a topic's messages
            (`ariane.tables.lineage`).
    """

    name: str
    type: str
    description: str
    is_nullable: bool
    unit: str
    sources: tuple[str, ...]


# Small enough that a lookup of one message reads little, large enough to compress well.
ROW_GROUP_BYTES = 16 * 1024 * 1024


class TableSchema(NamedTuple):
    """A table of Parquet files under HOME/<name>, see `ariane.tables.table_format`. Readers rely on it: it is their contract."""

    name: str  # also the directory below HOME and the name of the view in queries
    description: str  # one sentence for `ariane pipeline tables`
    definitions: Mapping[str, str]
    """`name TYPE` or `name TYPE NOT NULL` of each column → its meaning, in the order of the files; readers select by name."""
    time_column: str
    """TIMESTAMP column that determines the age of files."""
    sort_columns: tuple[str, ...]
    """Columns by which the rows of a file are sorted, so that a query reads few of its pages."""
    schema: int = 1
    """Version of the column set, increased with each change. Files of another schema remain readable: missing columns are null.
    Tables that are computed from other tables are rebuilt."""

    row_group_bytes: int = ROW_GROUP_BYTES
    """Approximate size of a row group. A query that finds one row by `sort_columns` reads one row group."""
    sources: Mapping[str, str] = {}
    """Names of columns → the columns that they are computed from (`ColumnSchema.sources`), both separated by spaces. `*` stands for
    all other columns; `table.*` for the column of the same name."""
    units: Mapping[str, str] = {}
    """Units of columns whose names do not state them."""

    @property
    def columns(self) -> tuple[ColumnSchema, ...]:
        return tuple(self._column(*definition) for definition in self.definitions.items())

    def _column(self, definition: str, description: str) -> ColumnSchema:
        name, _, kind = definition.partition(" ")
        by_suffix = (unit for suffix, unit in UNIT_SUFFIXES.items() if name.endswith(suffix))
        return ColumnSchema(
            name,
            kind.removesuffix(NOT_NULL),
            description,
            not kind.endswith(NOT_NULL),
            self.units.get(name) or next(by_suffix, ""),
            self._sources_of(name),
        )

    def _sources_of(self, name: str) -> tuple[str, ...]:
        listed = (sources for names, sources in self.sources.items() if name in names.split())
        sources = next(listed, self.sources.get("*", ""))
        return tuple(f"{source[:-1]}{name}" if source.endswith(".*") else source for source in sources.split())

    @property
    def ddl(self) -> str:
        """The columns as Spark DDL. All are nullable, because files of an older schema lack columns."""
        return ", ".join(definition.removesuffix(NOT_NULL) for definition in self.definitions)

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(definition.partition(" ")[0] for definition in self.definitions)


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
    rows = [
        f"| `{column.name}` | {column.type}{'' if column.is_nullable else NOT_NULL} | {column.description} |\n"
        for column in table.columns
    ]
    layout = f"Schema {table.schema}. Files are sorted by {', '.join(table.sort_columns)}; retention uses `{table.time_column}`."
    return f"## {table.name}\n\n{table.description}\n{layout}\n\n| column | type | |\n|---|---|---|\n{''.join(rows)}"
