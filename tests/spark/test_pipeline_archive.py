"""The archive job: topics are stored by day and topic, once, retained for some days, merged, and readable without Spark."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

from ariane.client import Producer
from ariane.errors import ConfigError
from ariane.model.message import Message
from ariane.pipeline import archive, run
from ariane.pipeline.publishing import decoded_batches, table_publisher
from ariane.pipeline.replay import replay_frame
from ariane.reports.replay import replay_source
from ariane.reports.replay.replay_source import ReplayFilter
from ariane.reports.tables.table_views import open_views, query, whole_table
from ariane.spark.records import record_columns
from ariane.tables import ARCHIVE, table_store
from ariane.tables.time_buckets import bucket_of_time
from ariane.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
DAY_MS = 86_400_000
T0_MS = 1_700_006_400_000 - 1_700_006_400_000 % DAY_MS


def messages(spark: SparkSession, *some: tuple[str, int, int]) -> DataFrame:
    """Return messages as the source returns them: topic, queue offset, ms after a midnight."""
    empty = dict.fromkeys(ARCHIVE.column_names)
    rows: list[dict[str, Any]] = [
        empty
        | {
            "topic": topic, "broker": "broker-a", "queue_id": 0, "queue_offset": offset, "message_id": f"{topic}-{offset}",
            "properties": {"color": "red"}, "body": b"body", "flag": 0, "sys_flag": 0,
            "store_timestamp": datetime.fromtimestamp((T0_MS + ms) / 1000, UTC),
        }
        for topic, offset, ms in some
    ]  # fmt: skip
    return spark.createDataFrame(rows, ARCHIVE.ddl)


def archived(spark: SparkSession, *some: tuple[str, int, int]) -> DataFrame:
    return decoded_batches.rows_of_table(messages(spark, *some), archive.decode, ARCHIVE)


def test_archive_columns_have_the_types_of_the_source() -> None:
    for column in ARCHIVE.columns:
        assert record_columns.COLUMNS[column.name][1] == column.type


def test_batches_are_archived_once_by_day_and_topic_and_old_days_expire(spark: SparkSession, tmp_path: Path) -> None:
    batch = archived(spark, ("orders", 1, 5), ("orders", 0, 1), ("%DLQ%G", 0, 5), ("orders", 2, DAY_MS))
    for _ in range(2):
        table_publisher.append_batch(batch, tmp_path, ARCHIVE, "archive q", 0, T0_MS)
    now = table_store.read_version(tmp_path, ARCHIVE)
    assert now is not None
    first, second = (f"{datetime.fromtimestamp((T0_MS + ms) / 1000, UTC):%Y-%m-%d}" for ms in (0, DAY_MS))
    assert sorted((file.bucket, file.rows) for file in now.files) == [
        (f"{first}.%DLQ%G", 1), (f"{first}.orders", 2), (f"{second}.orders", 1),
    ]  # fmt: skip
    with open_views(tmp_path, whole_table(ARCHIVE)) as sql:
        assert query(sql, "SELECT topic, count(*) AS n, any_value(body) AS body FROM archive GROUP BY topic ORDER BY 1") == [
            {"topic": "%DLQ%G", "n": 1, "body": b"body"}, {"topic": "orders", "n": 3, "body": b"body"},
        ]  # fmt: skip
    remaining = table_publisher.expire(tmp_path, ARCHIVE, bucket_of_time(T0_MS + DAY_MS), T0_MS)
    assert remaining is not None
    assert [file.bucket for file in remaining.files] == [f"{second}.orders"]


def test_only_small_files_are_merged(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_publisher, "MAX_SMALL_FILES", 2)
    for number in range(4):
        batch = archived(spark, ("orders", number, number))
        table_publisher.append_batch(batch, tmp_path, ARCHIVE, "archive q", number, T0_MS)
    before = table_store.read_version(tmp_path, ARCHIVE)
    assert before is not None
    large = before.files[0]
    monkeypatch.setattr(table_publisher, "SMALL_BYTES", large.bytes)
    sizes = [file.bytes for file in before.files]
    if min(sizes[1:]) >= large.bytes:  # sizes may be equal: all of them are large then
        assert table_publisher.compact(spark, tmp_path, ARCHIVE, T0_MS) is None
        monkeypatch.setattr(table_publisher, "SMALL_BYTES", large.bytes + 1)
    merged = table_publisher.compact(spark, tmp_path, ARCHIVE, T0_MS)
    assert merged is not None
    assert (merged.rows, sum(file.rows for file in merged.files)) == (4, 4)
    kept = {file.path for file in before.files if file.bytes >= table_publisher.SMALL_BYTES}
    assert kept <= {file.path for file in merged.files}
    assert len(merged.files) == len(kept) + 1


def test_topic_options_are_validated() -> None:
    assert archive.archive_job(["a"]).sources[0].options == {"topic": "a"}
    assert archive.archive_job(["a", "b"]).sources[0].options == {"topics": "a,b"}
    options = archive.archive_job(pattern="%DLQ%.*", system_topics=True).sources[0].options
    assert options == {"topicsPattern": "%DLQ%.*", "includeSystemTopics": "true"}
    for wrong in (([], ""), (["a"], "b"), (["a/b"], "")):
        with pytest.raises(ConfigError, match="--topics"):
            archive.archive_job(*wrong)


def test_messages_of_a_broker_are_archived_and_replayed(spark: SparkSession, tmp_path: Path) -> None:
    async def produce(namesrv: str, first: int) -> None:
        async with Producer(namesrv, "P") as producer:
            for number in range(first, first + 3):
                own = {"color": "red"}
                await producer.send(Message(topic="T", body=b"x" * 5000, keys=(f"order-{number}",), properties=own))

    async def chosen() -> list[tuple[str, bytes, str]]:
        result = replay_source.archived_messages(tmp_path / "archive", ReplayFilter(topic="T"))
        return [(message.properties["KEYS"], message.body, message.properties["color"]) async for message in result]

    with LocalCluster(tmp_path / "servers") as servers:
        for first in (0, 3):
            asyncio.run(produce(servers.namesrv, first))
            run.run(
                archive.archive_job(["T"]),
                {"namesrv": servers.namesrv},
                tmp_path / "archive",
                settings=run.RunSettings(once=True),
            )
    assert sorted(asyncio.run(chosen())) == [(f"order-{number}", b"x" * 5000, "red") for number in range(6)]


def test_a_dataframe_is_replayed_and_the_result_is_a_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    async def topic_again(namesrv: str) -> None:
        async with Producer(namesrv, "P") as producer:
            await producer.send(Message(topic="again", body=b"first"))

    frame = messages(spark, ("orders", 0, 0), ("orders", 1, 1), ("orders", 2, 2))
    result = tmp_path / "result.parquet"
    with LocalCluster(tmp_path / "servers") as servers:
        asyncio.run(topic_again(servers.namesrv))
        for some in (frame.where("queue_offset > 0"), frame):
            rows_of_it = replay_frame(some, servers.namesrv, result, topic="again", rate=1000).collect()
        with pytest.raises(ConfigError, match="lacks body"):
            replay_frame(frame.drop("body"), servers.namesrv, result)
    assert sorted((row["source_message_id"], row["state"], row["topic"]) for row in rows_of_it) == [
        (f"orders-{number}", "ok", "again") for number in range(3)
    ]
