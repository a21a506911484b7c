"""Published tables written without Spark, for tests of their readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ariane.tables import TableSchema
from ariane.tables.arrow_types import arrow_schema
from ariane.tables.table_format import CURRENT, DataFile, TableVersion
from ariane.tables.table_store import read_version


def put(
    home: Path,
    table: TableSchema,
    rows: Sequence[Mapping[str, Any]],
    *,
    bucket: str = "2023-11-14T2210",
    as_of_ms: int | None = None,
    applied: Mapping[str, int] = {},
) -> TableVersion:
    """Add rows, in a file of `bucket`; columns that a row does not name are null."""
    former = read_version(home, table) or TableVersion(0, table.schema, 0, None)
    number = former.version + 1
    path = Path(f"v={number:08d}") / f"bucket={bucket}" / "part-0.parquet"
    directory = home / table.name / path
    directory.parent.mkdir(parents=True)
    complete = [dict.fromkeys(table.column_names) | dict(row) for row in rows]
    assert all(set(row) == set(table.column_names) for row in complete), "a row has a column that the table has not"
    pq.write_table(pa.Table.from_pylist(complete, arrow_schema(table)), directory)
    times = [int(row[table.time_column].timestamp() * 1000) for row in complete if row[table.time_column] is not None]
    file = DataFile(
        path.as_posix(),
        bucket,
        len(rows),
        directory.stat().st_size,
        number,
        min(times, default=None),
        max(times, default=None),
    )
    now = TableVersion(number, table.schema, former.rows + len(rows), as_of_ms, (*former.files, file), dict(applied))
    (home / table.name / CURRENT).write_bytes(msgspec.json.encode(now))
    return now
