"""The jar reads all columns of Arrow batches from their messages, and refuses damaged ones. No test needs a session or servers."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")
if shutil.which("javac") is None:
    pytest.skip("needs a Java compiler", allow_module_level=True)

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ariane.spark import pruning
from ariane.spark.records import arrow_messages, record_columns
from ariane.spark.values.value_types import arrow_schema

PROGRAM = Path(__file__).with_name("ReadMessages.java")
TYPES: dict[str, DataType] = {
    "STRING": StringType(),
    "BINARY": BinaryType(),
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "TIMESTAMP": TimestampType(),
    "MAP<STRING, STRING>": MapType(StringType(), StringType()),
}
SCHEMA = StructType([StructField(name, TYPES[ddl]) for name, (_, ddl) in record_columns.COLUMNS.items()])
COLUMNS = {name: kind for name, (kind, _) in record_columns.COLUMNS.items()}

Reader = Callable[..., list[str]]


@pytest.fixture(scope="module")
def read_messages(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """A function that returns what the program prints for messages."""
    directory = tmp_path_factory.mktemp("messages")
    jars = f"{pruning.installed_jars()}/*"
    sources = [PROGRAM, Path(pruning.__file__).with_name("ArrowMessage.java")]
    subprocess.run(["javac", "-nowarn", "-proc:none", "-cp", jars, "-d", directory, *sources], check=True)
    (directory / "schema.json").write_text(SCHEMA.json())

    def read(*messages: bytes) -> list[str]:
        files = [directory / f"{number}.message" for number in range(len(messages))]
        for file, message in zip(files, messages, strict=True):
            file.write_bytes(message)
        command = ["java", "--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
        command += ["-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"]
        command += ["-cp", f"{directory}:{jars}", "ariane.spark.ReadMessages", str(directory / "schema.json")]
        run = subprocess.run([*command, *files], check=False, capture_output=True, encoding="utf-8")
        assert run.returncode == 0, run.stderr
        return run.stdout.splitlines()

    return read


def random_value(rng: random.Random, kind: pa.DataType) -> Any:
    if rng.random() < 0.3:
        return None
    if pa.types.is_map(kind):
        return [(f"k{number}", rng.choice(["", "v", "ü", None])) for number in range(rng.randrange(4))]
    if pa.types.is_string(kind):
        return rng.choice(["", "a", "größe", "x" * 300, "日本"])
    if pa.types.is_binary(kind):
        return rng.randbytes(rng.choice([0, 1, 200, 100_000]))
    return rng.randrange(-(2**31), 2**31) if pa.types.is_int32(kind) else rng.randrange(2**55)


def random_batch(rng: random.Random, rows: int) -> pa.RecordBatch:
    return pa.record_batch(
        {name: pa.array([random_value(rng, kind) for _ in range(rows)], kind) for name, kind in COLUMNS.items()}
    )


def batch_without_nulls(rows: int) -> pa.RecordBatch:
    values = {"string": "a", "binary": b"b", "map<string, string>": [("k", "v")]}
    return pa.record_batch({name: pa.array([values.get(str(kind), 7)] * rows, kind) for name, kind in COLUMNS.items()})


def to_message(batch: pa.RecordBatch) -> bytes:
    (message,) = arrow_messages.to_messages([batch], arrow_schema(SCHEMA))
    value: bytes = message.column(0)[0].as_py()
    return value


def java_hash_code(value: bytes) -> int:
    code = 1
    for byte in value:
        code = (31 * code + (byte if byte < 128 else byte - 256)) & 0xFFFFFFFF
    return code if code < 2**31 else code - 2**32


def printed(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return f"{len(value)}:{java_hash_code(value)}"
    if isinstance(value, list):
        return f"[{', '.join(f'{key}={printed(inner)}' for key, inner in value)}]"
    return str(value)


def printed_rows(batch: pa.RecordBatch) -> list[str]:
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns]
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [f"rows {batch.num_rows}", *("|".join(map(printed, row)) for row in rows)]


@pytest.mark.spark
def test_columns_have_the_values_of_the_batch(read_messages: Reader) -> None:
    rng = random.Random(22)
    batch = random_batch(rng, 100)
    batches = [
        batch,
        batch.slice(13, 50),
        batch.slice(0, 0),
        batch.filter(pa.array([number % 3 == 0 for number in range(batch.num_rows)])),
        pa.record_batch({name: pa.nulls(9, kind) for name, kind in COLUMNS.items()}),
        batch_without_nulls(5),
        random_batch(rng, 8),
    ]
    expected = [line for batch in batches for line in printed_rows(batch)]
    assert read_messages(*map(to_message, batches)) == expected


@pytest.mark.spark
def test_a_damaged_message_is_refused(read_messages: Reader) -> None:
    message = to_message(batch_without_nulls(5))
    offsets = struct.pack("<6i", *range(6))
    first = message.index(offsets)
    beyond, negative, descending = (
        message[: first + 8] + struct.pack("<i", offset) + message[first + 12 :] for offset in (10**8, -1, 0)
    )
    truncated = message[:-600]
    refusals = [line for line in read_messages(beyond, negative, descending, truncated, message) if "refused" in line]
    assert refusals[0] == "refused: row 1 of a batch has offsets 1 to 100000000 of 5"
    assert refusals[1] == "refused: row 1 of a batch has offsets 1 to -1 of 5"
    assert refusals[2] == "refused: row 1 of a batch has offsets 1 to 0 of 5"
    assert refusals[3].startswith("refused: buffer ")
    assert len(refusals) == 4, "the complete message is read"
