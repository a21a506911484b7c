"""The sink against a broker: the topic contains the rows of the data frame, and duplicates are recognised."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ariane.client import Producer
from ariane.cluster.admin import Admin
from ariane.model.message import Message
from ariane.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("sink") / "cluster") as running:
        yield running


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    from ariane.spark import RocketMQSource

    spark.dataSource.register(RocketMQSource)


def make_topic(servers: LocalCluster, queues: int, topic: str) -> None:
    async def work() -> None:
        async with Admin(servers.namesrv) as admin:
            await admin.create_topic(topic, queues=queues)

    asyncio.run(work())


def send(servers: LocalCluster, first: int, count: int, topic: str) -> None:
    """Send messages whose bodies are numbers and whose keys are derived from them."""

    async def work() -> None:
        async with Producer(servers.namesrv, "P") as producer:
            for number in range(first, first + count):
                tag = "even" if number % 2 == 0 else "odd"
                await producer.send(Message(topic=topic, body=b"%d" % number, keys=[f"K{number}"], tags=tag))

    asyncio.run(work())


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.body) for row in frame.select("body").collect())


def write(frame: DataFrame, servers: LocalCluster, **options: Any) -> None:
    frame.write.format("rocketmq").options(namesrv=servers.namesrv, **options).mode("append").save()


def read(spark: SparkSession, servers: LocalCluster, topic: str) -> DataFrame:
    return spark.read.format("rocketmq").options(namesrv=servers.namesrv, topic=topic).load()


def test_a_written_batch_is_read_back_with_all_columns(spark: SparkSession, servers: LocalCluster) -> None:
    make_topic(servers, 3, "All")
    large = "large " * 2000
    frame = spark.range(500).selectExpr(
        f"CASE WHEN id = 7 THEN '{large}' ELSE CAST(id AS STRING) END AS body", "concat('K', id) AS keys",
        "CASE WHEN id % 2 = 0 THEN 'even' END AS tags", "map('n', CAST(id AS STRING)) AS properties", "CAST(id AS INT) AS flag",
    )  # fmt: skip
    write(frame, servers, topic="All", batchSize=50, runId="run-1")
    rows = {row["properties"]["n"]: row for row in read(spark, servers, "All").collect()}
    assert sorted(map(int, rows)) == list(range(500))
    row, other = rows["8"], rows["7"]
    assert (bytes(row.body), row["keys"], row.tags, row.flag, row.sys_flag & 1) == (b"8", "K8", "even", 8, 0)
    assert (bytes(other.body), other.tags, other.sys_flag & 1) == (large.encode(), None, 1)
    assert {row.queue_id for row in rows.values()} == {0, 1, 2}
    assert len({row.message_id for row in rows.values()}) == 500
    marks = {row["properties"]["ARIANE_DEDUP"].rpartition("/")[::2] for row in rows.values()}
    halves = [{int(position) for where, position in marks if where == f"run-1/0/{partition}"} for partition in (0, 1)]
    assert halves == [set(range(250))] * 2


def test_rows_choose_topic_queue_and_time(spark: SparkSession, servers: LocalCluster) -> None:
    make_topic(servers, 4, "One")
    make_topic(servers, 4, "Two")
    due = datetime.now(UTC) + timedelta(seconds=3)
    frame = spark.createDataFrame(
        [
            ("a", "One", 2, None, None),
            ("b", None, None, "k", None),
            ("c", "One", None, "k", None),
            ("d", None, None, None, due),
        ],
        "body STRING, topic STRING, queue_id INT, ordering_key STRING, deliver_at TIMESTAMP",
    )
    write(frame, servers, topic="Two")
    item = {bytes(row.body): row.queue_id for row in read(spark, servers, "One").collect()}
    two = {bytes(row.body): row.queue_id for row in read(spark, servers, "Two").collect()}
    assert item == {b"a": 2, b"c": 107 % 4}  # "k" is U+006B
    assert two[b"b"] == 107 % 4
    assert b"d" not in two or datetime.now(UTC) >= due
    late: list[Row] = []
    while not late:
        assert datetime.now(UTC) < due + timedelta(seconds=20)
        late = [row for row in read(spark, servers, "Two").collect() if bytes(row.body) == b"d"]
    assert late[0].store_timestamp.astimezone(UTC) >= due - timedelta(milliseconds=1)


def test_rows_of_a_key_keep_their_order(spark: SparkSession, servers: LocalCluster) -> None:
    make_topic(servers, 3, "Order")
    frame = spark.range(0, 3000, 1, 2).selectExpr(
        "CAST(id AS STRING) AS body", "CAST(id % 17 AS STRING) AS ordering_key", "map('k', CAST(id % 17 AS STRING)) AS properties",
    )  # fmt: skip
    write(frame, servers, topic="Order", batchSize=7)
    stored = read(spark, servers, "Order").orderBy("queue_id", "queue_offset").collect()
    for key in range(17):
        of_key = [int(row.body) for row in stored if row["properties"]["k"] == str(key)]
        halves = [
            [item for item in of_key if item < 1500],
            [item for item in of_key if item >= 1500],
        ]  # the two partitions
        assert halves == [sorted(half) for half in halves]
        assert len(of_key) == len(range(key, 3000, 17))
        assert len({row.queue_id for row in stored if row["properties"]["k"] == str(key)}) == 1


def test_unsupported_columns_are_named_before_a_task_starts(spark: SparkSession, servers: LocalCluster) -> None:
    frame = spark.range(1).selectExpr("CAST(id AS STRING) AS body", "id AS queue_id")
    with pytest.raises(Exception, match=r"queue_id bigint.*col\(.*queue_id.*\).cast\(.*int"):
        write(frame, servers, topic="All")
    good = frame.select("body")
    with pytest.raises(Exception, match="no route for topic Nowhere.*creates no topics"):
        write(good, servers, topic="Nowhere")
    with pytest.raises(Exception, match="cannot be overwritten"):
        good.write.format("rocketmq").options(namesrv=servers.namesrv, topic="All").mode("overwrite").save()
    with pytest.raises(Exception, match="is not a column of the sink") as caught:
        write(good.selectExpr("body", "1 AS nothing"), servers, topic="All", accessKey="me", secretKey="hidden-key")
    assert "hidden-key" not in str(caught.value)


def test_an_invalid_row_fails_the_job_and_is_named(spark: SparkSession, servers: LocalCluster) -> None:
    make_topic(servers, 1, "Bad")
    frame = spark.range(0, 10, 1, 1).selectExpr("CASE WHEN id <> 6 THEN CAST(id AS STRING) END AS body")
    with pytest.raises(Exception, match="row bad-run/0/0/6: the body is null or empty"):
        write(frame, servers, topic="Bad", runId="bad-run")


class Copy:
    """Run a streaming query from one topic to another."""

    def __init__(self, spark: SparkSession, servers: LocalCluster, home: Path, source: str, sink: str) -> None:
        self._spark, self._servers, self._home, self._source, self._sink = spark, servers, home, source, sink

    def run(self, failing: bool = False) -> None:
        source = self._spark.readStream.format("rocketmq").options(namesrv=self._servers.namesrv, topic=self._source)
        frame = source.option("maxOffsetsPerTrigger", 40).load()
        body = "CASE WHEN body = X'3537' THEN CAST(NULL AS BINARY) ELSE body END" if failing else "body"
        query = (
            frame.selectExpr(f"{body} AS body", "properties['KEYS'] AS ordering_key")
            .writeStream.format("rocketmq")
            .options(namesrv=self._servers.namesrv, topic=self._sink, batchSize=5)
            .option("checkpointLocation", str(self._home))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)


def test_duplicates_written_by_a_killed_stream_are_recognised(
    spark: SparkSession, servers: LocalCluster, tmp_path: Path
) -> None:
    from ariane.spark import drop_duplicates

    make_topic(servers, 2, "In")
    make_topic(servers, 3, "Out")
    send(servers, 0, 100, "In")
    copy = Copy(spark, servers, tmp_path / "checkpoint", "In", "Out")
    with pytest.raises(Exception, match="the body is null or empty"):
        copy.run(failing=True)  # one of its tasks fails, in the second micro-batch
    copy.run()
    commits = sorted(int(path.name) for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    (
        tmp_path / "checkpoint" / "commits" / str(commits[-1])
    ).unlink()  # as after a kill between the last batch and its commit
    copy.run()
    rows = read(spark, servers, "Out")
    assert set(numbers(rows)) == set(range(100))
    assert len(numbers(rows)) > 100
    assert numbers(drop_duplicates(rows)) == list(range(100))
    copies = Counter(row["properties"]["ARIANE_DEDUP"] for row in rows.collect())
    assert len(copies) == 100  # who runs again gives rows the names they had
    assert len({row.message_id for row in rows.collect()}) == 100

    send(servers, 1000, 5, "Out")  # messages of others have no such name, and stay
    assert numbers(drop_duplicates(read(spark, servers, "Out"))) == [*range(100), *range(1000, 1005)]
    stream = spark.readStream.format("rocketmq").options(namesrv=servers.namesrv, topic="Out").load()
    with pytest.raises(Exception, match="required for streaming frames"):
        drop_duplicates(stream)
    with pytest.raises(
        Exception, match="topic, broker, queue_id, queue_offset, properties.*required to identify messages"
    ):
        drop_duplicates(rows.select("body"))
    target = tmp_path / "rows"
    query = (
        drop_duplicates(stream, "1 hour")
        .select("body")
        .writeStream.format("parquet")
        .options(path=str(target), checkpointLocation=str(tmp_path / "second"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert numbers(spark.read.parquet(str(target))) == [*range(100), *range(1000, 1005)]


def test_a_stream_drops_duplicates_but_never_late_rows(spark: SparkSession, tmp_path: Path) -> None:
    from ariane.spark import drop_duplicates

    ids = "topic STRING, broker STRING, queue_id INT, queue_offset BIGINT"
    ddl = f"{ids}, properties MAP<STRING, STRING>, store_timestamp TIMESTAMP"

    def put(first: int, sequences: list[int], stored: datetime) -> None:
        rows = [
            ("T", "b", 0, first + at, {"ARIANE_DEDUP": f"q/0/0/{sequence}"} if sequence >= 0 else {}, stored)
            for at, sequence in enumerate(sequences)
        ]
        spark.createDataFrame(rows, ddl).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))

    def run() -> list[str]:
        frame = drop_duplicates(spark.readStream.schema(ddl).parquet(str(tmp_path / "in")), "1 second")
        query = (
            frame.writeStream.format("parquet")
            .options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert frame.columns == ["topic", "broker", "queue_id", "queue_offset", "properties", "store_timestamp"]
        names = [
            row["properties"].get("ARIANE_DEDUP", "none") for row in spark.read.parquet(str(tmp_path / "out")).collect()
        ]
        return sorted(names)

    now = datetime.now(UTC)
    put(0, [0, 1, 1, -1, -1], now)
    assert run() == ["none", "none", "q/0/0/0", "q/0/0/1"]
    time.sleep(2.5)
    put(100, [2, 3, 3, -1], now - timedelta(days=2))  # a queue that lags two days behind
    assert run() == ["none", "none", "none", "q/0/0/0", "q/0/0/1", "q/0/0/2", "q/0/0/3"]
    put(200, [0, 2], now)  # a second is over since the first run: its rows are forgotten, which bounds the memory
    assert run() == ["none", "none", "none", "q/0/0/0", "q/0/0/0", "q/0/0/1", "q/0/0/2", "q/0/0/3"]


def test_a_dataframe_read_from_a_topic_can_be_written(spark: SparkSession, servers: LocalCluster) -> None:
    make_topic(servers, 1, "From")
    make_topic(servers, 1, "To")
    send(servers, 0, 5, "From")
    frame = read(spark, servers, "From").select("body", "keys", "tags", "properties")
    with pytest.raises(Exception, match="reserved by the protocol.*dropReservedProperties"):
        write(frame, servers, topic="To")
    write(frame, servers, topic="To", dropReservedProperties="true")
    rows = read(spark, servers, "To").orderBy("queue_offset").collect()
    assert [(int(row.body), row["keys"], row.tags) for row in rows][:2] == [(0, "K0", "even"), (1, "K1", "odd")]
    assert json.dumps(rows[0]["properties"]).count("KEYS") == 1
