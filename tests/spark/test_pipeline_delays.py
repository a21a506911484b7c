"""messages and marks to delays: one row per delayed message, whatever the order, duplicates or gaps of the input."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import record_cases
from record_frames import NAMES, T0, Log, Row, Tables, at, unique_id
from trace_cases import Results

from ariane.pipeline.tables import delays, messages
from ariane.tables import DELAYS, MESSAGES, RECORD_POSITIONS, time_buckets
from ariane.tables.declarations import record_positions
from table_contract_checks import check_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
A, B, C = unique_id(1), unique_id(2), unique_id(3)
DAY_MS = 86_400_000


given = record_cases.Cases()
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def results(spark: SparkSession) -> Results:
    """Return the delays of all inputs."""
    return given.split(computed(given.tables(spark)))


def computed(tables: Tables, **more: Any) -> Rows:
    rows = delays.delays(tables.messages, tables.marks, **more).toArrow().to_pylist()
    check_rows(rows)
    return sorted(rows, key=lambda row: (row["message_id"], row["commit_log_offset"] or 0))


def brief(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["kind"], row["level"], row["state"], row["lateness_ms"]


def test_the_columns_match_the_table_schemas(spark: SparkSession) -> None:
    tables = Tables(spark, [[Log().level(A, 0, 1)]])
    for frame, table in (
        (delays.delays(tables.messages, tables.marks), DELAYS), (tables.messages, MESSAGES), (tables.places, RECORD_POSITIONS),
    ):  # fmt: skip
        result = [(field.name, field.dataType.simpleString()) for field in frame.schema]
        expected = [(column.name, column.type.lower().replace(", ", ",")) for column in table.columns]
        assert result == [*expected, ("bucket", "string")]


def level_timer_and_retry() -> list[Row]:
    log = Log()
    level, time = log.level(A, 100, 3), log.timer(B, 200, 5000)
    retry = log.level(C, 300, 4, "%RETRY%G", reconsume_times=1)
    log.deliver(time, 5012)
    log.deliver(level, 10_350)
    log.deliver(retry, 30_299)
    return log.rows


@given(level_timer_and_retry())
def test_a_level_a_timer_and_a_retry_have_their_rows(rows: Rows) -> None:
    item, two, three = rows
    assert item == {
        "message_id": A, "broker": "broker-a", "topic": "T", "kind": "level", "level": 3, "scheduled_at": at(10_100),
        "stored_at": at(100), "delivered_at": at(10_350), "lateness_ms": 250, "state": "delivered", "cancelled_at": None,
        "reconsume_times": 0, "keys": "K", "commit_log_offset": 1000, "bucket": "2023-11-14T2210",
    }  # fmt: skip
    assert (brief(two), two["scheduled_at"], two["topic"]) == (("time", None, "delivered", 12), at(5000), "T")
    assert (brief(three), three["topic"]) == (("retry", 4, "delivered", -1), "%RETRY%G")


def pending_and_cancelled() -> list[Row]:
    log = Log()
    log.level(A, 0, 1)
    log.timer(B, 0, 3000)
    log.cancel(log.timer(C, 0, 4000), 1500)
    return log.rows


@given(pending_and_cancelled())
def test_a_delayed_message_is_pending_until_delivered_or_cancelled(rows: Rows) -> None:
    waiting, due, gone = rows
    assert (brief(waiting), waiting["delivered_at"]) == (("level", 1, "pending", None), None)
    assert brief(due) == ("time", None, "pending", None)
    assert (brief(gone), gone["cancelled_at"], gone["scheduled_at"]) == (
        ("time", None, "cancelled", None),
        at(1500),
        at(4000),
    )


def recalled_at_apache() -> list[Row]:
    log = Log()
    pending, delivered, _ = (log.timer(unique_id(number), 0, 4000) for number in (1, 2, 3))
    log.recall_at_apache(pending, 1500)
    log.recall_at_apache(pending, 1700)
    log.recall_at_apache(delivered, 3999)
    log.deliver(delivered, 4001, by_java=True)
    log.recall_at_apache(log.timer(unique_id(3), 0, 4000, topic="U"), 1500)
    log.level(unique_id(1), 0, 1)
    return log.rows


@given(recalled_at_apache())
def test_a_recall_at_a_broker_of_apache_cancels_the_timers_of_the_message_in_its_topic(rows: Rows) -> None:
    assert sorted((row["message_id"], row["topic"], row["kind"], row["state"], row["cancelled_at"]) for row in rows) == [
        (A, "T", "level", "pending", None), (A, "T", "time", "cancelled", at(1500)),
        (B, "T", "time", "delivered", at(3999)),
        (C, "T", "time", "pending", None), (C, "U", "time", "cancelled", at(1500)),
    ]  # fmt: skip


def many() -> Log:
    """Return a message that failed twice, one sent twice under one id, a moved timer, and more."""
    log = Log()
    first = log.level(A, 0, 2)
    log.deliver(first, 5003)
    for number in (1, 2):
        retry = log.level(A, 6000 * number, 2 + number, "%RETRY%G", reconsume_times=number)
        log.deliver(retry, 6000 * number + (10_000 if number == 1 else 30_000) + number)
    twice = [log.level(B, ms, 1) for ms in (0, 40)]
    log.deliver(twice[0], 1000)
    log.deliver(twice[1], 1041)
    timer = log.timer(C, 0, 90_000)
    log.deliver(log.moved(log.moved(timer, 30_000), 60_000), 90_004)
    log.put("T", unique_id(9), 5, {"TIMER_DELIVER_MS": "1"})  # its time was over: it never waited
    log.put("T", unique_id(10), 5, {"DELAY": "0"})
    return log


MANY = many()


@given(MANY.rows)
def test_deliveries_are_matched_to_their_delayed_records(rows: Rows) -> None:
    assert [(row["message_id"], *brief(row)) for row in rows] == [
        (A, "level", 2, "delivered", 3), (A, "retry", 3, "delivered", 1), (A, "retry", 4, "delivered", 2),
        (B, "level", 1, "delivered", 0), (B, "level", 1, "delivered", 1), (C, "time", None, "delivered", 4),
    ]  # fmt: skip
    assert rows[-1]["stored_at"] == at(0)


def more() -> list[Row]:
    log = many()
    log.cancel(log.timer(unique_id(4), 0, 4000), 1500)
    return log.rows


def shuffled(seed: int) -> tuple[list[Row], list[Row]]:
    """Return each record twice, in two batches."""
    rows = random.Random(seed).sample(more() * 2, 2 * len(more()))
    return rows[:7], rows[7:]


@given(more())
@given(*shuffled(0))
@given(*shuffled(1))
@given(*shuffled(2))
def test_results_do_not_depend_on_order_or_duplicates(inputs: list[Rows]) -> None:
    expected, *others = inputs
    assert others == [expected] * 3


@given(MANY.rows)
def test_java_deliveries_match_without_prepared_offsets(spark: SparkSession, rows: Rows) -> None:
    names = [name for name in NAMES if name != "prepared_transaction_offset"]
    moved = [
        row["commit_log_offset"]
        for row in MANY.rows
        if row["prepared_transaction_offset"] < 0 and "wheel" in row["topic"]
    ]
    # Who cannot see that a timer was moved takes its copies for messages of their own, that are never delivered.
    result = computed(Tables(spark, [MANY.rows], names))
    assert [row for row in result if row["commit_log_offset"] not in moved] == rows


def delivered_by_java() -> list[Row]:
    log = Log()
    log.deliver(log.level(A, 0, 1), 1080, by_java=True)
    return log.rows


@given(delivered_by_java())
def test_a_java_delivery_has_its_row(rows: Rows) -> None:
    assert [brief(row) for row in rows] == [("level", 1, "delivered", 80)]


def moved_and_cancelled() -> list[Row]:
    log = Log()
    log.cancel(log.moved(log.timer(A, 0, 90_000), 30_000), 31_000)
    return log.rows


@given(moved_and_cancelled())
@given(moved_and_cancelled()[1:])
def test_a_moved_timer_is_cancelled(inputs: list[Rows]) -> None:
    (row,), (alone,) = inputs
    assert (brief(row), row["cancelled_at"], row["stored_at"]) == (("time", None, "cancelled", None), at(31_000), at(0))
    assert (brief(alone), alone["stored_at"], alone["scheduled_at"]) == (
        ("time", None, "cancelled", None),
        None,
        at(90_000),
    )


def deliveries_alone() -> list[Row]:
    log = Log()
    log.deliver(log.level(A, 0, 1), 1003)
    log.deliver(log.timer(B, 0, 2000), 2003)
    return [row for row in log.rows if row["topic"] == "T"]


@given(deliveries_alone())
def test_a_delivery_whose_delayed_record_was_removed(rows: Rows) -> None:
    level, time = rows
    assert (brief(level), level["scheduled_at"], level["stored_at"]) == (("level", 1, "delivered", None), None, None)
    assert (brief(time), time["scheduled_at"], time["stored_at"]) == (("time", None, "delivered", 3), at(2000), None)


def test_changed_and_unlisted_delay_levels(spark: SparkSession) -> None:
    log = Log()
    log.deliver(log.level(A, 0, 2), 7000)
    log.deliver(log.level(B, 0, 3), 7000)
    changed, beyond = computed(Tables(spark, [log.rows]), levels_ms=(1000, 6990))
    assert (changed["scheduled_at"], changed["lateness_ms"]) == (at(6990), 10)
    assert (beyond["scheduled_at"], beyond["lateness_ms"], beyond["state"]) == (None, None, "delivered")


def a_month_later() -> list[Row]:
    log = Log()
    log.deliver(log.timer(A, 0, 40 * DAY_MS), 40 * DAY_MS + 2)
    return log.rows


@given(a_month_later())
def test_a_delivery_after_more_than_a_month_finds_its_message(spark: SparkSession, rows: Rows) -> None:
    (row,) = rows
    assert (brief(row), row["bucket"]) == (
        ("time", None, "delivered", 2),
        time_buckets.bucket_of_time(int(T0.timestamp() * 1000)),
    )
    # Without a delay an old born time means a wrong clock; the bucket is that of the message's other rows.
    stray = Log()
    stray.put("T", A, 0)["born_timestamp"] = T0 - timedelta(days=100)
    tables = Tables(spark, [stray.rows])
    assert [item["bucket"] for item in tables.messages.collect()] == [row["bucket"]]


def test_position_buckets_match_the_table(spark: SparkSession) -> None:
    log = Log("broker-b")
    half, timer = log.half(A, 0), log.timer(B, 0, 5000)
    half["queue_offset"] = timer["queue_offset"] = 5 * record_positions.OFFSETS_PER_BUCKET + 3
    log.op(half, ms=5)
    log.cancel(timer, 6)
    tables = Tables(spark, [log.rows])
    assert {(row["topic"], row["bucket"], row["queue_offset"]) for row in tables.places.collect()} == {
        (
            "RMQ_SYS_TRANS_HALF_TOPIC",
            record_positions.position_bucket("half", "broker-b", half["queue_offset"]),
            half["queue_offset"],
        ),
        (
            "rmq_sys_wheel_timer",
            record_positions.position_bucket("timer", "broker-b", half["queue_offset"]),
            half["queue_offset"],
        ),
    }
    assert tables.places.count() == 4
    assert {row["bucket"] for row in tables.marks.collect()} == {"2023-11-14T2210"}


def test_position_marks_match_if_either_side_is_new(spark: SparkSession) -> None:
    log = Log()
    timer = log.timer(A, 0, 5000)
    log.cancel(timer, 6)
    both = Tables(spark, [log.rows]).places
    record, mark = both.where("kind = 'record'"), both.where("kind = 'mark'")
    nothing = both.limit(0)
    assert (
        messages.position_marks(record, both).count()
        == messages.position_marks(mark, both).count()
        == messages.position_marks(both, both).count()
        == 1
    )
    assert messages.position_marks(nothing, both).count() == messages.position_marks(record, record).count() == 0
