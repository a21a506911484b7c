"""trace_events and messages to health: each rule on a few rows, and the same rows for late or duplicate input."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import trace_frames as frames
from trace_frames import after, at, before, pub

from ariane.model.trace_event import MessageType, TraceEvent
from ariane.pipeline.jobs import JOBS
from ariane.pipeline.publishing import incremental, table_publisher
from ariane.pipeline.tables import bucket_columns, health
from ariane.reports import health_report as reports
from ariane.reports.report import Table
from ariane.tables import HEALTH, MESSAGES, TRACE_EVENTS
from ariane.tables.declarations import health as kinds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def record(message_id: str, offset: int, ms: int = 0, topic: str = "T", **other: Any) -> dict[str, Any]:
    """Return a record stored, and sent, `ms` after the tests' epoch."""
    row = dict.fromkeys(MESSAGES.column_names) | {
        "topic": topic, "broker": "broker-a", "queue_id": 0, "queue_offset": offset, "commit_log_offset": offset * 100,
        "message_id": message_id, "offset_message_id": f"OFF-{message_id}", "keys": f"key-{message_id}", "tags": "a",
        "properties": {}, "born_timestamp": at(ms), "store_timestamp": at(ms), "born_host": "10.0.0.9:5000",
        "store_host": "10.0.0.1:10911", "reconsume_times": 0,
    }  # fmt: skip
    return row | other


def messages(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    from pyspark.sql import functions as F

    frame = spark.createDataFrame(list(rows), MESSAGES.ddl)
    return frame.withColumn("bucket", bucket_columns.bucket_of_message(F.col("message_id"), F.col("store_timestamp")))


def found(
    spark: SparkSession, bodies: list[list[TraceEvent]], records: list[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Return rows by kind, without null columns."""
    frame = health.health(frames.events(spark, *bodies), messages(spark, *records))
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(frames.rows(frame), key=repr):
        by_kind.setdefault(row["kind"], []).append({name: value for name, value in row.items() if value is not None})
    return by_kind


def in_one_slot(
    spark: SparkSession, bodies: list[list[TraceEvent]], records: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return rows as if all ids belonged to one bucket; the tests' ids contain no time, and their hashes differ."""
    inputs = (frames.events(spark, *bodies), messages(spark, *records))
    return frames.rows(health.health(*(frame.selectExpr("* EXCEPT (bucket)", "'S' AS bucket") for frame in inputs)))


def ids(row: dict[str, Any]) -> list[str]:
    return [item["message_id"] for item in row["examples"]]


def minute(time: datetime) -> datetime:
    return time.replace(second=0, microsecond=0)


def test_the_columns_match_the_table_schema(spark: SparkSession) -> None:
    frame = health.health(frames.events(spark, [pub("M")]), messages(spark))
    named = [(field.name, field.dataType.simpleString()) for field in frame.schema]
    assert named == [
        *((column.name, column.type.lower().replace(": ", ":").replace(", ", ",")) for column in HEALTH.columns),
        ("bucket", "string"),
    ]


def test_duplicate_consumption_duplicate_storage_and_unconsumed_messages_are_found(spark: SparkSession) -> None:
    bodies: list[list[TraceEvent]] = [
        [pub("A"), pub("B"), pub("C")],
        [before("A", "R1", 10), after("A", "R1", 12), before("B", "R2", 10), after("B", "R2", 12, code=4)],
        [before("A", "R3", 20), after("A", "R3", 22), before("B", "R4", 20, retry_times=1), after("B", "R4", 22)],
    ]
    records = [record("A", 0), record("B", 1), record("C", 2), record("C", 3, offset_message_id="OFF-again")]
    once = found(spark, bodies, records)
    (twice,) = once[kinds.CONSUMED_TWICE]
    assert (twice["consumer_group"], twice["topic"], twice["count"], ids(twice)) == ("G", "T", 1, ["A"])
    assert (twice["worst"], twice["examples"][0]["detail"]) == (2, "2 successes at 1 hosts")
    assert twice["minute"] == minute(at(0)), "the broker's clock, not the consumer's"
    (stored,) = once[kinds.STORED_TWICE]
    assert (stored["topic"], stored["count"], stored["worst"], ids(stored)) == ("T", 1, 2, ["C"])
    assert stored["examples"][0]["detail"] == "OFF-C OFF-again"
    assert sorted((row["consumer_group"], *ids(row)) for row in once[kinds.STORED] if "consumer_group" in row) == [
        ("G", "A"),
        ("G", "B"),
    ]
    assert [ids(row) for row in once[kinds.STORED] if "consumer_group" not in row] == [["C"]]
    assert kinds.OUT_OF_ORDER not in once
    assert kinds.CLOCK_AHEAD not in once
    assert found(spark, [*reversed(bodies), *bodies], [*reversed(records), *records]) == once


def test_messages_not_yet_consumable_are_not_reported_as_unconsumed(spark: SparkSession) -> None:
    half, delayed = pub("H", message_type=MessageType.HALF), pub("D", message_type=MessageType.DELAY)
    rows = found(spark, [[half, delayed, pub("F", success=False)]], [])
    assert rows == {}


def test_stored_messages_are_counted_by_tag_and_consumer_group(spark: SparkSession) -> None:
    bodies: list[list[TraceEvent]] = [
        [before("1", "R1", 10, "G"), before("2", "R2", 10, "G"), before("1", "R3", 10, "H")],
    ]
    rows = in_one_slot(
        spark, bodies, [record("1", 0), record("2", 1), record("3", 2, tags="b"), record("4", 3, tags="b")]
    )
    stored = [row for row in rows if row["kind"] == kinds.STORED]
    assert sorted((row["consumer_group"] or "", row["cause"], row["count"], ids(row)) for row in stored) == [
        ("", "b", 2, ["3", "4"]),
        ("G", "a", 1, ["2"]),
        ("G H", "a", 1, ["1"]),
    ]


ORDERED = {"properties": {"__SHARDINGKEY": "order-1"}}


def disorder(spark: SparkSession, begun: list[TraceEvent], records: list[dict[str, Any]]) -> list[Any]:
    rows = in_one_slot(spark, [begun], records)
    return sorted((row["cause"], row["worst"], ids(row)) for row in rows if row["kind"] == kinds.OUT_OF_ORDER)


def test_a_first_delivery_before_an_earlier_message_is_out_of_order(spark: SparkSession) -> None:
    three = [record(name, place, **ORDERED) for place, name in enumerate("123")]
    in_order: list[TraceEvent] = [before("1", "A", 10), before("2", "B", 20), before("3", "C", 30)]
    assert disorder(spark, in_order, three) == []
    retried = [*in_order, before("1", "D", 40, retry_times=1)]
    assert disorder(spark, retried, three) == [], "a retry is no disorder"
    assert disorder(spark, [before("1", "A", 50), before("2", "B", 20), before("3", "C", 60)], three) == [
        ("one client", 30, ["2"])
    ]
    elsewhere: list[TraceEvent] = [before("1", "A", 50), before("2", "B", 20)]
    apart = [record("1", 0, **ORDERED), record("2", 1, queue_id=1, **ORDERED)]
    assert disorder(spark, elsewhere, apart) == [], "another queue"
    other_key = [record("1", 0, **ORDERED), record("2", 1)]
    assert disorder(spark, elsewhere, other_key) == [], "another key"
    only_retry = [before("1", "A", 50, retry_times=1), before("2", "B", 20)]
    assert disorder(spark, only_retry, three) == [], "the first delivery of 1 is not known"


def unique(counted_ms: int, number: int) -> str:
    """Return a unique id created `counted_ms` after the beginning of its month."""
    return f"7F000001{'0' * 12}{counted_ms:08X}{number:04X}"


def test_out_of_order_pairs_are_found_across_bucket_boundaries(spark: SparkSession) -> None:
    ten = 600_000
    first, second, third = (unique(1_209_600_000 - 6_400_000 + ten * number, number) for number in range(3))
    begun: list[TraceEvent] = [before(first, "A", 90), before(second, "B", 50), before(third, "C", 70)]
    events = frames.events(spark, begun)
    records = messages(spark, *(record(name, number, **ORDERED) for number, name in enumerate((first, second, third))))
    buckets = sorted({row["bucket"] for row in frames.rows(records)})
    assert len(buckets) == 3
    everything = frames.rows(health.health(events, records))
    late = [row for row in everything if row["kind"] == kinds.OUT_OF_ORDER]
    assert [(row["bucket"], ids(row), row["worst"]) for row in late] == [(buckets[1], [second], 40)]
    part = health.health(*(frame.where(frame["bucket"].isin(buckets[1:])) for frame in (events, records)))
    repeated = [row for row in frames.rows(part) if row["bucket"] == buckets[2]]
    assert sorted(repeated, key=repr) == sorted((row for row in everything if row["bucket"] == buckets[2]), key=repr)


def test_a_fast_clock_is_reported_with_its_lower_bound(spark: SparkSession) -> None:
    ahead = {"born_host": "10.0.0.7:4000"}
    rows = found(spark, [], [
        record("1", 0, 0, born_timestamp=at(1200), **ahead), record("2", 1, 0, born_timestamp=at(300), **ahead),
        record("3", 2, 0, born_timestamp=at(-5), **ahead),
    ])  # fmt: skip
    assert sorted((row["host"], row["topic"], row["count"], row["worst"]) for row in rows[kinds.CLOCK_AHEAD]) == [
        ("10.0.0.7", "T", 1, 300), ("10.0.0.7", "T", 1, 1200),
    ]  # fmt: skip


def test_clients_without_traces_are_reported(spark: SparkSession) -> None:
    retried = record("2", 5, topic="%RETRY%H", properties={"RETRY_TOPIC": "T"}, reconsume_times=1)
    rows = found(spark, [[pub("1")], [before("1", "R", 10, "G")]], [record("1", 0), record("2", 1), retried])
    assert sorted((row["cause"], row["host"], row["topic"], ids(row)) for row in rows[kinds.SENT]) == [
        ("traced", "10.0.0.9", "T", ["1"]),
        ("untraced", "10.0.0.9", "T", ["2"]),
    ]
    assert [(row["consumer_group"], row["topic"], row["count"]) for row in rows[kinds.RETRIED]] == [("H", "T", 1)]


def test_dead_letters_have_the_result_of_the_last_attempt(spark: SparkSession) -> None:
    failed: list[TraceEvent] = [
        before("1", "R1", 10), after("1", "R1", 12, code=4), before("1", "R2", 900, retry_times=1),
        after("1", "R2", 950, code=2),
    ]  # fmt: skip
    dead = {"topic": "%DLQ%G", "properties": {"RETRY_TOPIC": "T"}, "reconsume_times": 16}
    rows = found(spark, [failed], [record("1", 0, **dead), record("2", 1, **dead)])
    assert sorted((row["cause"], row["consumer_group"], row["topic"], ids(row)) for row in rows[kinds.DEAD_LETTER]) == [
        ("exception", "G", "T", ["1"]),
        ("no trace", "G", "T", ["2"]),
    ]


def test_examples_are_the_worst_cases_and_the_count_covers_all(spark: SparkSession) -> None:
    records = [record(str(n), n, 0, born_timestamp=at(n + 1)) for n in range(40)]
    (row,) = (row for row in in_one_slot(spark, [], records) if row["kind"] == kinds.CLOCK_AHEAD)
    assert (row["count"], row["worst"], ids(row)) == (40, 40, [str(n) for n in range(39, 39 - kinds.MAX_EXAMPLES, -1)])


def test_from_the_tables_to_the_report(spark: SparkSession, tmp_path: Path) -> None:
    """A changed bucket rebuilds the next one as well: disorder across their boundary is found when the earlier one is late."""
    (fold,) = JOBS["health"].incremental_tables
    first, second = (unique(1_209_600_000 - 6_400_000 + 600_000 * number, number) for number in range(2))
    begun = frames.events(spark, [pub(first), pub(second), before(first, "A", 90), before(second, "B", 50)])
    records = messages(spark, *(record(name, number, **ORDERED) for number, name in enumerate((first, second))))

    def titles() -> list[str]:
        report = reports.report(tmp_path, since_ms=0, until_ms=2 * frames.T0_MS, now_ms=frames.T0_MS + 3_600_000)
        return [part.title for part in report.sections if isinstance(part, Table)]

    table_publisher.append_batch(begun, tmp_path, TRACE_EVENTS, "traces q", 0, 0)
    table_publisher.append_batch(records.where(records["message_id"] == second), tmp_path, MESSAGES, "messages q", 0, 0)
    assert incremental.rebuild_changed(spark, tmp_path, fold, 0) is not None
    assert "Out of order: 0" in titles()
    assert "Never consumed: 0" in titles()
    table_publisher.append_batch(records.where(records["message_id"] == first), tmp_path, MESSAGES, "messages q", 1, 0)
    done = incremental.rebuild_changed(spark, tmp_path, fold, 0)
    assert done is not None
    assert done.buckets == 2, "the bucket with news, and the one after it"
    assert "Out of order: 1" in titles()
    assert incremental.rebuild_changed(spark, tmp_path, fold, 0) is None
