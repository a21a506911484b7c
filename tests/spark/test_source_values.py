"""Decoded bodies in Spark: the types of declared schemas, rows that cannot be decoded, batches and streams."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ariane.client import Producer
from ariane.model.message import Message
from ariane.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
BROKEN = b"\xff\xff"
JSON = [b'{"id": 1, "tags": ["a"], "price": 9.50, "at": "2026-01-31T12:00:00Z", "counts": {"x": 1}}', BROKEN]
DDL = "id BIGINT, tags ARRAY<STRING>, price DECIMAL(10, 2), at TIMESTAMP, counts MAP<STRING, INT>"
FIELDS = [
    ("id", "long"), ("tags", {"type": "array", "items": "string"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}), ("counts", {"type": "map", "values": "int"}),
]  # fmt: skip
AVRO = {"type": "record", "name": "Order", "fields": [{"name": name, "type": kind} for name, kind in FIELDS]}
EVENT = {"before": None, "after": {"id": 1}, "source": {"table": "orders", "snapshot": "false"}, "op": "c", "ts_ms": 5}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    from ariane.spark import RocketMQSource

    spark.dataSource.register(RocketMQSource)


def send(servers: LocalCluster, topic: str, bodies: list[bytes]) -> None:
    async def work() -> None:
        async with Producer(servers.namesrv, "P") as producer:
            for body in bodies:
                await producer.send(Message(topic=topic, body=body))

    asyncio.run(work())


def avro_bodies() -> list[bytes]:
    fastavro = pytest.importorskip("fastavro", reason="needs fastavro: pip install 'ariane[bodies]'")
    stream = io.BytesIO()
    value = {"id": 1, "tags": ["a"], "price": Decimal("9.50"), "at": NOON, "counts": {"x": 1}}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), value)
    return [stream.getvalue(), BROKEN]


def protobuf_bodies(path: Path) -> list[bytes]:
    """Write a descriptor set and return a message of it."""
    pytest.importorskip("google.protobuf", reason="needs protobuf: pip install 'ariane[bodies]'")
    from google.protobuf import descriptor_pb2, duration_pb2

    files = descriptor_pb2.FileDescriptorSet()
    duration_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="order.proto", syntax="proto3", dependency=["google/protobuf/duration.proto"])
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=4, label=1)  # uint64
    order.field.add(name="took", number=2, type=11, label=1, type_name=".google.protobuf.Duration")
    path.write_bytes(files.SerializeToString())
    return [b"\x08" + b"\xff" * 9 + b"\x01\x12\x02\x08\x03", BROKEN]


def read(spark: SparkSession, servers: LocalCluster, **options: Any) -> DataFrame:
    return spark.read.format("rocketmq").options(namesrv=servers.namesrv, **options).load()


def test_bodies_are_columns_of_the_declared_types(spark: SparkSession, servers: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "order.desc"
    formats: dict[str, tuple[list[bytes], dict[str, Any]]] = {
        "json": (JSON, {"bodySchema": DDL}),
        "avro": (avro_bodies(), {"bodySchema": json.dumps(AVRO)}),
        "protobuf": (protobuf_bodies(path), {"bodySchema": path, "bodyMessage": "Order"}),
        "debezium-json": ([json.dumps(EVENT).encode(), BROKEN], {"bodySchema": "id BIGINT"}),
        "text": ([b"tea", BROKEN], {}),
    }
    good: dict[str, Any] = {}
    for name, (bodies, options) in formats.items():
        send(servers, name, bodies)
        frame = read(spark, servers, topic=name, bodyFormat=name, **options)
        assert frame.columns[-2:] == ["value", "value_error"]
        # The driver's zone is not Spark's: times are compared as numbers.
        micros = ["unix_micros(value.at) AS at"] if name in ("json", "avro") else []
        rows = frame.selectExpr("body", "value", "value_error", *micros).collect()
        (broken,) = [row for row in rows if row.body == BROKEN]
        (good[name],) = [row for row in rows if row.body != BROKEN]
        assert broken.value is None and broken.value_error and good[name].value_error is None, name
    for name in ("json", "avro"):
        value = good[name].value
        assert (value.id, value.tags, value.price, value.counts) == (1, ["a"], Decimal("9.50"), {"x": 1})
        assert good[name].at == NOON.timestamp() * 1e6
    assert good["protobuf"].value == (2**64 - 1, timedelta(seconds=3))
    change = good["debezium-json"].value
    assert (change.before, change.after.id, change.source.table, change.op) == (None, 1, "orders", "c")
    assert good["text"].value == "tea"


def test_a_stream_decodes_some_fields(spark: SparkSession, servers: LocalCluster, tmp_path: Path) -> None:
    send(servers, "stream", [b'{"id": 1, "other": 2}', b'{"id": 2}'])
    query = (
        spark.readStream.format("rocketmq")
        .schema("value STRUCT<id INT>")
        .options(namesrv=servers.namesrv, topic="stream", bodyFormat="json", bodyErrors="fail")
        .load()
        .writeStream.format("parquet")
        .options(path=str(tmp_path / "rows"), checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "rows")).select("value.id").collect()) == [1, 2]


def test_a_body_can_fail_a_query_and_is_named(spark: SparkSession, servers: LocalCluster) -> None:
    send(servers, "failing", [BROKEN])
    frame = read(spark, servers, topic="failing", bodyFormat="json", bodySchema="id INT", bodyErrors="fail")
    assert frame.columns[-1] == "value"
    with pytest.raises(Exception, match="failing on broker-a, queue ., offset 0: the body cannot be decoded"):
        frame.select("value.id").collect()
