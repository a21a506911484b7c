"""Which columns a read was asked for: those of the user's schema (`.schema("body BINARY")`), or all."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.types import StructType

from ariane.errors import ConfigError


def requested_columns(schema: StructType, columns: Mapping[str, tuple[pa.DataType, str]]) -> list[str]:
    """Names of the columns in `schema`; ConfigError for one that is not `there`, or has another type."""
    for field in schema.fields:
        if field.name not in columns:
            raise ConfigError("schema", field.name, f"is no column of the source; it has {', '.join(columns)}")
        ddl = columns[field.name][1].replace(" ", "").lower()
        if field.dataType.simpleString() != ddl:
            raise ConfigError("schema", f"{field.name} {field.dataType.simpleString()}", f"the column is {ddl}")
    return list(schema.names)
