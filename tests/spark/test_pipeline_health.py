"""trace_events and messages to health: each rule on a few rows, and the same rows for late or duplicate input."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import trace_cases
import trace_frames as frames
from trace_frames import after, at, before, pub

from ariane.model.trace_event import MessageType, TraceEvent
from ariane.pipeline.jobs import JOBS
from ariane.pipeline.publishing import incremental, table_publisher
from ariane.pipeline.tables import health
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
    return frames.stored_messages(spark, list(rows))


given = trace_cases.Cases()
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def results(spark: SparkSession) -> trace_cases.Results:
    """Return the findings of all inputs."""
    return given.split(sorted(frames.rows(health.health(*given.frames(spark))), key=repr))


def of_kind(rows: Rows, kind: str) -> Rows:
    return [row for row in rows if row["kind"] == kind]


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


BODIES: list[list[TraceEvent]] = [
    [pub("A"), pub("B"), pub("C")],
    [before("A", "R1", 10), after("A", "R1", 12), before("B", "R2", 10), after("B", "R2", 12, code=4)],
    [before("A", "R3", 20), after("A", "R3", 22), before("B", "R4", 20, retry_times=1), after("B", "R4", 22)],
]
RECORDS = [record("A", 0), record("B", 1), record("C", 2), record("C", 3, offset_message_id="OFF-again")]


@given(*BODIES, stored=RECORDS)
@given(*reversed(BODIES), *BODIES, stored=[*reversed(RECORDS), *RECORDS])
def test_duplicate_consumption_duplicate_storage_and_unconsumed_messages_are_found(inputs: list[Rows]) -> None:
    once, again = inputs
    (twice,) = of_kind(once, kinds.CONSUMED_TWICE)
    assert (twice["consumer_group"], twice["topic"], twice["count"], ids(twice)) == ("G", "T", 1, ["A"])
    assert (twice["worst"], twice["examples"][0]["detail"]) == (2, "2 successes at 1 hosts")
    assert twice["minute"] == minute(at(0)), "the broker's clock, not the consumer's"
    (stored,) = of_kind(once, kinds.STORED_TWICE)
    assert (stored["topic"], stored["count"], stored["worst"], ids(stored)) == ("T", 1, 2, ["C"])
    assert stored["examples"][0]["detail"] == "OFF-C OFF-again"
    known = {row["consumer_group"]: sorted(ids(row)) for row in of_kind(once, kinds.STORED)}
    assert known == {"G": ["A", "B"], None: ["C"]}
    assert of_kind(once, kinds.OUT_OF_ORDER) == of_kind(once, kinds.CLOCK_AHEAD) == []
    assert again == once


@given(
    [pub("H", message_type=MessageType.HALF), pub("D", message_type=MessageType.DELAY), pub("F", success=False)],
)
def test_messages_not_yet_consumable_are_not_reported_as_unconsumed(rows: Rows) -> None:
    assert rows == []


@given(
    [before("1", "R1", 10, "G"), before("2", "R2", 10, "G"), before("1", "R3", 10, "H")],
    stored=[record("1", 0), record("2", 1), record("3", 2, tags="b"), record("4", 3, tags="b")],
)
def test_stored_messages_are_counted_by_tag_and_consumer_group(rows: Rows) -> None:
    stored = of_kind(rows, kinds.STORED)
    assert sorted((row["consumer_group"] or "", row["cause"], row["count"], ids(row)) for row in stored) == [
        ("", "b", 2, ["3", "4"]),
        ("G", "a", 1, ["2"]),
        ("G H", "a", 1, ["1"]),
    ]


ORDERED = {"properties": {"__SHARDINGKEY": "order-1"}}
THREE = [record(name, place, **ORDERED) for place, name in enumerate("123")]
IN_ORDER = [before("1", "A", 10), before("2", "B", 20), before("3", "C", 30)]
SECOND_FIRST = [before("1", "A", 50), before("2", "B", 20)]


@given([*SECOND_FIRST, before("3", "C", 60)], stored=THREE)
def test_a_first_delivery_before_an_earlier_message_is_out_of_order(rows: Rows) -> None:
    disorder = [(row["cause"], row["worst"], ids(row)) for row in of_kind(rows, kinds.OUT_OF_ORDER)]
    assert disorder == [("one client", 30, ["2"])]


@given(IN_ORDER, stored=THREE)
@given([*IN_ORDER, before("1", "D", 40, retry_times=1)], stored=THREE)
@given(SECOND_FIRST, stored=[record("1", 0, **ORDERED), record("2", 1, queue_id=1, **ORDERED)])
@given(SECOND_FIRST, stored=[record("1", 0, **ORDERED), record("2", 1)])
@given([before("1", "A", 50, retry_times=1), before("2", "B", 20)], stored=THREE)
def test_what_is_no_disorder(inputs: list[Rows]) -> None:
    in_order, retried, other_queue, other_key, first_delivery_unknown = (
        of_kind(rows, kinds.OUT_OF_ORDER) for rows in inputs
    )
    assert in_order == retried == other_queue == other_key == first_delivery_unknown == []


def unique(counted_ms: int, number: int) -> str:
    """Return a unique id created `counted_ms` after the beginning of its month."""
    return f"7F000001{'0' * 12}{counted_ms:08X}{number:04X}"


@pytest.mark.long(
    "tests/spark/test_pipeline_health.py::test_duplicate_consumption_duplicate_storage_and_unconsumed_messages_are_found",
)
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


AHEAD = {"born_host": "10.0.0.7:4000"}


@given(
    stored=[
        record("1", 0, born_timestamp=at(1200), **AHEAD),
        record("2", 1, born_timestamp=at(300), **AHEAD),
        record("3", 2, born_timestamp=at(-5), **AHEAD),
    ]
)
def test_a_fast_clock_is_reported_with_its_lower_bound(rows: Rows) -> None:
    (row,) = of_kind(rows, kinds.CLOCK_AHEAD)
    assert (row["host"], row["topic"], row["count"], row["worst"]) == ("10.0.0.7", "T", 2, 1200)
    assert [(item["worst"], item["message_id"]) for item in row["examples"]] == [(1200, "1"), (300, "2")]


@given(
    [pub("1")],
    [before("1", "R", 10, "G")],
    stored=[
        record("1", 0),
        record("2", 1),
        record("2", 5, topic="%RETRY%H", properties={"RETRY_TOPIC": "T"}, reconsume_times=1),
    ],
)
def test_clients_without_traces_are_reported(rows: Rows) -> None:
    sent = of_kind(rows, kinds.SENT)
    assert sorted((row["cause"], row["host"], row["topic"], ids(row)) for row in sent) == [
        ("traced", "10.0.0.9", "T", ["1"]),
        ("untraced", "10.0.0.9", "T", ["2"]),
    ]
    retried = of_kind(rows, kinds.RETRIED)
    assert [(row["consumer_group"], row["topic"], row["count"]) for row in retried] == [("H", "T", 1)]


DEAD = {"topic": "%DLQ%G", "properties": {"RETRY_TOPIC": "T"}, "reconsume_times": 16}


@given(
    [before("1", "R1", 10), after("1", "R1", 12, code=4)],
    [before("1", "R2", 900, retry_times=1), after("1", "R2", 950, code=2)],
    stored=[record("1", 0, **DEAD), record("2", 1, **DEAD)],
)
def test_dead_letters_have_the_result_of_the_last_attempt(rows: Rows) -> None:
    dead = of_kind(rows, kinds.DEAD_LETTER)
    assert sorted((row["cause"], row["consumer_group"], row["topic"], ids(row)) for row in dead) == [
        ("exception", "G", "T", ["1"]),
        ("no trace", "G", "T", ["2"]),
    ]


@given(stored=[record(str(n), n, born_timestamp=at(n + 1)) for n in range(40)])
def test_examples_are_the_worst_cases_and_the_count_covers_all(rows: Rows) -> None:
    (row,) = of_kind(rows, kinds.CLOCK_AHEAD)
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
