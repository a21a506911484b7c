"""Adds the columns `value` and `value_error` to the batches of a task.

    planner   options, schema ─→ ValueColumns (pickled)          executor   batches with `body` ─→ batches with `value`

A body that cannot be decoded is a null value with its reason in `value_error`, or an error that names its queue and offset: a
schema with `value` and without `value_error` is rejected unless bodyErrors is `fail`, so no row has an unexplained null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from ariane.errors import ConfigError, ProtocolError
from ariane.spark.records.arrow_messages import to_messages
from ariane.spark.records.record_columns import ERROR_COLUMN
from ariane.spark.records.schema import requested_columns
from ariane.spark.values import json_bodies
from ariane.spark.values.body_options import SUBJECT, BodyOptions, read_file
from ariane.spark.values.framing import ID_BYTES, read_frame
from ariane.spark.values.registry import SchemaText, UnknownSchema, fetch_latest
from ariane.spark.values.value_types import ValueType, arrow_type, check_subset, ddl, from_spark

VALUE = "value"
VALUE_ERROR = "value_error"

_POSITION = ("topic", "broker", "queue_id", "queue_offset")
_UNDECODABLE = (ValueError, RecursionError, msgspec.MsgspecError, UnknownSchema)
_UNREPRESENTABLE = (
    pa.ArrowException,
    ValueError,
    TypeError,
    OverflowError,
)  # ArrowInvalid is a ValueError, others are not


class BodySchema(NamedTuple):
    """What bodies are decoded by, read by the planner, so that executors need no file."""

    avro: SchemaText | None = None
    descriptor_set: bytes = b""


class ValueColumns(NamedTuple):
    """The requested columns of a reader; `value` and `value_error` are computed from bodies."""

    names: list[str]  # all requested columns, in Spark's order
    options: BodyOptions
    schema: BodySchema
    kind: ValueType | None  # of the column `value`; None: it is not requested
    message_schema: pa.Schema | None = None  # of messages (`records.arrow_messages`); None: Spark reads rows

    @property
    def stored(self) -> list[str]:
        """The columns to decode from records."""
        names = [name for name in self.names if name not in (VALUE, VALUE_ERROR)]
        if self.kind is not None:
            names += ["body", *(_POSITION if self.options.body_errors == "fail" else (ERROR_COLUMN,))]
        return list(dict.fromkeys(names))

    def complete(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the batches, which have the columns `stored`, with the requested columns.

        Raises:
            ProtocolError: a body cannot be decoded, and bodyErrors is `fail`.
            RegistryUnavailable: the schema of a body cannot be looked up.
        """
        completed = iter(batches) if self.kind is None else self._with_values(batches, self.kind)
        return completed if self.message_schema is None else to_messages(completed, self.message_schema)

    def _with_values(self, batches: Iterable[pa.RecordBatch], value: ValueType) -> Iterator[pa.RecordBatch]:
        decode, kind = _decoder(self.options, self.schema, value), arrow_type(value)
        for batch in batches:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            values, errors = decode_bodies(columns["body"].to_pylist(), decode, kind)
            if self.options.body_errors == "fail":
                _raise_first(errors, columns)
            else:
                errors = [
                    error or stored for error, stored in zip(errors, columns[ERROR_COLUMN].to_pylist(), strict=True)
                ]
            columns |= {VALUE: values, VALUE_ERROR: pa.array(errors, pa.string())}
            yield pa.record_batch({name: columns[name] for name in self.names})


def declared_columns(options: BodyOptions, columns: str) -> str:
    """Return the DDL of a source whose other columns are `columns`."""
    if not options.body_format:
        return columns
    errors = f", {VALUE_ERROR} STRING" if options.body_errors == "null" else ""
    return f"{columns}, {VALUE} {_declared_ddl(options)}{errors}"


def value_columns(
    options: BodyOptions, schema: StructType, columns: Mapping[str, tuple[pa.DataType, str]]
) -> ValueColumns:
    """Return the requested columns of a reader.

    Args:
        schema: Spark's schema: the declared one, or the user's.
        columns: Columns of the source without `value` and `value_error`.

    Raises:
        ConfigError: the source has no such column, or it has another type.
    """
    others = StructType(
        [field for field in schema.fields if not options.body_format or field.name not in (VALUE, VALUE_ERROR)]
    )
    requested_columns(others, columns)
    fields = {field.name: field for field in schema.fields}
    if not options.body_format or not fields.keys() & {VALUE, VALUE_ERROR}:
        return ValueColumns(list(schema.names), options, BodySchema(), None)
    if VALUE not in fields:
        raise ConfigError("schema", VALUE_ERROR, f"explains nulls of {VALUE}, which the schema lacks: add it")
    if VALUE_ERROR in fields and fields[VALUE_ERROR].dataType.simpleString() != "string":
        raise ConfigError("schema", VALUE_ERROR, "expected type string")
    if (VALUE_ERROR in fields) != (options.body_errors == "null"):
        fix = f"add `{VALUE_ERROR} STRING`, or set bodyErrors to fail"
        raise ConfigError(
            "schema", VALUE, fix if options.body_errors == "null" else f"remove {VALUE_ERROR}: bodyErrors is fail"
        )
    body_schema = _read_schema(options)
    kind = from_spark(fields[VALUE].dataType, VALUE)
    declared = _declared_kind(options, body_schema)
    if declared is not None:
        check_subset(kind, declared, VALUE)
    _decoder(options, body_schema, kind)  # reports a type that the format lacks before tasks start
    return ValueColumns(list(schema.names), options, body_schema, kind)


def decode_bodies(
    bodies: Sequence[bytes | None], decode: Callable[[bytes], Any], kind: pa.DataType
) -> tuple[pa.Array, list[str | None]]:
    """Return the values of bodies, and why a body has none. A null body has neither."""
    values: list[Any] = []
    errors: list[str | None] = [None] * len(bodies)
    for index, body in enumerate(bodies):
        try:
            values.append(None if body is None else decode(body))
        except _UNDECODABLE as error:
            values.append(None)
            errors[index] = str(error) or type(error).__name__
    try:
        return pa.array(values, kind), errors
    except _UNREPRESENTABLE:
        pass
    # Some value does not fit the type, such as a decimal with too many digits: find which.
    for index, value in enumerate(values):
        try:
            pa.array([value], kind)
        except _UNREPRESENTABLE as error:
            values[index], errors[index] = None, f"the value does not fit {VALUE}: {error}"
    return pa.array(values, kind), errors


def _raise_first(errors: list[str | None], columns: Mapping[str, pa.Array]) -> None:
    for index, error in enumerate(errors):
        if error is not None:
            topic, broker, queue_id, offset = (columns[name][index].as_py() for name in _POSITION)
            advice = "set bodyErrors to null to get a null value and the reason"
            where = f"{topic} on {broker}, queue {queue_id}, offset {offset}"
            raise ProtocolError(f"{where}: the body cannot be decoded: {error}; {advice}")


def _read_schema(options: BodyOptions) -> BodySchema:
    text = options.body_schema
    if options.body_format == "protobuf":
        return BodySchema(descriptor_set=read_file(text))
    if "avro" not in options.body_format:
        return BodySchema()
    if text.startswith(SUBJECT):
        assert options.registry is not None, "validated with the options"
        return BodySchema(fetch_latest(options.registry, text.removeprefix(SUBJECT)))
    return BodySchema(SchemaText(text if text[0] in '{["' else read_file(text).decode()))


def _declared_kind(options: BodyOptions, schema: BodySchema) -> ValueType | None:
    """Return the type that the schema of the bodies gives; None: Spark parses it (DDL)."""
    if options.body_format == "text":
        return "string"
    if schema.avro is not None:
        from ariane.spark.values import avro_bodies

        return avro_bodies.read_schema(schema.avro, "bodySchema")
    if options.body_format == "protobuf":
        from ariane.spark.values.protobuf_bodies import ProtobufDecoder

        return ProtobufDecoder(schema.descriptor_set, options.body_message, options.framing).kind
    return None


def _declared_ddl(options: BodyOptions) -> str:
    declared = _declared_kind(options, _read_schema(options))
    if declared is not None:
        return ddl(declared)
    text = options.body_schema
    if not text:
        fix = 'is required: columns such as "id INT, amount DOUBLE", or a schema of your own with a column value'
        raise ConfigError("bodySchema", "", fix)
    row = text if text.lower().startswith("struct<") else f"struct<{text}>"
    return json_bodies.debezium_ddl(row) if options.body_format == "debezium-json" else row


def _decoder(options: BodyOptions, schema: BodySchema, kind: ValueType) -> Callable[[bytes], Any]:
    """Return the function that decodes a body."""
    id_bytes = ID_BYTES.get(options.framing, 0)
    if schema.avro is not None:
        from ariane.spark.values import avro_bodies

        decode = avro_bodies.AvroDecoder(schema.avro, id_bytes, options.registry)
        return avro_bodies.debezium_decoder(decode) if options.body_format == "debezium-avro" else decode
    if options.body_format == "protobuf":
        from ariane.spark.values.protobuf_bodies import ProtobufDecoder

        return ProtobufDecoder(schema.descriptor_set, options.body_message, options.framing)
    if options.body_format == "text":
        return bytes.decode
    if not isinstance(kind, dict):
        raise ConfigError("schema", f"{VALUE} {ddl(kind)}", "expected a struct, such as STRUCT<id INT>")
    decode_json = (
        json_bodies.debezium_decoder(kind) if options.body_format == "debezium-json" else json_bodies.decoder(kind)
    )
    if not id_bytes:
        return decode_json
    return lambda body: decode_json(body[read_frame(body, id_bytes).start :] if body else body)
