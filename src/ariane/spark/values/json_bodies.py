"""Bodies in JSON, also change events of Debezium.

Debezium's JSON converter writes `{"before": …, "after": …, "source": …, "op": "u", "ts_ms": …}`, and with `schemas.enable` the
same as `payload` of `{"schema": …, "payload": …}`. A tombstone (the key of a deleted row without a value, for compaction in Kafka)
follows the event with `op` = `d`; it has no body, or `null`. [Debezium, "Data change events" of its connectors]
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from types import GenericAlias
from typing import Annotated, Any, TypedDict

import msgspec

from ariane.errors import ConfigError
from ariane.spark.values.value_types import DECIMAL, ValueType, ddl

_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_SCALARS: dict[str, Any] = {
    "boolean": bool,
    "float": float,
    "double": float,
    "string": str,
    "binary": bytes,  # base64, as Spark's from_json reads it
    "date": datetime.date,
    "timestamp": datetime.datetime,
    "timestamp_ntz": Annotated[datetime.datetime, msgspec.Meta(tz=False)],
    **{
        name: Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]
        for name, bits in _INTEGER_BITS.items()
    },
}

# Fields of `source` that all connectors write; a schema of the user may name others.
DEBEZIUM_SOURCE = (
    "version string, connector string, name string, ts_ms bigint, snapshot string, "
    "db string, `schema` string, `table` string"
)


def decoder(kind: ValueType) -> Callable[[bytes], Any]:
    """Return a function that decodes a body to a value of the type `kind`; it raises ValueError."""
    return msgspec.json.Decoder(_python_type(kind, "value")).decode


def debezium_ddl(row_ddl: str) -> str:
    """Return the type of the column `value` for rows with the type `row_ddl`."""
    return f"struct<before {row_ddl}, after {row_ddl}, source struct<{DEBEZIUM_SOURCE}>, op string, ts_ms bigint>"


def debezium_decoder(kind: ValueType) -> Callable[[bytes], Any]:
    """Return a function that decodes a change event; the value of a tombstone is None."""
    if not isinstance(kind, dict):
        raise ConfigError("schema", "value", "expected a struct with some of before, after, source, op, ts_ms")
    envelope = _python_type({**kind, "op": "string"}, "value")
    outer = _dictionary("Outer", {**envelope.__annotations__, "payload": envelope | None})
    decode_body = msgspec.json.Decoder(outer | None).decode

    def decode(body: bytes) -> Any:
        event: Any = decode_body(body) if body else None
        if event is not None and "payload" in event:
            event = event["payload"]
        if event is not None and event.get("op") is None:
            raise ValueError(
                "not a change event of Debezium, as it has no op: use bodyFormat=json for rows (ExtractNewRecordState)"
            )
        return event

    return decode


def _dictionary(name: str, fields: dict[str, Any]) -> Any:
    make: Any = TypedDict  # type checkers accept literal fields only
    return make(name, fields, total=False)


def _python_type(kind: ValueType, path: str) -> Any:
    """Return a type for msgspec. Every value may be null or absent."""
    if isinstance(kind, dict):
        fields = {name: _python_type(inner, f"{path}.{name}") | None for name, inner in kind.items()}
        return _dictionary("Value", fields)
    if isinstance(kind, list):
        return GenericAlias(list, (_python_type(kind[0], f"{path}[]") | None,))
    if isinstance(kind, tuple):
        if kind[0] != "string":
            raise ConfigError("schema", f"{path} {ddl(kind)}", "names of JSON are strings: declare map<string, …>")
        return GenericAlias(dict, (str, _python_type(kind[1], f"{path}{{}}") | None))
    if DECIMAL.fullmatch(kind):
        return decimal.Decimal
    if kind not in _SCALARS:
        raise ConfigError("schema", f"{path} {kind}", "JSON has no such value: declare a string and cast it")
    return _SCALARS[kind]
