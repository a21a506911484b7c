"""Tables as the pipeline publishes them, written with pyarrow: for tests of what reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ariane.admin.asking import sql_type
from ariane.admin.published import CURRENT, File, Published
from ariane.tables import Table


def schema(table: Table) -> pa.Schema:
    """The columns of a table as Arrow's."""
    nulls = ", ".join(f'NULL::{sql_type(column.type)} AS "{column.name}"' for column in table.columns)
    with duckdb.connect() as sql:
        sql.execute("SET TimeZone = 'UTC'")
        return sql.sql(f"SELECT {nulls}").to_arrow_table().schema


def put(
    home: Path, table: Table, slots: Mapping[str, Sequence[Mapping[str, Any]]], as_of_ms: int | None = None
) -> Published:
    """Publish rows by slot, columns that they lack as null; each slot is a file."""
    files = []
    for slot, rows in slots.items():
        full = [dict.fromkeys(table.names) | dict(row) for row in rows]
        assert all(row.keys() == set(table.names) for row in full), "a column that the table has not"
        path = home / table.name / "v=00000001" / f"slot={slot}" / "part-0.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(full, schema(table)), path)
        times = [round(row[table.time].timestamp() * 1000) for row in full if row[table.time] is not None]
        name = path.relative_to(home / table.name).as_posix()
        first, last = min(times, default=None), max(times, default=None)
        files.append(File(name, slot, len(full), path.stat().st_size, 1, first, last))
    now = Published(1, table.schema, sum(file.rows for file in files), as_of_ms, tuple(files))
    (home / table.name / CURRENT).write_bytes(msgspec.json.encode(now))
    return now
