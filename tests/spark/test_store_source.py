"""`format("rocketmq-store")` in Spark: batch and stream, from Java's store and ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

from ariane.model import host
from ariane.spark import StoreSource
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from java_store import unpack

HOST = host.pack("127.0.0.1", 10911)
FILE = 256 * 1024
TIMEOUT_S = 90


@pytest.fixture
def java_store(tmp_path: Path) -> Path:
    return unpack(tmp_path)


@pytest.fixture
def reader(spark: Any) -> Any:
    spark.dataSource.register(StoreSource)
    return spark


def put(store: MessageStore, first: int, count: int) -> None:
    for n in range(first, first + count):
        store.put(
            RecordDraft(
                topic=f"T{n % 2}",
                queue_id=0,
                body=b"%d" % n * 20,
                born_ms=5,
                born_host=HOST,
                properties=f"KEYS\x01k{n}",
            )
        )


def opened(root: Path) -> MessageStore:
    return open_store(StoreConfig(root=str(root), commit_log_size=FILE), store_host=HOST)


def test_any_message_is_found_by_any_predicate(reader: Any, java_store: Path) -> None:
    frame = (
        reader.read.format("rocketmq-store")
        .option("maxPartitionBytes", 65536)
        .option("broker", "b")
        .load(str(java_store))
    )
    (row,) = frame.where("topic = 'T' and keys = 'K-3'").collect()
    assert (row.queue_id, row.queue_offset, row.tags, row.broker, row.valid) == (2, 0, "TagB", "b", True)
    assert row.offset_message_id == "7F00000100009F8F0000000000000CE1"
    assert frame.groupBy("topic").count().where("topic = 'T'").first()["count"] == 193
    assert frame.where("not valid").count() == 0
    assert frame.where("length(body) > 5000 and topic = 'T'").count() == 3  # compressed ones


def test_corrupt_ranges_are_rows_and_columns_are_pruned(reader: Any, java_store: Path) -> None:
    path = java_store / "commitlog" / f"{65536:020d}"
    data = bytearray(path.read_bytes())
    data[3000:9000] = b"\xff" * 6000
    path.write_bytes(data)
    complete = reader.read.format("rocketmq-store").load(str(java_store))
    (row,) = complete.where("not valid").collect()
    assert (row.segment, row.body, row.topic) == (f"{65536:020d}", None, None)
    assert 65536 < row.position <= 65536 + 3000
    assert row.position + row.store_size >= 65536 + 9000
    columns = "body BINARY, position BIGINT, damage STRING"
    few = reader.read.format("rocketmq-store").schema(columns).load(str(java_store))
    assert few.columns == ["body", "position", "damage"]
    assert few.where("damage is null").count() == complete.where("valid").count()


def test_a_directory_without_a_store_is_reported(reader: Any, tmp_path: Path) -> None:
    for path, reported in ((tmp_path, "no commitlog"), (tmp_path / "none", "is not a directory")):
        with pytest.raises(Exception, match=reported):
            reader.read.format("rocketmq-store").load(str(path)).count()
    with pytest.raises(Exception, match="is not a column of the source"):
        reader.read.format("rocketmq-store").schema("payload BINARY").load(str(tmp_path)).count()


def test_a_stream_reads_what_is_appended_once(reader: Any, tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    put(store, 0, 3000)

    def run() -> int:
        stream = reader.readStream.format("rocketmq-store").option("maxBytesPerTrigger", 200_000)
        query = (
            stream.load(str(tmp_path / "store"))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        try:
            assert query.awaitTermination(TIMEOUT_S)
            return len([progress for progress in query.recentProgress if progress["numInputRows"]])
        finally:
            query.stop()

    assert run() >= 2  # bounded micro-batches
    put(store, 3000, 500)
    run()
    store.close()
    keys = [row["keys"] for row in reader.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(keys) == sorted(f"k{n}" for n in range(3500))


def test_a_stream_whose_log_lost_its_beginning_fails_or_adds_a_row(reader: Any, tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    put(store, 0, 6000)
    store.close()
    oldest = min((tmp_path / "store" / "commitlog").iterdir())

    def run(name: str, fail: str) -> Any:
        stream = (
            reader.readStream.format("rocketmq-store").option("startingPosition", "0").option("failOnDataLoss", fail)
        )
        frame = stream.schema("position BIGINT, valid BOOLEAN, store_size INT").load(str(tmp_path / "store"))
        sink = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True)
        return sink.option("checkpointLocation", str(tmp_path / name)).start()

    query = run("before", "true")
    assert query.awaitTermination(TIMEOUT_S)
    assert reader.table("before").count() == 6000
    oldest.unlink()
    query = run("after", "false")
    assert query.awaitTermination(TIMEOUT_S)
    assert (
        reader.table("after").where("position >= 262144 and valid").count()
        == reader.table("before").where("position >= 262144").count()
    )
