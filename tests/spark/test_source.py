"""The source against a broker: every message sent is read exactly once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
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


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster") as running:
        yield running


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    from ariane.spark import RocketMQSource

    spark.dataSource.register(RocketMQSource)


def send(servers: LocalCluster, first: int, count: int, topic: str = "T") -> None:
    """Send messages whose bodies are numbers and whose keys are derived from them."""

    async def work() -> None:
        async with Producer(servers.namesrv, "P") as producer:
            for number in range(first, first + count):
                tag = "even" if number % 2 == 0 else "odd"
                await producer.send(Message(topic=topic, body=b"%d" % number, keys=[f"K{number}"], tags=tag))

    asyncio.run(work())


def make_topic(servers: LocalCluster, queues: int, topic: str = "T") -> None:
    async def work() -> None:
        async with Admin(servers.namesrv) as admin:
            await admin.create_topic(topic, queues=queues)

    asyncio.run(work())


def read(spark: SparkSession, servers: LocalCluster, **options: Any) -> DataFrame:
    return spark.read.format("rocketmq").options(namesrv=servers.namesrv, topic="T", **options).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.body) for row in frame.select("body").collect())


class Stream:
    """A streaming query to Parquet that processes everything available, any number of times."""

    def __init__(self, spark: SparkSession, servers: LocalCluster, home: Path, **options: Any) -> None:
        self._spark, self._servers, self._home, self._options = spark, servers, home, options

    def run(self) -> int:
        """Return the number of non-empty micro-batches."""
        source = self._spark.readStream.format("rocketmq").schema("body BINARY, queue_id INT, queue_offset BIGINT")
        frame = source.options(namesrv=self._servers.namesrv, topic="T", **self._options).load()
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(self._home / "rows"))
            .option("checkpointLocation", str(self._home / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        return sum(1 for progress in query.recentProgress if progress["numInputRows"])

    def rows(self) -> list[int]:
        return numbers(self._spark.read.parquet(str(self._home / "rows")))


def test_a_batch_reads_all_messages_with_all_columns(spark: SparkSession, servers: LocalCluster) -> None:
    send(servers, 0, 100)
    rows = read(spark, servers).collect()
    assert sorted(int(row.body) for row in rows) == list(range(100))
    row = next(row for row in rows if row.keys == "K7")
    assert (row.topic, row.broker, row.tags, row.reconsume_times) == ("T", "broker-a", "odd", 0)
    assert row.properties["KEYS"] == "K7"
    assert row.store_host == servers.broker.addr
    assert row.message_id == row.properties["UNIQ_KEY"]
    assert abs((row.store_timestamp - row.born_timestamp).total_seconds()) < 60


def test_a_batch_between_offsets_and_by_tag(spark: SparkSession, servers: LocalCluster) -> None:
    make_topic(servers, 1)
    send(servers, 0, 50)
    some = read(
        spark, servers,
        startingOffsets=json.dumps({"T": {"broker-a": {"0": 10}}}), endingOffsets=json.dumps({"T": {"broker-a": {"0": 15}}}),
    )  # fmt: skip
    assert numbers(some) == [10, 11, 12, 13, 14]
    assert numbers(read(spark, servers, tags="even")) == list(range(0, 50, 2))
    assert numbers(read(spark, servers, startingOffsets="latest")) == []


def test_a_stream_resumes_from_its_checkpoint_and_finds_new_queues(
    spark: SparkSession, servers: LocalCluster, tmp_path: Path
) -> None:
    make_topic(servers, 2)
    send(servers, 0, 40)
    stream = Stream(spark, servers, tmp_path)
    stream.run()
    assert stream.rows() == list(range(40))
    stream.run()
    assert stream.rows() == list(range(40))
    make_topic(servers, 5)
    send(servers, 40, 40)
    stream.run()
    assert stream.rows() == list(range(80))


def test_a_limit_splits_the_input_into_several_batches(
    spark: SparkSession, servers: LocalCluster, tmp_path: Path
) -> None:
    send(servers, 0, 60)
    stream = Stream(spark, servers, tmp_path, maxOffsetsPerTrigger=20)
    assert stream.run() >= 3
    assert stream.rows() == list(range(60))


def test_an_uncommitted_batch_is_replayed_with_the_same_rows(
    spark: SparkSession, servers: LocalCluster, tmp_path: Path
) -> None:
    send(servers, 0, 30)
    stream = Stream(spark, servers, tmp_path)
    stream.run()
    # As after a crash between the batch's plan and its end: the plan is there, the sink and the commit are not.
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    for path in [*(tmp_path / "rows").rglob("*")]:
        if path.is_file():
            path.unlink()
    send(servers, 30, 30)
    stream.run()
    assert stream.rows() == list(range(60))


def test_lost_offsets_fail_the_query_or_are_skipped(spark: SparkSession, servers: LocalCluster) -> None:
    make_topic(servers, 1)
    send(servers, 0, 10)
    beyond = json.dumps({"T": {"broker-a": {"0": 25}}})
    with pytest.raises(Exception, match="endingOffsets 25 is beyond its end 10.*failOnDataLoss"):
        read(spark, servers, endingOffsets=beyond).collect()
    assert numbers(read(spark, servers, endingOffsets=beyond, failOnDataLoss="false")) == list(range(10))


def test_an_unknown_topic_and_a_wrong_option_are_named(spark: SparkSession, servers: LocalCluster) -> None:
    with pytest.raises(Exception, match="no route for topic T"):
        read(spark, servers).collect()
    with pytest.raises(Exception, match=r"startingoffset = ...: is not an option"):
        read(spark, servers, startingOffset="latest").collect()
    with pytest.raises(Exception, match="nothing"):
        spark.read.format("rocketmq").schema("nothing INT").options(namesrv=servers.namesrv, topic="T").load().collect()


def test_a_stream_waits_for_a_topic_that_does_not_exist_yet(
    spark: SparkSession, servers: LocalCluster, tmp_path: Path
) -> None:
    stream = Stream(spark, servers, tmp_path, startingOffsets="latest")
    assert stream.run() == 0
    send(servers, 0, 20)
    stream.run()
    assert stream.rows() == list(range(20))  # all of them came after the start


def test_a_stream_from_latest_reads_new_messages(spark: SparkSession, servers: LocalCluster, tmp_path: Path) -> None:
    send(servers, 0, 20)
    stream = Stream(spark, servers, tmp_path, startingOffsets="latest")
    stream.run()
    send(servers, 20, 20)
    stream.run()
    assert stream.rows() == list(range(20, 40))


def test_a_stream_beyond_the_end_of_a_queue_fails_or_resumes(
    spark: SparkSession, servers: LocalCluster, tmp_path: Path
) -> None:
    make_topic(servers, 1)
    send(servers, 0, 10)
    beyond = json.dumps({"T": {"broker-a": {"0": 25}}})
    strict = Stream(spark, servers, tmp_path / "strict", startingOffsets=beyond)
    with pytest.raises(Exception, match="T queue 0 of broker-a: offsets 10 to 24.*failOnDataLoss"):
        strict.run()
    lenient = Stream(spark, servers, tmp_path / "lenient", startingOffsets=beyond, failOnDataLoss="false")
    lenient.run()
    send(servers, 10, 5)
    lenient.run()
    assert lenient.rows() == [10, 11, 12, 13, 14]


def test_json_offsets_accept_earliest_latest_and_existing_queues_only(
    spark: SparkSession, servers: LocalCluster
) -> None:
    make_topic(servers, 1)
    send(servers, 0, 10)

    def queue_0(offset: int) -> str:
        return json.dumps({"T": {"broker-a": {"0": offset}}})

    assert numbers(read(spark, servers, startingOffsets=queue_0(-2), endingOffsets=queue_0(4))) == [0, 1, 2, 3]
    assert numbers(read(spark, servers, startingOffsets=queue_0(8), endingOffsets=queue_0(-1))) == [8, 9]
    assert numbers(read(spark, servers, startingOffsets=queue_0(-1))) == []
    with pytest.raises(
        Exception,
        match="endingOffsets = '-2': expected an offset, or -1 for the latest: a queue that ends at its earliest offset is empty",
    ):
        read(spark, servers, endingOffsets=queue_0(-2)).collect()
    with pytest.raises(Exception, match="endingOffsets.*queue 5 of broker-a.*no such queue"):
        read(spark, servers, endingOffsets=json.dumps({"T": {"broker-a": {"5": 1}}})).collect()


def test_tags_are_compared_not_only_their_hash_codes(spark: SparkSession, servers: LocalCluster) -> None:
    async def work() -> None:
        async with Producer(servers.namesrv, "P") as producer:
            for number, tag in enumerate(["Aa", "BB", "Aa", "BB"]):  # the broker holds equal hashes
                await producer.send(Message(topic="T", body=b"%d" % number, tags=tag))

    asyncio.run(work())
    assert numbers(read(spark, servers, tags="Aa")) == [0, 2]
    rows = read(spark, servers, tags="BB").select("tags", "queue_id").collect()
    assert [row.tags for row in rows] == ["BB", "BB"]


def test_large_bodies_are_read_as_sent(spark: SparkSession, servers: LocalCluster) -> None:
    body = b"large and repeated " * 1000

    async def work() -> None:
        async with Producer(servers.namesrv, "P") as producer:
            await producer.send(Message(topic="T", body=body))

    asyncio.run(work())
    (row,) = read(spark, servers).collect()
    assert (bytes(row.body), row.sys_flag & 1) == (body, 1)
