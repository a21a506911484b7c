"""The columns that a read has to decode: those of the user's schema (`.schema("body BINARY")`), or all."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.types import StructType

from ariane.errors import ConfigError


def requested_columns(schema: StructType, columns: Mapping[str, tuple[pa.DataType, str]]) -> list[str]:
    """Return the column names of `schema`; raise ConfigError for a column that is not in `columns` or has another type."""
    for field in schema.fields:
        if field.name not in columns:
            raise ConfigError(
                "schema", field.name, f"is not a column of the source; expected some of {', '.join(columns)}"
            )
        ddl = columns[field.name][1].replace(" ", "").lower()
        if field.dataType.simpleString() != ddl:
            raise ConfigError("schema", f"{field.name} {field.dataType.simpleString()}", f"expected type {ddl}")
    return list(schema.names)
