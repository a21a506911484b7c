"""Measures what decoded bodies cost: rows per CPU second of Spark, with the connector's columns and with `from_json`.

    python benches/spark_bodies.py [--rows 1000000] [--rounds 3]

Bodies of 128 B are ready in memory and yielded in batches of 8,192, so that neither a broker nor records are part of the figures.
One task, noop sink, CPU time of the process tree (driver, JVM, workers), formats in turn; the median without a first round.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ariane.pipeline.spark_session import get_or_create_session
from ariane.spark.records import record_columns
from ariane.spark.values import body_options
from ariane.spark.values.value_columns import declared_columns, value_columns
from servers import tree_cpu_s

BODY_BYTES = 128
BATCH_ROWS = 8192
DDL = "id BIGINT, customer STRING, amount DOUBLE, paid BOOLEAN, note STRING"
FIELDS = {
    "id": ("long", 3),
    "customer": ("string", 9),
    "amount": ("double", 1),
    "paid": ("boolean", 8),
    "note": ("string", 9),
}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": name, "type": kinds[0]} for name, kinds in FIELDS.items()],
}


def descriptor_set() -> bytes:
    files = descriptor_pb2.FileDescriptorSet()
    order = files.file.add(name="order.proto", syntax="proto3").message_type.add(name="Order")
    for number, (name, kinds) in enumerate(FIELDS.items(), 1):
        order.field.add(name=name, number=number, type=kinds[1], label=1)
    return files.SerializeToString()


def encode(kind: str, number: int, padding: int) -> bytes:
    order = {
        "id": number,
        "customer": f"C{number % 1000:06}",
        "amount": number / 7,
        "paid": number % 2 == 0,
        "note": "n" * padding,
    }
    if kind == "json":
        return json.dumps(order).encode()
    if kind == "avro":
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), order)
        return stream.getvalue()
    return _message_class()(**order).SerializeToString()


@functools.cache
def _message_class() -> type:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))


def write_bodies(kind: str, path: Path) -> None:
    padding = BODY_BYTES - len(encode(kind, BATCH_ROWS, 0))
    bodies = [encode(kind, number, padding) for number in range(BATCH_ROWS)]
    batch = pa.record_batch({"body": pa.array(bodies, pa.binary()), "body_error": pa.nulls(BATCH_ROWS, pa.string())})
    with pa.ipc.new_file(str(path), batch.schema) as file:
        file.write(batch)


class ReadyBodies(DataSource):
    """A source of bodies that are ready before it is read. Options: `ready` (their file) and `rows`, and those of bodies."""

    @classmethod
    def name(cls) -> str:
        return "ready-bodies"

    def schema(self) -> str:
        return declared_columns(body_options.parse(self.options, self.name()), "body BINARY")

    def reader(self, schema: StructType) -> DataSourceReader:
        columns = value_columns(body_options.parse(self.options, self.name()), schema, record_columns.COLUMNS)
        path, rows = self.options["ready"], int(self.options["rows"])

        class Reader(DataSourceReader):
            def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
                batch = pa.ipc.open_file(path).get_batch(0)
                batches = (batch.slice(0, rows - first) for first in range(0, rows, BATCH_ROWS))
                yield from columns.complete(part.select(columns.stored) for part in batches)

        return Reader()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    # As in long-running jobs, with both of the JVM's compilers: from_json gains most by the second.
    spark = get_or_create_session("bodies", "local[1]", long_running=True)
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(ReadyBodies)
    value = "STRUCT<" + DDL + ">"
    with TemporaryDirectory() as home:
        for kind in ("json", "avro", "protobuf"):
            write_bodies(kind, Path(home) / kind)
        path = Path(home) / "order.desc"
        path.write_bytes(descriptor_set())
        cases = {
            "body alone": ("json", "body BINARY", {}, None),
            "from_json of body": ("json", "body BINARY", {}, f"from_json(string(body), '{DDL}') AS value"),
            "json": ("json", None, {"bodyFormat": "json"}, None),
            "avro": ("avro", None, {"bodyFormat": "avro", "bodySchema": json.dumps(AVRO)}, None),
            "protobuf": ("protobuf", None, {"bodyFormat": "protobuf", "bodySchema": str(path), "bodyMessage": "Order"}, None),
        }  # fmt: skip
        taken: dict[str, list[float]] = {name: [] for name in cases}
        for round_number in range(args.rounds + 1):
            for name, (kind, schema, options, expression) in cases.items():
                source = spark.read.format("ready-bodies").options(
                    ready=str(Path(home) / kind), rows=args.rows, **options
                )
                frame = source.schema(schema or f"value {value}, value_error STRING").load()
                before = tree_cpu_s()
                (frame.selectExpr(expression) if expression else frame).write.format("noop").mode("overwrite").save()
                if round_number:
                    taken[name].append(tree_cpu_s() - before)
    for name, seconds in taken.items():
        median = statistics.median(seconds)
        print(f"{name:20} {median:6.2f} CPU-s {args.rows / median / 1e6:6.2f} M rows per CPU-s")
    spark.stop()


if __name__ == "__main__":
    main()
