"""Types of decoded values as plain data, with their names in Spark and their Arrow types.

"bigint"    {"id": "bigint", "tags": ["string"]}    ["int"]    ("string", "double")
a scalar    a struct                                an array   a map
"""

from __future__ import annotations

import re
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from ariane.errors import ConfigError

ValueType: TypeAlias = str | dict[str, "ValueType"] | list["ValueType"] | tuple["ValueType", "ValueType"]

SCALARS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "interval day to second": pa.duration("us"),
}
DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def ddl(kind: ValueType) -> str:
    """Return the type in Spark's SQL."""
    if isinstance(kind, dict):
        return f"struct<{', '.join(f'{_quote(name)}: {ddl(inner)}' for name, inner in kind.items())}>"
    if isinstance(kind, list):
        return f"array<{ddl(kind[0])}>"
    if isinstance(kind, tuple):
        return f"map<{ddl(kind[0])}, {ddl(kind[1])}>"
    return kind


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def arrow_type(kind: ValueType) -> pa.DataType:
    """Return the Arrow type that Spark expects for `kind`."""
    if isinstance(kind, dict):
        return pa.struct([(name, arrow_type(inner)) for name, inner in kind.items()])
    if isinstance(kind, list):
        return pa.list_(pa.field("element", arrow_type(kind[0])))
    if isinstance(kind, tuple):
        return pa.map_(arrow_type(kind[0]), arrow_type(kind[1]))
    if decimal := DECIMAL.fullmatch(kind):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return SCALARS[kind]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for `schema`."""
    fields = [(field, arrow_type(from_spark(field.dataType, field.name))) for field in schema.fields]
    return pa.schema([pa.field(field.name, kind, field.nullable) for field, kind in fields])


def from_spark(kind: DataType, path: str) -> ValueType:
    """Return the type of a column.

    Args:
        path: Name of the column or field, for messages.

    Raises:
        ConfigError: the type cannot be decoded, or it excludes nulls, which a decoded body may contain.
    """
    if isinstance(kind, StructType):
        for field in kind.fields:
            _require_nullable(field.nullable, f"{path}.{field.name}")
        return {field.name: from_spark(field.dataType, f"{path}.{field.name}") for field in kind.fields}
    if isinstance(kind, ArrayType):
        _require_nullable(kind.containsNull, f"{path}[]")
        return [from_spark(kind.elementType, f"{path}[]")]
    if isinstance(kind, MapType):
        _require_nullable(kind.valueContainsNull, f"{path}{{}}")
        return from_spark(kind.keyType, f"{path} (key)"), from_spark(kind.valueType, f"{path}{{}}")
    name: str = kind.simpleString()
    if name not in SCALARS and not DECIMAL.fullmatch(name):
        raise ConfigError("schema", f"{path} {name}", f"bodies cannot be decoded to it; expected {', '.join(SCALARS)}")
    return name


def _require_nullable(nullable: bool, path: str) -> None:
    if not nullable:
        raise ConfigError("schema", path, "is NOT NULL, but a body may lack it: remove NOT NULL")


def check_subset(requested: ValueType, declared: ValueType, path: str) -> None:
    """Raise ConfigError unless `requested` names fields of `declared` with their types; fields may be omitted."""
    if isinstance(requested, dict) and isinstance(declared, dict):
        for name, inner in requested.items():
            if name not in declared:
                raise ConfigError(
                    "schema", f"{path}.{name}", f"is not a field of the body: expected {', '.join(declared)}"
                )
            check_subset(inner, declared[name], f"{path}.{name}")
    elif isinstance(requested, list) and isinstance(declared, list):
        check_subset(requested[0], declared[0], f"{path}[]")
    elif isinstance(requested, tuple) and isinstance(declared, tuple):
        check_subset(requested[0], declared[0], f"{path} (key)")
        check_subset(requested[1], declared[1], f"{path}{{}}")
    elif requested != declared:
        raise ConfigError(
            "schema", f"{path} {ddl(requested)}", f"expected type {ddl(declared)}, as the body's schema has it"
        )
