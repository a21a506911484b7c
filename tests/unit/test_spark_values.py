"""Bodies as values: formats, types, frames and the columns that a reader adds. Without Spark and without a registry."""

from __future__ import annotations

import datetime as dt
import io
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")
pytest.importorskip("fastavro", reason="needs fastavro: pip install 'ariane[bodies]'")
pytest.importorskip("google.protobuf", reason="needs protobuf: pip install 'ariane[bodies]'")

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2, wrappers_pb2
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ariane.errors import ConfigError, ProtocolError
from ariane.spark.read import source_options
from ariane.spark.records import record_columns
from ariane.spark.values import avro_bodies, body_options, json_bodies
from ariane.spark.values.framing import FramingError, read_frame, read_indexes, read_ref
from ariane.spark.values.protobuf_bodies import ProtobufDecoder
from ariane.spark.values.registry import SchemaText
from ariane.spark.values.value_columns import declared_columns, decode_bodies, value_columns
from ariane.spark.values.value_types import ValueType, arrow_type, ddl

NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


def rows(bodies: list[bytes | None], decode: Any, kind: ValueType) -> tuple[list[Any], list[str | None]]:
    values, errors = decode_bodies(bodies, decode, arrow_type(kind))
    return values.to_pylist(), errors


# --- JSON ---


def test_json_has_the_declared_types():
    kind: ValueType = {
        "id": "bigint", "price": "decimal(10,2)", "at": "timestamp", "local": "timestamp_ntz", "day": "date", "raw": "binary",
        "tags": ["string"], "counts": ("string", "int"), "inner": {"ok": "boolean"},
    }  # fmt: skip
    body = (
        b'{"id": 17, "price": 1.25, "at": "2026-01-31T13:00:00+01:00", "local": "2026-01-31T12:00:00", "day": "2026-01-31", '
        b'"raw": "AAE=", "tags": ["a", null], "counts": {"x": 1}, "inner": {"ok": true}, "other": [1]}'
    )
    (value,), errors = rows([body], json_bodies.decoder(kind), kind)
    assert errors == [None]
    assert value == {
        "id": 17, "price": Decimal("1.25"), "at": NOON, "local": NOON.replace(tzinfo=None), "day": NOON.date(), "raw": b"\x00\x01",
        "tags": ["a", None], "counts": [("x", 1)], "inner": {"ok": True},
    }  # fmt: skip


def test_absent_fields_are_null_and_wrong_ones_are_explained():
    kind: ValueType = {"id": "int", "price": "decimal(4,2)"}
    bodies = [
        b"{}",
        b'{"id": "x"}',
        b'{"id": 3000000000}',
        b"not JSON",
        b"",
        b'{"price": 123.45}',
        b'{"id": 1}',
        None,
        b"null",
    ]
    values, errors = rows(bodies, json_bodies.decoder(kind), kind)
    assert [value is None for value in values] == [False, True, True, True, True, True, False, True, True]
    assert [error is None for error in errors] == [True, False, False, False, False, False, True, True, False]
    assert values[6] == {"id": 1, "price": None}
    assert "$.id" in errors[1]
    assert "does not fit value" in errors[5]


@pytest.mark.parametrize("kind", [{"a": "interval day to second"}, {"a": ("int", "string")}])
def test_types_that_json_lacks_are_rejected(kind: ValueType):
    with pytest.raises(ConfigError, match="JSON"):
        json_bodies.decoder(kind)


ROW = {"id": "int", "name": "string"}
ENVELOPE: ValueType = {"before": ROW, "after": ROW, "source": {"table": "string"}, "op": "string", "ts_ms": "bigint"}
EVENT = {
    "before": None, "after": {"id": 1, "name": "tea"}, "source": {"version": "2.7", "table": "goods"}, "op": "c", "ts_ms": 5,
    "transaction": None,
}  # fmt: skip


def test_debezium_envelopes_with_and_without_a_schema():
    schema = {"type": "struct", "fields": [{"field": "before"}]}
    bodies = [json.dumps(EVENT).encode(), json.dumps({"schema": schema, "payload": EVENT}).encode()]
    values, errors = rows(bodies, json_bodies.debezium_decoder(ENVELOPE), ENVELOPE)
    assert errors == [None, None]
    assert (
        values[0]
        == values[1]
        == {**{k: EVENT[k] for k in ("before", "after", "op", "ts_ms")}, "source": {"table": "goods"}}
    )


def test_a_tombstone_is_null_without_an_error_and_a_plain_row_is_an_error():
    bodies = [b"", b"null", b'{"schema": null, "payload": null}', b'{"id": 1, "name": "tea"}']
    values, errors = rows(bodies, json_bodies.debezium_decoder(ENVELOPE), ENVELOPE)
    assert values == [None] * 4
    assert errors[:3] == [None] * 3
    assert "ExtractNewRecordState" in errors[3]


def test_a_debezium_schema_needs_no_op():
    kind: ValueType = {"after": ROW}
    assert rows([json.dumps(EVENT).encode()], json_bodies.debezium_decoder(kind), kind)[0] == [
        {"after": EVENT["after"]}
    ]


# --- Avro ---


def record(*fields: tuple[str, Any], name: str = "shop.Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def avro(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def avro_decoder(schema: Any) -> avro_bodies.AvroDecoder:
    return avro_bodies.AvroDecoder(SchemaText(json.dumps(schema)), 0, None)


WIDE = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}


@pytest.mark.parametrize(
    ("kind", "value", "type_name", "expected"),
    [
        (WIDE, Decimal(f"-{'9' * 36}.25"), "decimal(38,2)", None),
        ({"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 9}, Decimal(-7), "decimal(9,0)", None),
        ({"type": "long", "logicalType": "timestamp-millis"}, NOON, "timestamp", None),
        ({"type": "long", "logicalType": "timestamp-micros"}, NOON, "timestamp", None),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, NOON.replace(tzinfo=None), "timestamp_ntz", None),
        ({"type": "int", "logicalType": "date"}, NOON.date(), "date", None),
        ({"type": "int", "logicalType": "time-millis"}, dt.time(0, 0, 1), "int", 1000),
        ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=7), "string", str(uuid.UUID(int=7))),
        ({"type": "string", "logicalType": "of-another-program"}, "x", "string", None),
        ({"type": "enum", "name": "E", "symbols": ["NEW", "PAID"]}, "PAID", "string", None),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", "binary", None),
        (["null", {"type": "int", "logicalType": "date"}], None, "date", None),
        (["null", {"type": "long", "logicalType": "timestamp-millis"}], NOON, "timestamp", None),
        ({"type": "array", "items": ["null", {"type": "int", "logicalType": "date"}]}, [NOON.date(), None], "array<date>", None),
        ({"type": "map", "values": "long"}, {"a": 1}, "map<string, bigint>", [("a", 1)]),
        (["int", "long"], 5, "bigint", None),
        (["null", "float", "double"], 0.5, "double", None),
        (["string", "long"], 5, "struct<`member0`: string, `member1`: bigint>", {"member0": None, "member1": 5}),
    ],
)  # fmt: skip
def test_avro_types(kind: Any, value: Any, type_name: str, expected: Any):
    schema = record(("f", kind))
    decode = avro_decoder(schema)
    assert ddl(decode.kind) == f"struct<`f`: {type_name}>"
    assert rows([avro(schema, {"f": value})], decode, decode.kind) == (
        [{"f": value if expected is None else expected}],
        [None],
    )


def test_a_union_of_records_is_a_struct_of_members():
    created, paid = (
        record(("id", "int"), name="shop.Created"),
        record(("at", {"type": "long", "logicalType": "timestamp-millis"}), name="shop.Paid"),
    )
    schema = record(("event", ["null", created, paid]), ("last", ["null", "shop.Created"]))
    decode = avro_decoder(schema)
    bodies = [
        avro(schema, {"event": ("shop.Paid", {"at": NOON}), "last": {"id": 3}}), avro(schema, {"event": None, "last": None}),
    ]  # fmt: skip
    values, errors = rows(bodies, decode, decode.kind)
    assert errors == [None, None]
    assert values == [
        {"event": {"member0": None, "member1": {"at": NOON}}, "last": {"id": 3}}, {"event": None, "last": None},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record(("next", ["null", "shop.Order"])), "contains itself"),
        (record(("f", "null")), "has no type in Spark"),
        (
            record(("f", ["string", {"type": "enum", "name": "E", "symbols": ["A"]}])),
            "is ambiguous with another member",
        ),
        (record(("f", {"type": "bytes", "logicalType": "decimal", "precision": 60})), "38 digits"),
        (record(("f", "no.Such")), "not a schema of Avro"),
        ("string", "expected a record"),
        ({"type": "record", "name": "R", "fields": []}, "no fields"),
    ],
)
def test_avro_schemas_without_a_type_in_spark_are_rejected(schema: Any, reason: str):
    with pytest.raises(ConfigError, match=reason):
        avro_bodies.read_schema(SchemaText(json.dumps(schema)), "bodySchema")


def test_bodies_of_another_schema_are_explained():
    schema = record(("id", "long"), ("name", "string"))
    decode = avro_decoder(schema)
    body = avro(schema, {"id": 1, "name": "tea"})
    values, errors = rows([body, body[:-1], body + b"\0", b""], decode, decode.kind)
    assert values == [{"id": 1, "name": "tea"}, None, None, None]
    assert "1 bytes are left after the value" in errors[2]
    assert errors[1] and errors[3]


def test_debezium_avro_needs_an_envelope():
    decode = avro_bodies.debezium_decoder(
        avro_decoder(record(("op", "string"), ("after", ["null", record(("id", "int"), name="V")])))
    )
    assert decode(b"") is None
    with pytest.raises(ConfigError, match="envelope"):
        avro_bodies.debezium_decoder(avro_decoder(record(("id", "int"))))


# --- Protobuf ---

F = descriptor_pb2.FieldDescriptorProto


def descriptor_set() -> bytes:
    """Return what protoc writes for a file with two messages and the types that it imports."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(
        ["google/protobuf/timestamp.proto", "google/protobuf/duration.proto", "google/protobuf/wrappers.proto"]
    )
    file.message_type.add(name="Refund").field.add(name="id", number=1, type=F.TYPE_INT32, label=1)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=F.TYPE_INT32, label=1)
    order.enum_type.add(name="State").value.add(name="NEW", number=0)
    for number, (name, kind, label, type_name) in enumerate(
        [
            ("id", F.TYPE_UINT64, 1, ""), ("small", F.TYPE_UINT32, 1, ""), ("note", F.TYPE_STRING, 1, ""),
            ("tags", F.TYPE_STRING, 3, ""), ("counts", F.TYPE_MESSAGE, 3, ".shop.Order.CountsEntry"),
            ("state", F.TYPE_ENUM, 1, ".shop.Order.State"), ("at", F.TYPE_MESSAGE, 1, ".google.protobuf.Timestamp"),
            ("took", F.TYPE_MESSAGE, 1, ".google.protobuf.Duration"), ("limit", F.TYPE_MESSAGE, 1, ".google.protobuf.Int64Value"),
            ("refund", F.TYPE_MESSAGE, 1, ".shop.Refund"), ("raw", F.TYPE_BYTES, 1, ""), ("price", F.TYPE_DOUBLE, 1, ""),
        ], 1,
    ):  # fmt: skip
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    order.oneof_decl.add(name="paid")
    order.field.add(name="card", number=20, type=F.TYPE_STRING, label=1, oneof_index=0)
    order.field.add(name="cash", number=21, type=F.TYPE_INT32, label=1, oneof_index=0)
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="left", number=1, type=F.TYPE_MESSAGE, label=1, type_name=".shop.Tree")
    files = descriptor_pb2.FileDescriptorSet()
    for imported in (timestamp_pb2, duration_pb2, wrappers_pb2):
        imported.DESCRIPTOR.CopyToProto(files.file.add())
    files.file.append(file)
    return files.SerializeToString()


def message_class(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def order_body() -> bytes:
    order = message_class("shop.Order")(
        id=2**64 - 1, small=2**32 - 1, tags=["a"], counts={"x": 1}, state=7, raw=b"\0", cash=0
    )
    order.at.FromDatetime(NOON)
    order.took.FromTimedelta(dt.timedelta(milliseconds=-1500))
    order.limit.value = 0
    order.refund.id = 3
    return order.SerializeToString()


def test_protobuf_types_defaults_and_presence():
    decode = ProtobufDecoder(descriptor_set(), "shop.Order", "none")
    (value, empty, broken), errors = rows([order_body(), b"", b"\xff"], decode, decode.kind)
    assert value == {
        "id": Decimal(2**64 - 1), "small": 2**32 - 1, "note": "", "tags": ["a"], "counts": [("x", 1)], "state": "7", "at": NOON,
        "took": dt.timedelta(milliseconds=-1500), "limit": 0, "refund": {"id": 3}, "raw": b"\0", "price": 0.0,
        "card": None, "cash": 0,
    }  # fmt: skip
    # A message of defaults only has no bytes.
    assert (empty["id"], empty["state"], empty["at"], empty["limit"], empty["cash"]) == (0, "NEW", None, None, None)
    assert broken is None
    assert errors[:2] == [None, None]
    assert "shop.Order" in errors[2]


@pytest.mark.parametrize(
    ("framing", "frame", "reason"),
    [
        ("confluent", b"\0\0\0\0\x05\x02\x02", None),  # one index, 1
        ("confluent", b"\0\0\0\0\x05\x00", r"message \[0\] .*not shop.Order, which is \[1\]"),
        ("apicurio", b"\0\0\0\0\x05\x07\x0a\x05Order", None),
        ("apicurio", b"\0\0\0\0\x05\x08\x0a\x06Refund", "a message Refund, not shop.Order"),
        ("apicurio-8-byte", b"\0" * 8 + b"\x05\x07\x0a\x05Order", None),
        ("confluent", b"\x01\0\0\0\x05\x02\x02", "no schema id"),
    ],
)
def test_frames_name_the_message_type(framing: str, frame: bytes, reason: str | None):
    decode = ProtobufDecoder(descriptor_set(), "shop.Order", framing)
    if reason is None:
        assert decode(frame + order_body())["refund"] == {"id": 3}
    else:
        with pytest.raises(ValueError, match=reason):
            decode(frame + order_body())


@pytest.mark.parametrize(
    ("content", "name", "reason"),
    [
        (b"syntax = ...", "shop.Order", "contains no descriptors"),
        (None, "shop.Other", "expected one of .*shop.Order"),
        (None, "shop.Tree", "contains itself"),
    ],
)
def test_unusable_descriptor_sets(content: bytes | None, name: str, reason: str):
    with pytest.raises(ConfigError, match=reason):
        ProtobufDecoder(descriptor_set() if content is None else content, name, "none")


# --- frames ---


def test_frames():
    assert read_frame(b"\0\0\0\x01\x02rest", 4) == (258, 5)
    assert read_frame(b"\0" * 8 + b"\x05", 8) == (5, 9)
    assert read_indexes(b"\x00x", 0) == ([0], 1)
    assert read_indexes(b"\x04\x02\x80\x01x", 0) == ([1, 64], 4)
    assert read_ref(b"\x03\x0a\x01Ax", 0) == ("A", 4)
    for body in (b"\0\0\0\0", b"{}", b""):
        with pytest.raises(FramingError, match="no schema id"):
            read_frame(body, 4)
    for body in (b"", b"\x80", b"\x7f\x02", b"\x01\x02", b"\x04\x02"):
        with pytest.raises(FramingError):
            read_indexes(body, 0)


# --- options and columns ---

SCHEMA = StructType(
    [
        StructField("keys", StringType()),
        StructField("value", StructType([StructField("id", IntegerType())])),
        StructField("value_error", StringType()),
    ]
)
FAILING = StructType(SCHEMA.fields[:2])
REQUIRED_ID = StructField("id", IntegerType(), nullable=False)
JSON = {"bodyFormat": "json", "bodySchema": "id INT"}
STORED = pa.record_batch(
    {
        "keys": ["a", "b", "c"], "body": pa.array([b'{"id": 1}', b"x", None], pa.binary()),
        "body_error": pa.array([None, None, "zlib"], pa.string()), "topic": ["T"] * 3, "broker": ["b"] * 3, "queue_id": [0] * 3,
        "queue_offset": [7, 8, 9],
    }
)  # fmt: skip


def columns(schema: StructType = SCHEMA, **options: str) -> Any:
    return value_columns(body_options.parse({**JSON, **options}, "rocketmq source"), schema, record_columns.COLUMNS)


def test_values_come_with_their_errors():
    requested = columns()
    assert requested.stored == ["keys", "body", "body_error"]
    (batch,) = requested.complete([STORED])
    assert batch.schema.names == ["keys", "value", "value_error"]
    first, *others = batch.to_pylist()
    assert first == {"keys": "a", "value": {"id": 1}, "value_error": None}
    assert [row["value"] for row in others] == [None, None]
    assert "malformed" in others[0]["value_error"]
    assert others[1]["value_error"] == "zlib"


def test_a_body_can_fail_the_query_and_is_named():
    requested = columns(FAILING, bodyErrors="fail")
    assert requested.stored == ["keys", "body", "topic", "broker", "queue_id", "queue_offset"]
    with pytest.raises(ProtocolError, match="T on b, queue 0, offset 8: the body cannot be decoded: .*bodyErrors"):
        list(requested.complete([STORED]))


def test_a_schema_without_value_decodes_nothing():
    requested = columns(StructType([StructField("body", BinaryType())]))
    assert requested.stored == ["body"]
    assert list(requested.complete([STORED])) == [STORED]


def test_text_is_utf_8():
    schema = StructType([StructField("value", StringType()), StructField("value_error", StringType())])
    requested = value_columns(body_options.parse({"bodyFormat": "text"}, "s"), schema, record_columns.COLUMNS)
    stored = pa.record_batch({"body": pa.array(["é".encode(), b"\xff"]), "body_error": pa.nulls(2, pa.string())})
    (batch,) = requested.complete([stored])
    assert [row["value"] for row in batch.to_pylist()] == ["é", None]
    assert batch.column("value_error")[1].as_py().startswith("'utf-8' codec")


def test_json_behind_a_frame_needs_no_registry():
    requested = columns(bodyFraming="confluent")
    stored = pa.record_batch(
        {"keys": ["a"], "body": [b'\0\0\0\0\x05{"id": 1}'], "body_error": pa.nulls(1, pa.string())}
    )
    assert next(requested.complete([stored])).column("value").to_pylist() == [{"id": 1}]


@pytest.mark.parametrize(
    ("schema", "options", "reason"),
    [
        (FAILING, {}, "add `value_error STRING`, or set bodyErrors to fail"),
        (SCHEMA, {"bodyErrors": "fail"}, "remove value_error"),
        (StructType(SCHEMA.fields[2:]), {}, "explains nulls of value"),
        (StructType([StructField("value", StringType()), SCHEMA["value_error"]]), {}, "expected a struct"),
        (StructType([StructField("value", StructType([REQUIRED_ID])), SCHEMA["value_error"]]), {}, "NOT NULL"),
        (StructType([*SCHEMA.fields, StructField("other", StringType())]), {}, "is not a column of the source"),
    ],
)  # fmt: skip
def test_schemas_that_do_not_fit_are_rejected(schema: StructType, options: dict[str, str], reason: str):
    with pytest.raises(ConfigError, match=reason):
        columns(schema, **options)


def test_a_schema_may_name_some_fields_of_the_bodies(tmp_path: Path):
    path = tmp_path / "shop.desc"
    path.write_bytes(descriptor_set())
    options = body_options.parse({"bodyFormat": "protobuf", "bodySchema": str(path), "bodyMessage": "shop.Order"}, "s")
    declared = declared_columns(options, "body BINARY")
    assert declared.startswith("body BINARY, value struct<`id`: decimal(20,0), `small`: bigint, ")
    assert declared.endswith(", value_error STRING")

    def reader(*fields: StructField) -> Any:
        return value_columns(
            options,
            StructType([StructField("value", StructType(list(fields))), SCHEMA["value_error"]]),
            record_columns.COLUMNS,
        )

    some = reader(
        StructField("id", DecimalType(20, 0)), StructField("at", TimestampType()), StructField("tags", ArrayType(StringType())),
        StructField("counts", MapType(StringType(), IntegerType())),
    )  # fmt: skip
    path.unlink()  # the executors need no file
    stored = pa.record_batch({"body": [order_body()], "body_error": pa.nulls(1, pa.string())})
    (row,) = next(some.complete([stored])).to_pylist()
    assert row["value"] == {"id": Decimal(2**64 - 1), "at": NOON, "tags": ["a"], "counts": [("x", 1)]}


def test_fields_that_the_bodies_lack_are_rejected():
    schema = json.dumps(record(("id", "int")))
    options = body_options.parse({"bodyFormat": "avro", "bodySchema": schema}, "s")
    for field, reason in (
        (StructField("total", LongType()), "is not a field"),
        (StructField("id", LongType()), "expected type int"),
    ):
        requested = StructType([StructField("value", StructType([field])), SCHEMA["value_error"]])
        with pytest.raises(ConfigError, match=reason):
            value_columns(options, requested, record_columns.COLUMNS)


AVRO = {"bodyFormat": "avro", "bodySchema": "order.avsc"}
REGISTRY = "http://registry:8081"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"bodySchema": "id INT"}, "no effect without bodyFormat"),
        ({"bodyFormat": "xml"}, "expected one of json"),
        ({**JSON, "bodyMessage": "shop.Order"}, "only bodyFormat=protobuf"),
        ({**JSON, "schemaRegistry": REGISTRY}, "set bodyFraming"),
        ({"bodyFormat": "text", "bodySchema": "id INT"}, "text have no schema"),
        ({"bodyFormat": "avro"}, "bodySchema.*is required"),
        ({"bodyFormat": "protobuf", "bodySchema": "f"}, "bodyMessage.*is required"),
        ({**AVRO, "bodyFraming": "confluent"}, "schemaRegistry.*is required"),
        ({**AVRO, "bodyFraming": "none", "schemaRegistry": REGISTRY}, "no id to look up"),
        ({**AVRO, "schemaRegistryAuth": "env:NAME"}, "no effect without schemaRegistry"),
        ({**AVRO, "schemaRegistry": REGISTRY, "schemaRegistryIds": "globalId"}, "only for Apicurio's own protocol"),
        ({**AVRO, "schemaRegistry": "registry:8081"}, "expected a URL"),
        ({"bodyFormat": "avro", "bodySchema": "subject:orders-value"}, "needs Avro and schemaRegistry"),
        ({**AVRO, "bodySchema": "subject:o", "schemaRegistry": f"{REGISTRY}/apis/registry/v3"}, "ccompat"),
        ({**JSON, "bodyFormt": "json"}, "did you mean bodyFormat"),
    ],
)  # fmt: skip
def test_options_without_effect_are_rejected(options: dict[str, str], reason: str):
    with pytest.raises(ConfigError, match=reason):
        body_options.parse(options, "rocketmq source")


@pytest.mark.parametrize(
    "options", [{"schemaRegistry": "http://me:hunter2@registry"}, {"schemaRegistryAuth": "me:hunter2"}]
)
def test_credentials_in_options_are_rejected_and_not_shown(options: dict[str, str]):
    with pytest.raises(ConfigError) as caught:
        body_options.parse({**AVRO, "schemaRegistry": REGISTRY, **options}, "rocketmq source")
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value)


@pytest.mark.parametrize(
    ("url", "ids", "framing"),
    [
        (REGISTRY, "schemas", "confluent"),
        (f"{REGISTRY}/apis/ccompat/v7", "schemas", "confluent"),
        (f"{REGISTRY}/apis/registry/v2", "globalIds", "apicurio-8-byte"),
        (f"{REGISTRY}/apis/registry/v3/", "contentIds", "apicurio"),
    ],
)
def test_the_url_suggests_ids_and_framing(url: str, ids: str, framing: str):
    options = body_options.parse({**AVRO, "schemaRegistry": url}, "rocketmq source")
    assert (options.registry.ids, options.framing) == (ids, framing)


def test_the_options_of_bodies_are_options_of_the_source():
    assert source_options.parse({"namesrv": "h:1", "topic": "T", **JSON, "bodyErrors": "fail"}).topic == "T"


def test_without_options_of_bodies_the_columns_stay():
    assert declared_columns(body_options.parse({"topic": "T"}, "s"), record_columns.DDL) == record_columns.DDL


def test_debezium_columns_are_declared():
    options = body_options.parse({"bodyFormat": "debezium-json", "bodySchema": "id INT"}, "s")
    assert declared_columns(options, "body BINARY").startswith(
        "body BINARY, value struct<before struct<id INT>, after struct<id INT>, source struct<version string,"
    )
