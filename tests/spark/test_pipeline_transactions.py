"""messages, marks and traces to transactions: one row per half message, whatever the order, duplicates or gaps."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

from record_frames import Log, Row, Tables, at, unique_id

from ariane.pipeline.tables import transactions
from ariane.tables import TRACE_EVENTS, TRANSACTIONS, table_format

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
A, B, C, D, E = (unique_id(number) for number in range(1, 6))


def ended(
    message_id: str, ms: int, state: str, *, from_check: bool = False, stored: int | None = None
) -> dict[str, Any]:
    """Return a row of trace_events."""
    row: dict[str, Any] = dict.fromkeys((*TRACE_EVENTS.column_names, "bucket"))
    return row | {
        "type": "EndTransaction", "event_time": at(ms), "message_id": message_id, "transaction_state": state,
        "from_check": from_check, "trace_broker": "broker-a", "trace_queue_id": 0, "trace_queue_offset": ms,
        "record_index": 0, "bucket": "2023-11-14T2210", "trace_stored_at": at(ms if stored is None else stored),
    }  # fmt: skip


def folded(
    spark: SparkSession, *batches: list[Row], events: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    tables = Tables(spark, batches)
    reported = spark.createDataFrame(events or [], f"{TRACE_EVENTS.ddl}, {table_format.BUCKET} STRING")
    frame = transactions.transactions(tables.messages, tables.marks, reported)
    return sorted(frame.toArrow().to_pylist(), key=lambda row: (row["message_id"], row["broker"]))


def brief(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["decision"], row["decision_ms"], row["checks"]


def test_the_columns_match_the_table_schema(spark: SparkSession) -> None:
    tables = Tables(spark, [[Log().half(A, 0)]])
    reported = spark.createDataFrame([], f"{TRACE_EVENTS.ddl}, {table_format.BUCKET} STRING")
    frame = transactions.transactions(tables.messages, tables.marks, reported)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        *((column.name, column.type.lower()) for column in TRANSACTIONS.columns), ("bucket", "string"),
    ]  # fmt: skip


def test_commit_rollback_and_open_transactions(spark: SparkSession) -> None:
    log = Log()
    item, two, _ = log.half(A, 0), log.half(B, 10), log.half(C, 20)
    log.commit(item, 130)
    log.op(item, ms=130)
    log.op(two, ms=250)
    commit, rollback, waits = folded(spark, log.rows)
    assert commit == {
        "message_id": A, "broker": "broker-a", "topic": "T", "producer_group": "P", "keys": "K", "half_stored_at": at(0),
        "half_count": 1, "checks": 0, "checked_at": [], "decision": "commit", "decided_at": at(130), "decision_ms": 130,
        "commits": 1, "from_check": None, "reported_state": None, "offset_message_id": "OFF-1000", "last_copy_at": at(0),
        "bucket": "2023-11-14T2210",
    }  # fmt: skip
    assert (brief(rollback), rollback["decided_at"], rollback["commits"]) == (("rollback", 240, 0), at(250), 0)
    assert (brief(waits), waits["decided_at"]) == (("open", None, 0), None)


def checked(log: Log) -> None:
    """Add checked transactions: committed, rolled back, discarded by either broker, still open."""
    half = log.half(A, 0)
    newest = log.copy(log.copy(half, 60_000, 1), 120_000, 2)
    log.commit(newest, 120_010)
    log.op(newest, ms=120_010)
    java = log.copy(log.half(B, 0), 60_000, 1, by_java=True)
    log.op(java, ms=60_020)
    ours = log.copy(log.half(C, 0), 60_000, 1)
    log.aside(ours, 120_000)
    log.op(ours, ms=120_000)
    log.aside(log.copy(log.half(D, 0), 60_000, 1, by_java=True), 120_000)
    log.copy(log.copy(log.half(E, 0), 60_000, 1), 120_000, 2)
    log.op({"queue_offset": 999}, ms=5)  # of a half that is in no table


def test_checks_and_their_outcomes(spark: SparkSession) -> None:
    log = Log()
    checked(log)
    rows = folded(spark, log.rows)
    assert [brief(row) for row in rows] == [
        ("commit", 120_010, 2), ("rollback", 60_020, 1), ("discarded", 120_000, 1), ("discarded", 120_000, 1), ("open", None, 2),
    ]  # fmt: skip
    assert rows[0]["checked_at"] == [at(60_000), at(120_000)]
    assert {row["half_count"] for row in rows} == {1}
    newest = max(row["commit_log_offset"] for row in log.rows if row["message_id"] == E)
    assert rows[-1]["offset_message_id"] == f"OFF-{newest}"


def test_results_do_not_depend_on_order_or_duplicates(spark: SparkSession) -> None:
    log = Log()
    checked(log)
    expected = folded(spark, log.rows)
    for seed in range(3):
        rows = log.rows * 2
        random.Random(seed).shuffle(rows)
        assert folded(spark, rows[:9], rows[9:]) == expected


def test_resuming_a_discarded_half_message_reopens_its_transaction(spark: SparkSession) -> None:
    def resumed() -> tuple[Log, Row]:
        log = Log()
        half = log.copy(log.half(A, 0), 60_000, 1)
        log.aside(half, 120_000)
        log.op(half, ms=120_000)
        return log, log.half(A, 500_000, TRANSACTION_CHECK_TIMES="0")

    log, _ = resumed()
    (row,) = folded(spark, log.rows)
    assert (brief(row), row["half_count"], row["half_stored_at"]) == (("open", None, 1), 2, at(0))
    log, repeated = resumed()
    log.op(repeated, ms=500_100)
    assert [brief(row) for row in folded(spark, log.rows)] == [("rollback", 500_100, 1)]
    log, repeated = resumed()
    log.commit(repeated, 500_100)
    assert [brief(row) for row in folded(spark, log.rows)] == [("commit", 500_100, 1)]


def test_a_retry_of_a_committed_message_is_not_a_commit(spark: SparkSession) -> None:
    log = Log()
    log.commit(log.half(A, 0), 100)
    own = {"TRAN_MSG": "true", "REAL_TOPIC": "%RETRY%G", "REAL_QID": "0", "DELAY": "3", "RETRY_TOPIC": "T"}
    for topic in ("SCHEDULE_TOPIC_XXXX", "%RETRY%G"):
        log.put(topic, A, 5000, own, sys_flag=8, reconsume_times=1)
    (row,) = folded(spark, log.rows)
    assert (row["commits"], brief(row)) == (1, ("commit", 100, 0))


def test_double_commits_and_commits_without_a_half_message(spark: SparkSession) -> None:
    log = Log()
    half = log.half(A, 0)
    log.commit(half, 100)
    log.commit(log.copy(half, 90, 1, by_java=True), 200)
    lonely = log.commit(log.half(B, 0), 300)
    rows = [row for row in log.rows if row["message_id"] == A or row is lonely]
    twice, alone = folded(spark, rows)
    assert (brief(twice), twice["commits"]) == (("commit", 100, 1), 2)
    assert (brief(alone), alone["half_stored_at"], alone["half_count"], alone["checked_at"]) == (
        ("commit", None, None),
        None,
        None,
        None,
    )


def test_traces_add_the_reported_state(spark: SparkSession) -> None:
    log = Log()
    halves = [log.half(item, 0) for item in (A, B, C, D)]
    log.commit(halves[0], 100)
    for half in halves[:3]:
        log.op(half, ms=100)
    events = [
        ended(A, 5, "UNKNOW"), ended(A, 90, "COMMIT_MESSAGE", from_check=True), ended(B, 90, "ROLLBACK_MESSAGE"),
        ended(C, 90, "COMMIT_MESSAGE"), ended(D, 5, "UNKNOW"),
    ]  # fmt: skip
    rows = folded(spark, log.rows, events=events + events)
    assert [(row["decision"], row["from_check"], row["reported_state"]) for row in rows] == [
        ("commit", True, "COMMIT_MESSAGE"), ("rollback", False, "ROLLBACK_MESSAGE"),
        ("unknown", False, "COMMIT_MESSAGE"), ("open", None, "UNKNOW"),
    ]  # fmt: skip


def test_a_rollback_recorded_only_in_a_trace(spark: SparkSession) -> None:
    """A Java broker does not expose its op messages, so transactions that it checks later are still undecided."""
    log = Log()
    log.half(A, 0)
    log.copy(log.half(B, 0), 60_000, 1, by_java=True)
    events = [ended(A, 90, "ROLLBACK_MESSAGE", stored=600), ended(B, 90, "ROLLBACK_MESSAGE", stored=600)]
    reported, unheard = folded(spark, log.rows, events=events)
    assert (brief(reported), reported["decided_at"], reported["from_check"]) == (("rollback", None, 0), None, False)
    assert brief(unheard) == ("open", None, 1)


def test_queue_offsets_are_separate_for_each_broker(spark: SparkSession) -> None:
    item, other = Log("broker-a"), Log("broker-b")
    half = item.half(A, 0)
    other.half(B, 0)
    item.op(half, ms=50)
    assert [(row["broker"], row["decision"]) for row in folded(spark, item.rows + other.rows)] == [
        ("broker-a", "rollback"), ("broker-b", "open"),
    ]  # fmt: skip


def test_several_ends_in_one_op_message_and_ids_without_a_time(spark: SparkSession) -> None:
    log = Log()
    log.op(log.half("KEY1", 0), log.half("KEY2", 0), ms=50)
    log.put("RMQ_SYS_TRANS_OP_HALF_TOPIC", None, 60, {"TAGS": "d"}, body=b"\xff what")
    assert [(row["message_id"], row["decision"]) for row in folded(spark, log.rows)] == [
        ("KEY1", "rollback"), ("KEY2", "rollback"),
    ]  # fmt: skip
