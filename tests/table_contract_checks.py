"""Rows of the pipeline's tables must be as declared: no null in a column that is NOT NULL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ariane.reports.tables import table_views
from ariane.tables import ALL_TABLES
from ariane.tables.table_format import BUCKET
from ariane.tables.table_store import read_version


def check_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    """Check rows with the columns of a table and `bucket`; other rows are ignored."""
    tables = {table.column_names: table for table in ALL_TABLES}
    for row in rows:
        table = tables.get(tuple(name for name in row if name != BUCKET))
        if table is not None:
            nulls = [column.name for column in table.columns if not column.is_nullable and row[column.name] is None]
            assert nulls == [], f"{table.name}: declared NOT NULL in ariane.tables"


def check_home(home: Path) -> list[str]:
    """Check all tables of a directory. Return the names of those with rows."""
    checked = []
    for table in ALL_TABLES:
        version = read_version(home, table)
        if version is None or not version.rows:
            continue
        required = [column.name for column in table.columns if not column.is_nullable]
        counts = ", ".join(f'count(*) - count("{name}") AS "{name}"' for name in required)
        with table_views.open_views(home, table_views.whole_table(table)) as sql:
            (row,) = table_views.query(sql, f"SELECT {counts} FROM {table.name}")
        assert not any(row.values()), f"{table.name}: declared NOT NULL in ariane.tables, nulls: {row}"
        checked.append(table.name)
    return checked
