"""Schema of a table in Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ariane.tables.table import TableSchema, split_type

if TYPE_CHECKING:
    import pyarrow as pa


def arrow_schema(table: TableSchema) -> pa.Schema:
    """Return the columns of a table in Arrow."""
    import pyarrow as pa

    return pa.schema([(column.name, arrow_type(column.type)) for column in table.columns])


def arrow_type(ddl: str) -> pa.DataType:
    """Return the Arrow type of a Spark type."""
    import pyarrow as pa

    simple = {
        "STRING": pa.string(), "BIGINT": pa.int64(), "INT": pa.int32(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"), "DATE": pa.date32(), "BINARY": pa.binary(),
    }  # fmt: skip
    if ddl in simple:
        return simple[ddl]
    kind, parts = split_type(ddl)
    if kind == "ARRAY":
        return pa.list_(arrow_type(parts[0]))
    if kind == "MAP":
        return pa.map_(*map(arrow_type, parts))
    fields = (part.split(":", 1) for part in parts)
    return pa.struct([(name.strip(), arrow_type(inner.strip())) for name, inner in fields])
