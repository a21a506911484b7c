"""Selections of the source: topics by list and pattern, times, keys, pushed filters, split ranges, limits."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ariane.client import Producer
from ariane.cluster.admin import Admin
from ariane.model.message import Message
from ariane.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    from ariane.spark import RocketMQSource

    spark.dataSource.register(RocketMQSource)


def make(servers: LocalCluster, queues: int, *names: str) -> None:
    async def work() -> None:
        async with Admin(servers.namesrv) as admin:
            for name in names:
                await admin.create_topic(name, queues=queues)

    asyncio.run(work())


def send(servers: LocalCluster, topic: str, *numbers: int, delay_level: int = 0, pause_s: float = 0.0) -> None:
    async def work() -> None:
        async with Producer(servers.namesrv, "P") as producer:
            for number in numbers:
                keys = [f"K{number}", "last"] if number % 2 else [f"K{number}"]
                message = Message(topic=topic, body=b"%d" % number, keys=keys, delay_level=delay_level)
                await producer.send(message)
                await asyncio.sleep(pause_s)

    asyncio.run(work())


def read(spark: SparkSession, servers: LocalCluster, **options: Any) -> DataFrame:
    return spark.read.format("rocketmq").options(namesrv=servers.namesrv, **options).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.body) for row in frame.select("body").collect())


def explained(frame: DataFrame) -> str:
    shown = io.StringIO()
    with redirect_stdout(shown):
        frame.explain("formatted")
    return shown.getvalue()


def stream(spark: SparkSession, servers: LocalCluster, home: Path, **options: Any) -> list[dict[str, Any]]:
    """Return the non-empty micro-batches; the rows are written to Parquet."""
    frame = spark.readStream.format("rocketmq").schema("topic STRING, body BINARY")
    query = (
        frame.options(namesrv=servers.namesrv, **options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(home / "rows"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    return [json.loads(progress.json) for progress in query.recentProgress if progress.numInputRows]


def test_topics_are_selected_by_list_and_by_pattern(spark: SparkSession, servers: LocalCluster) -> None:
    make(servers, 2, "list-a", "list-b", "list-c")
    for number, name in enumerate(["list-a", "list-b", "list-c"]):
        send(servers, name, number)
    rows = read(spark, servers, topics="list-a, list-c").select("topic", "body").collect()
    assert sorted((row.topic, bytes(row.body)) for row in rows) == [("list-a", b"0"), ("list-c", b"2")]
    assert numbers(read(spark, servers, topicsPattern="list-[bc]")) == [1, 2]
    assert numbers(read(spark, servers, topicsPattern="list")) == []
    with pytest.raises(Exception, match="no route for topic list-d"):
        read(spark, servers, topics="list-a,list-d").collect()


def test_a_stream_by_pattern_finds_new_topics(spark: SparkSession, servers: LocalCluster, tmp_path: Path) -> None:
    make(servers, 1, "found-1")
    send(servers, "found-1", 1, 2)
    options = {"topicsPattern": "found-.*", "startingOffsets": "latest"}
    assert stream(spark, servers, tmp_path, **options) == []
    make(servers, 2, "found-2")
    send(servers, "found-2", 3, 4)
    send(servers, "found-1", 5)
    stream(spark, servers, tmp_path, **options)
    assert numbers(spark.read.parquet(str(tmp_path / "rows"))) == [3, 4, 5]


def test_system_topics_are_selected_by_name(spark: SparkSession, servers: LocalCluster) -> None:
    make(servers, 1, "delayed")
    send(servers, "delayed", 1, 2, delay_level=18)
    rows = read(spark, servers, topic="SCHEDULE_TOPIC_XXXX").select("queue_id", "body", "properties").collect()
    assert sorted((row.queue_id, int(row.body), row.properties["REAL_TOPIC"]) for row in rows) == [
        (17, 1, "delayed"),
        (17, 2, "delayed"),
    ]
    assert numbers(read(spark, servers, topicsPattern="SCHEDULE.*", includeSystemTopics="true")) == [1, 2]
    assert numbers(read(spark, servers, topicsPattern="SCHEDULE.*")) == []


def test_time_selections_are_exact(spark: SparkSession, servers: LocalCluster) -> None:
    make(servers, 2, "timed")
    send(servers, "timed", *range(30), pause_s=0.004)
    rows = read(spark, servers, topic="timed").select("body", "store_timestamp").collect()
    stored = {int(row.body): round(row.store_timestamp.timestamp() * 1000) for row in rows}
    low, high = stored[10], stored[20]
    within = sorted(number for number, ms in stored.items() if low <= ms < high)
    assert numbers(read(spark, servers, topic="timed", startingTimestamp=low, endingTimestamp=high)) == within
    iso = datetime.fromtimestamp(low / 1000, UTC).isoformat()
    since = sorted(number for number, ms in stored.items() if ms >= low)
    assert numbers(read(spark, servers, topic="timed", startingTimestamp=iso)) == since
    of_one = json.dumps({"timed": {"broker-a": {"0": high}}})
    rows = read(spark, servers, topic="timed", startingTimestamp=of_one).select("queue_id", "store_timestamp").collect()
    count_of_1 = read(spark, servers, topic="timed").where("queue_id = 1").count()
    assert sum(row.queue_id == 1 for row in rows) == count_of_1
    assert all(round(row.store_timestamp.timestamp() * 1000) >= high for row in rows if row.queue_id == 0)


def test_a_stream_starts_at_a_timestamp(spark: SparkSession, servers: LocalCluster, tmp_path: Path) -> None:
    make(servers, 1, "since")
    send(servers, "since", 1, 2)
    time.sleep(0.02)
    now_ms = time.time_ns() // 1_000_000
    send(servers, "since", 3, 4)
    stream(spark, servers, tmp_path, topic="since", startingTimestamp=now_ms)
    assert numbers(spark.read.parquet(str(tmp_path / "rows"))) == [3, 4]
    with pytest.raises(Exception, match="endingTimestamp.*streams, which have no end"):
        stream(spark, servers, tmp_path / "other", topic="since", endingTimestamp=now_ms)


def test_messages_are_selected_by_key(spark: SparkSession, servers: LocalCluster) -> None:
    make(servers, 2, "keyed")
    send(servers, "keyed", *range(12))
    assert numbers(read(spark, servers, topic="keyed", keys="K1, K10,none")) == [1, 10]
    assert numbers(read(spark, servers, topic="keyed", keys="last")) == [1, 3, 5, 7, 9, 11]
    only = (
        spark.read.format("rocketmq").schema("queue_id INT").options(namesrv=servers.namesrv, topic="keyed", keys="K3")
    )
    assert len(only.load().collect()) == 1


def test_min_partitions_splits_queues_into_more_tasks(spark: SparkSession, servers: LocalCluster) -> None:
    make(servers, 1, "split")
    send(servers, "split", *range(40))
    frame = read(spark, servers, topic="split", minPartitions=5)
    assert (frame.rdd.getNumPartitions(), numbers(frame)) == (5, list(range(40)))
    frame = read(spark, servers, topic="split", maxRecordsPerPartition=7)
    assert (frame.rdd.getNumPartitions(), numbers(frame)) == (6, list(range(40)))


def test_filters_are_pushed_down_to_the_source(spark: SparkSession, servers: LocalCluster) -> None:
    make(servers, 4, "pushed")
    send(servers, "pushed", *range(40))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, servers, topic="pushed", pushDownPredicate="true")
        some = frame.where("queue_id in (1, 2) and queue_offset >= 3 and queue_offset < 5")
        assert some.rdd.getNumPartitions() == 2
        late_too = some.where("store_timestamp > timestamp'2026-01-01' and keys is not null")
        pushed = next(line for line in explained(late_too).splitlines() if line.startswith("PushedFilters"))
        assert all(
            text in pushed
            for text in ("In(queue_id, [1,2])", "GreaterThanOrEqual(queue_offset,3)", "LessThan(queue_offset,5)")
        ), pushed
        assert "store_timestamp" not in pushed and "keys" not in pushed
        plain = read(spark, servers, topic="pushed")
        assert numbers(some) == numbers(plain.where("queue_id in (1, 2) and queue_offset in (3, 4)"))
        middle = plain.selectExpr("percentile(cast(store_timestamp as double), 0.5) as at").collect()[0].at
        late = f"store_timestamp >= timestamp_micros({int(middle * 1e6)})"
        assert numbers(frame.where(late)) == numbers(plain.where(late)) != []
        assert frame.where("topic = 'other'").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_max_bytes_limit_a_batch_with_available_now(spark: SparkSession, servers: LocalCluster, tmp_path: Path) -> None:
    make(servers, 2, "sized")
    send(servers, "sized", *range(60))
    batches = stream(spark, servers, tmp_path, topic="sized", maxBytesPerTrigger="4k")
    assert numbers(spark.read.parquet(str(tmp_path / "rows"))) == list(range(60))
    assert len(batches) >= 3
    # With the least of both sizes on record for such messages, 150 and 400 bytes.
    assert all(4096 // 400 <= batch["numInputRows"] <= 4096 // 150 for batch in batches[:-1])


def test_min_offsets_delay_a_batch_but_not_with_available_now(
    spark: SparkSession, servers: LocalCluster, tmp_path: Path
) -> None:
    make(servers, 1, "least")
    send(servers, "least", *range(5))
    batches = stream(spark, servers, tmp_path, topic="least", minOffsetsPerTrigger=100, maxOffsetsPerTrigger=200)
    assert sum(batch["numInputRows"] for batch in batches) == 5
