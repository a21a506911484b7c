"""What the connector does on each supported Spark, classic and Connect: the table in docs/compatibility.md.

The session is of the installed Spark, or of ARIANE_SPARK_REMOTE. `.ci/other-sparks` runs this file on the other versions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import pyspark

from ariane.cluster.admin import Admin
from ariane.pipeline import restarts
from ariane.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long(
        "tests/spark/test_source.py::test_a_batch_reads_all_messages_with_all_columns",
        "tests/spark/test_sink.py::test_duplicates_written_by_a_killed_stream_are_recognised",
        "tests/spark/test_source_operations.py::test_offsets_are_committed_to_the_group_including_the_last_batch",
        "tests/spark/test_store_source.py::test_any_message_is_found_by_any_predicate",
    ),
]
VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
ROWS = 20


def needs_spark(minimum: tuple[int, int], feature: str) -> AbstractContextManager[object]:
    """Return a context that expects the connector's error for `feature` if Spark is older than `minimum`."""
    if minimum <= VERSION:
        return nullcontext()
    return pytest.raises(Exception, match=f"Spark = '{pyspark.__version__}': {feature} needs Spark 4.{minimum[1]}")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("platform")


@pytest.fixture(scope="module")
def servers(home: Path) -> Iterator[LocalCluster]:
    with LocalCluster(home) as running:
        yield running


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    from ariane.spark import RocketMQSource, StoreSource

    if VERSION == (4, 0):
        return  # an installed format cannot be registered again
    spark.dataSource.register(RocketMQSource)
    spark.dataSource.register(StoreSource)


def make_topic(servers: LocalCluster, name: str) -> None:
    async def work() -> None:
        async with Admin(servers.namesrv) as admin:
            await admin.create_topic(name, queues=2)

    asyncio.run(work())


def rows(spark: SparkSession, first: int = 0) -> DataFrame:
    return spark.range(first, first + ROWS).selectExpr("string(id) AS body", "concat('K', id) AS keys")


def write(frame: DataFrame, servers: LocalCluster, topic: str) -> None:
    frame.write.format("rocketmq").options(namesrv=servers.namesrv, topic=topic).mode("append").save()


def read(spark: SparkSession, servers: LocalCluster, topic: str, **options: Any) -> DataFrame:
    return spark.read.format("rocketmq").options(namesrv=servers.namesrv, topic=topic, **options).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.body) for row in frame.select("body").collect())


def test_batches_are_written_and_read(spark: SparkSession, servers: LocalCluster, home: Path) -> None:
    make_topic(servers, "B")
    write(rows(spark), servers, "B")
    messages = read(spark, servers, "B")
    assert numbers(messages) == list(range(ROWS))
    (row,) = messages.where("keys = 'K7'").collect()
    assert (row.topic, row.broker, row.properties["KEYS"]) == ("B", "broker-a", "K7")
    stored = spark.read.format("rocketmq-store").load(str(home / "store"))
    assert stored.where("topic = 'B' AND valid").count() == ROWS


def test_filters_are_pushed_to_a_batch(spark: SparkSession, servers: LocalCluster) -> None:
    make_topic(servers, "F")
    write(rows(spark), servers, "F")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        with needs_spark((4, 1), "the option pushDownPredicate"):
            filtered = read(spark, servers, "F", pushDownPredicate="true").where("queue_id = 1")
            assert {row.queue_id for row in filtered.select("queue_id").collect()} == {1}
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def group_offset(servers: LocalCluster, group: str, topic: str) -> int:
    async def work() -> int:
        async with Admin(servers.namesrv) as admin:
            lag = await admin.group_lag(group, topic)
        return sum(queue.consumer_offset or 0 for queue in lag.queues)

    return asyncio.run(work())


def run_stream(spark: SparkSession, servers: LocalCluster, home: Path) -> StreamingQuery:
    options = {"namesrv": servers.namesrv, "topic": "S", "maxOffsetsPerTrigger": str(ROWS), "commitOffsets": "true"}
    messages = spark.readStream.format("rocketmq").options(groupId="platform", **options).load()
    to_files = messages.select("body", "queue_id").writeStream.format("parquet").option("path", str(home / "rows"))
    query = to_files.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination(120)
    return query


def test_a_stream_resumes_commits_its_group_and_reports_lag(
    spark: SparkSession, servers: LocalCluster, tmp_path: Path
) -> None:
    from ariane.spark import lags

    make_topic(servers, "S")
    write(rows(spark), servers, "S")
    with needs_spark((4, 2), "reading a RocketMQ stream"):
        run_stream(spark, servers, tmp_path)
        write(rows(spark, ROWS), servers, "S")
        query = run_stream(spark, servers, tmp_path)
        assert numbers(spark.read.parquet(str(tmp_path / "rows"))) == list(range(2 * ROWS))
        assert lags(query.lastProgress.json) == {"S": {"broker-a": {"0": 0, "1": 0}}}
        assert group_offset(servers, "platform", "S") == 2 * ROWS


def test_a_stream_is_written(spark: SparkSession, servers: LocalCluster, tmp_path: Path) -> None:
    make_topic(servers, "W")
    make_topic(servers, "E")
    rows(spark).write.parquet(str(tmp_path / "input"))
    stream = spark.readStream.schema("body STRING, keys STRING").parquet(str(tmp_path / "input"))

    def run(writer: Any, checkpoint: str) -> None:
        checkpointed = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        checkpointed.trigger(availableNow=True).start().awaitTermination(120)

    with needs_spark((4, 1), "writing a RocketMQ stream"):
        run(stream.writeStream.format("rocketmq").options(namesrv=servers.namesrv, topic="W"), "written")
        assert numbers(read(spark, servers, "W")) == list(range(ROWS))
    namesrv = servers.namesrv

    def write_batch(batch: DataFrame, batch_id: int) -> None:
        options = {"namesrv": namesrv, "topic": "E", "runId": f"platform-{batch_id}"}
        batch.write.format("rocketmq").options(**options).mode("append").save()

    run(stream.writeStream.foreachBatch(write_batch), "each")
    assert numbers(read(spark, servers, "E")) == list(range(ROWS))


@pytest.mark.skipif(VERSION < (4, 2), reason="PySpark has the real-time trigger since 4.2")
def test_the_real_time_trigger_is_refused_by_spark(spark: SparkSession, servers: LocalCluster, tmp_path: Path) -> None:
    """Sources in Python take part in micro-batches only, also in Spark 4.3 (docs/connector.md)."""
    make_topic(servers, "R")
    messages = spark.readStream.format("rocketmq").options(namesrv=servers.namesrv, topic="R").load()
    to_console = messages.writeStream.format("console").option("checkpointLocation", str(tmp_path / "checkpoint"))
    real_time = to_console.outputMode("update").trigger(realTime="5 minutes")
    with pytest.raises(Exception, match=r"STREAMING_REAL_TIME_MODE\.INPUT_STREAM_NOT_SUPPORTED"):
        # Spark starts the source's Python process first, and gives it 10 seconds: not enough on a busy machine.
        restarts.retry_transient("real time", lambda: real_time.start().awaitTermination(120), threading.Event(), print)
