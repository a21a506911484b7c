"""Bodies in Avro's binary encoding. The schema of the query is the reader's; writers may use other versions of it.

A framed body names the schema of its writer, which the registry has; a body without a frame was written with the reader's. Logical
types are applied as in Avro's Java library: the reader's, to the number or bytes that the resolution of both schemas gives.
"""

from __future__ import annotations

import decimal
import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

from ariane.errors import ConfigError
from ariane.extras import naming_extras
from ariane.spark.values.framing import read_frame
from ariane.spark.values.registry import SchemaRegistry, SchemaText, UnknownSchema, fetch_schema
from ariane.spark.values.value_types import ValueType, ddl

with naming_extras():
    import fastavro
    from fastavro.types import Schema

Convert = Callable[[Any], Any]

_PRIMITIVES = {
    "boolean": "boolean", "int": "int", "long": "bigint", "float": "float", "double": "double", "bytes": "binary",
    "fixed": "binary", "string": "string", "enum": "string",
}  # fmt: skip
# logical type → Spark's type, conversion of the stored number to what Arrow expects
_LOGICAL: dict[tuple[str, str], tuple[str, Convert | None]] = {
    ("int", "date"): ("date", None),
    ("long", "timestamp-millis"): ("timestamp", lambda ms: ms * 1000),
    ("long", "timestamp-micros"): ("timestamp", None),
    ("long", "timestamp-nanos"): ("timestamp", lambda ns: ns // 1000),
    ("long", "local-timestamp-millis"): ("timestamp_ntz", lambda ms: ms * 1000),
    ("long", "local-timestamp-micros"): ("timestamp_ntz", None),
    ("long", "local-timestamp-nanos"): ("timestamp_ntz", lambda ns: ns // 1000),
}
# Python's types of decoded members of a union; several members of a row are ambiguous, except records.
_MEMBER_TYPES: dict[str, type] = {
    "boolean": bool, "int": int, "long": int, "float": float, "double": float, "string": str, "enum": str, "bytes": bytes,
    "fixed": bytes, "record": dict, "map": dict, "array": list,
}  # fmt: skip
_WIDER = ({"int", "long"}, "long"), ({"float", "double"}, "double")
_DECIMAL_CONTEXT = decimal.Context(prec=80)
DECIMAL_DIGITS_MAX = 38

_ERRORS = (
    ValueError, TypeError, LookupError, EOFError, ArithmeticError, AttributeError, RecursionError, MemoryError,
    fastavro.read.SchemaResolutionError,
)  # fmt: skip


class AvroDecoder:
    """Decodes bodies to values of the reader's schema."""

    def __init__(self, schema: SchemaText, id_bytes: int, registry: SchemaRegistry | None) -> None:
        self._schema = schema
        self.kind, self._convert, self._options = compile_schema(_parse(schema))
        self._reader = _parse(_without_logical_types(schema))
        self._id_bytes = id_bytes  # 0: bodies have no frame
        self._registry = registry
        # By id the parsed schema of the writer, and the reader's, if they differ. As many as a task's bodies have ids.
        self._schemas: dict[int, tuple[Schema, Schema | None]] = {}
        self._unknown: dict[int, UnknownSchema] = {}  # ids that the registry does not have, requested once for a task

    def __call__(self, body: bytes) -> Any:
        """Return the value of a body; raise ValueError if it has none."""
        stream = BytesIO(body)
        writer: Schema = self._reader
        reader: Schema | None = None
        if self._id_bytes:
            frame = read_frame(body, self._id_bytes)
            stream.seek(frame.start)
            writer, reader = self._schemas.get(frame.schema_id) or self._look_up(frame.schema_id)
        try:
            value = fastavro.schemaless_reader(stream, writer, reader, **self._options)
            if (rest := len(body) - stream.tell()) > 0:
                raise ValueError(f"{rest} bytes are left after the value: was the body written with another schema?")
            return value if self._convert is None else self._convert(value)
        except _ERRORS as error:
            raise ValueError(f"not Avro of this schema: {type(error).__name__}: {error}") from None

    def _look_up(self, schema_id: int) -> tuple[Schema, Schema | None]:
        assert self._registry is not None, "options require a registry for framed Avro"
        if schema_id in self._unknown:
            raise self._unknown[schema_id]
        try:
            schema = fetch_schema(self._registry, schema_id)
        except UnknownSchema as error:
            self._unknown[schema_id] = error
            raise
        same = schema == self._schema
        self._schemas[schema_id] = _parse(_without_logical_types(schema)), None if same else self._reader
        return self._schemas[schema_id]


def _parse(schema: SchemaText) -> Schema:
    """Parse a schema; raise ValueError if it is not Avro."""
    try:
        named: dict[str, Any] = {}
        for text in schema.references:
            fastavro.parse_schema(json.loads(text), named_schemas=named)
        return fastavro.parse_schema(json.loads(schema.text), named_schemas=named)
    except (ValueError, TypeError, LookupError, fastavro.schema.SchemaParseException) as error:
        raise ValueError(f"not a schema of Avro: {type(error).__name__}: {error}") from None


def read_schema(schema: SchemaText, option: str) -> ValueType:
    """Return the type of the values; raise ConfigError if the schema is invalid or has no type in Spark."""
    try:
        return compile_schema(_parse(schema))[0]
    except ValueError as error:
        raise ConfigError(option, schema.text[:80], str(error)) from None


def _without_logical_types(schema: SchemaText) -> SchemaText:
    """Return the schema with stored types only, because fastavro applies those of the writer, and Avro the reader's."""

    def strip(node: Any) -> Any:
        if isinstance(node, list):
            return [strip(item) for item in node]
        if not isinstance(node, dict):
            return node
        nested = ("type", "items", "values", "fields")
        return {
            key: strip(item) if key in nested else item for key, item in node.items() if key not in ("logicalType",)
        }

    texts = [json.dumps(strip(json.loads(text))) for text in (schema.text, *schema.references)]
    return SchemaText(texts[0], tuple(texts[1:]))


def compile_schema(parsed: Any) -> tuple[ValueType, Convert | None, dict[str, Any]]:
    """Return the type of a schema, the conversion of fastavro's values (None: none needed) and fastavro's options."""
    compiler = _Compiler(parsed, names_records=False)
    kind, convert = compiler.compile(parsed, "value")
    if compiler.has_union_of_records:
        # fastavro then has to return the name with each record of a union, so the conversions differ.
        kind, convert = _Compiler(parsed, names_records=True).compile(parsed, "value")
    if not isinstance(kind, dict):
        raise ConfigError("bodySchema", ddl(kind), "expected a record as the type of a body")
    return kind, convert, {"return_record_name": True} if compiler.has_union_of_records else {}


class _Compiler:
    """Compiles a schema with its named types."""

    def __init__(self, parsed: Any, *, names_records: bool) -> None:
        self._named: dict[str, Any] = dict(parsed.get("__named_schemas", {})) if isinstance(parsed, dict) else {}
        self._open: list[str] = []  # names of the records that enclose the current one
        self._names_records = names_records  # whether records of unions are (name, record)
        self.has_union_of_records = False

    def compile(self, schema: Any, path: str) -> tuple[ValueType, Convert | None]:
        if isinstance(schema, list):
            return self._union(schema, path)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _PRIMITIVES[schema], None
            if schema in self._named:
                return self.compile(self._named[schema], path)
            raise ConfigError("bodySchema", f"{path} {schema}", "has no type in Spark")
        name = schema["type"]
        if name in ("record", "error"):
            return self._record(schema, path)
        if name == "array":
            item, convert = self.compile(schema["items"], f"{path}[]")
            return [item], None if convert is None else _each(convert)
        if name == "map":
            inner, convert = self.compile(schema["values"], f"{path}{{}}")
            if convert is None:
                return ("string", inner), None
            return ("string", inner), lambda entries: {key: convert(item) for key, item in entries.items()}
        if isinstance(name, dict | list) or name in self._named:
            return self.compile(name, path)
        return _logical(schema, name, path)

    def _record(self, schema: dict[str, Any], path: str) -> tuple[ValueType, Convert | None]:
        name = schema["name"]
        self._named[name] = schema
        if name in self._open:
            raise ConfigError(
                "bodySchema", f"{path} {name}", "contains itself, which no type of Spark does: flatten it"
            )
        self._open.append(name)
        fields: dict[str, ValueType] = {}
        converts: dict[str, Convert] = {}
        for field in schema["fields"]:
            fields[field["name"]], convert = self.compile(field["type"], f"{path}.{field['name']}")
            if convert is not None:
                converts[field["name"]] = convert
        self._open.pop()
        if not fields:
            raise ConfigError("bodySchema", f"{path} {name}", "has no fields, which Spark's structs need")
        return fields, _record_converter(converts, names_records=self._names_records)

    def _union(self, members: list[Any], path: str) -> tuple[ValueType, Convert | None]:
        names = [_type_name(member, self._named) for member in members]
        present = [member for member, name in zip(members, names, strict=True) if name != "null"]
        kinds = {name for name in names if name != "null"}
        for narrow, wide in _WIDER:
            if kinds == narrow:
                return _PRIMITIVES[wide], None
        if len(present) == 1:
            inner, convert = self.compile(present[0], path)
            return inner, None if convert is None else _nullable(convert)
        if not present:
            raise ConfigError("bodySchema", f"{path} null", "has no type in Spark: remove it, or make it a union")
        return self._members(present, path)

    def _members(self, members: list[Any], path: str) -> tuple[ValueType, Convert | None]:
        """Return a struct with one field for each member, as Spark's from_avro does; the others are null."""
        kinds: dict[str, ValueType] = {}
        by_type: dict[type, tuple[str, Convert | None]] = {}
        by_record: dict[str, tuple[str, Convert | None]] = {}
        for index, member in enumerate(members):
            field = f"member{index}"
            kinds[field], convert = self.compile(member, f"{path}.{field}")
            name = _type_name(member, self._named)
            if name in ("record", "error"):
                by_record[_record_name(member)] = field, convert
                continue
            if _MEMBER_TYPES[name] in by_type or (name == "map" and by_record):
                raise ConfigError(
                    "bodySchema", f"{path} {name}", "is ambiguous with another member of its union: use records"
                )
            by_type[_MEMBER_TYPES[name]] = field, convert
        self.has_union_of_records |= len(by_record) > 1

        def choose(value: Any) -> Any:
            if value is None:
                return None
            if type(value) is tuple:
                field, convert = by_record[value[0]]
            elif type(value) is dict and by_record:
                field, convert = next(iter(by_record.values()))
            else:
                field, convert = by_type[type(value)]
            return {field: value if convert is None else convert(value)}

        return kinds, choose


def _record_converter(converts: dict[str, Convert], *, names_records: bool) -> Convert | None:
    if not converts and not names_records:
        return None

    def convert(record: Any) -> Any:
        # With several records in some union, fastavro returns (name, record) for each record of a union.
        value = record[1] if type(record) is tuple else record
        for name, convert_field in converts.items():
            if value[name] is not None:
                value[name] = convert_field(value[name])
        return value

    return convert


def _each(convert: Convert) -> Convert:
    return lambda items: [convert(item) for item in items]


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _logical(schema: dict[str, Any], name: str, path: str) -> tuple[ValueType, Convert | None]:
    """Return the type of a primitive with its logical type; unknown logical types are ignored, as Avro requires."""
    logical = schema.get("logicalType", "")
    if logical == "decimal" and name in ("bytes", "fixed"):
        precision, scale = schema["precision"], schema.get("scale", 0)
        if precision > DECIMAL_DIGITS_MAX:
            raise ConfigError(
                "bodySchema", f"{path} decimal({precision})", f"Spark has {DECIMAL_DIGITS_MAX} digits at most"
            )
        return f"decimal({precision},{scale})", lambda stored: _decimal(stored, scale)
    if (name, logical) in _LOGICAL:
        return _LOGICAL[name, logical]
    if name not in _PRIMITIVES:
        raise ConfigError("bodySchema", f"{path} {name}", "has no type in Spark")
    return _PRIMITIVES[name], None


def _decimal(stored: bytes, scale: int) -> decimal.Decimal:
    unscaled = decimal.Decimal(int.from_bytes(stored, "big", signed=True))
    return unscaled.scaleb(-scale, context=_DECIMAL_CONTEXT)


def _type_name(schema: Any, named: dict[str, Any]) -> str:
    """Return the Avro type of a member of a union."""
    if isinstance(schema, str):
        return _type_name(named[schema], named) if schema in named else schema
    inner = schema["type"]
    return inner if isinstance(inner, str) and inner not in named else _type_name(inner, named)


def _record_name(member: Any) -> str:
    return member if isinstance(member, str) else str(member["name"])


def debezium_decoder(decode: AvroDecoder) -> Callable[[bytes], Any]:
    """Return a function that decodes change events of Debezium; the value of a tombstone, which has no body, is None."""
    if not isinstance(decode.kind, dict) or not {"op", "after"} <= decode.kind.keys():
        raise ConfigError(
            "bodySchema", "debezium-avro", "expected the schema of an envelope, with before, after, source and op"
        )
    return lambda body: decode(body) if body else None
