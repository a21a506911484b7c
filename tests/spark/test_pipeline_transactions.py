"""messages, marks and traces to transactions: one row per half message, whatever the order, duplicates or gaps."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import record_cases
from record_frames import Log, Row, Tables, at, unique_id
from trace_cases import Results

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


given = record_cases.Cases()
Rows = list[dict[str, Any]]
# Reported ends, of messages that only the tests of traces have.
R, S, T, U, V, W = (unique_id(number) for number in range(11, 17))
EVENTS = [
    ended(R, 5, "UNKNOW"), ended(R, 90, "COMMIT_MESSAGE", from_check=True), ended(S, 90, "ROLLBACK_MESSAGE"),
    ended(T, 90, "COMMIT_MESSAGE"), ended(U, 5, "UNKNOW"), ended(V, 90, "ROLLBACK_MESSAGE", stored=600),
    ended(W, 90, "ROLLBACK_MESSAGE", stored=600),
]  # fmt: skip


@pytest.fixture(scope="module")
def results(spark: SparkSession) -> Results:
    """Return the transactions of all inputs."""
    tables = given.tables(spark)
    reported = spark.createDataFrame(EVENTS + EVENTS, f"{TRACE_EVENTS.ddl}, {table_format.BUCKET} STRING")
    rows = transactions.transactions(tables.messages, tables.marks, reported).toArrow().to_pylist()
    return given.split(sorted(rows, key=lambda row: (row["message_id"], row["broker"])))


def brief(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["decision"], row["decision_ms"], row["checks"]


def test_the_columns_match_the_table_schema(spark: SparkSession) -> None:
    tables = Tables(spark, [[Log().half(A, 0)]])
    reported = spark.createDataFrame([], f"{TRACE_EVENTS.ddl}, {table_format.BUCKET} STRING")
    frame = transactions.transactions(tables.messages, tables.marks, reported)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        *((column.name, column.type.lower()) for column in TRANSACTIONS.columns), ("bucket", "string"),
    ]  # fmt: skip


def commit_rollback_and_open() -> list[Row]:
    log = Log()
    item, two, _ = log.half(A, 0), log.half(B, 10), log.half(C, 20)
    log.commit(item, 130)
    log.op(item, ms=130)
    log.op(two, ms=250)
    return log.rows


@given(commit_rollback_and_open())
def test_commit_rollback_and_open_transactions(rows: Rows) -> None:
    commit, rollback, waits = rows
    assert commit == {
        "message_id": A, "broker": "broker-a", "topic": "T", "producer_group": "P", "keys": "K", "half_stored_at": at(0),
        "half_count": 1, "checks": 0, "checked_at": [], "decision": "commit", "decided_at": at(130), "decision_ms": 130,
        "commits": 1, "from_check": None, "reported_state": None, "offset_message_id": "OFF-1000", "last_copy_at": at(0),
        "bucket": "2023-11-14T2210",
    }  # fmt: skip
    assert (brief(rollback), rollback["decided_at"], rollback["commits"]) == (("rollback", 240, 0), at(250), 0)
    assert (brief(waits), waits["decided_at"]) == (("open", None, 0), None)


def checked() -> list[Row]:
    """Return checked transactions: committed, rolled back, discarded by either broker, still open."""
    log = Log()
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
    return log.rows


CHECKED = checked()


@given(CHECKED)
def test_checks_and_their_outcomes(rows: Rows) -> None:
    assert [brief(row) for row in rows] == [
        ("commit", 120_010, 2), ("rollback", 60_020, 1), ("discarded", 120_000, 1), ("discarded", 120_000, 1), ("open", None, 2),
    ]  # fmt: skip
    assert rows[0]["checked_at"] == [at(60_000), at(120_000)]
    assert {row["half_count"] for row in rows} == {1}
    newest = max(row["commit_log_offset"] for row in CHECKED if row["message_id"] == E)
    assert rows[-1]["offset_message_id"] == f"OFF-{newest}"


def shuffled(seed: int) -> tuple[list[Row], list[Row]]:
    """Return each record twice, in two batches."""
    rows = random.Random(seed).sample(CHECKED * 2, 2 * len(CHECKED))
    return rows[:9], rows[9:]


@given(CHECKED)
@given(*shuffled(0))
@given(*shuffled(1))
@given(*shuffled(2))
def test_results_do_not_depend_on_order_or_duplicates(inputs: list[Rows]) -> None:
    expected, *others = inputs
    assert others == [expected] * 3


def resumed(end: str = "") -> list[Row]:
    """Return a discarded half message that was resumed, and its end."""
    log = Log()
    half = log.copy(log.half(A, 0), 60_000, 1)
    log.aside(half, 120_000)
    log.op(half, ms=120_000)
    repeated = log.half(A, 500_000, TRANSACTION_CHECK_TIMES="0")
    if end == "rollback":
        log.op(repeated, ms=500_100)
    elif end == "commit":
        log.commit(repeated, 500_100)
    return log.rows


@given(resumed())
@given(resumed("rollback"))
@given(resumed("commit"))
def test_resuming_a_discarded_half_message_reopens_its_transaction(inputs: list[Rows]) -> None:
    (row,), (rollback,), (commit,) = inputs
    assert (brief(row), row["half_count"], row["half_stored_at"]) == (("open", None, 1), 2, at(0))
    assert brief(rollback) == ("rollback", 500_100, 1)
    assert brief(commit) == ("commit", 500_100, 1)


def retried() -> list[Row]:
    log = Log()
    log.commit(log.half(A, 0), 100)
    own = {"TRAN_MSG": "true", "REAL_TOPIC": "%RETRY%G", "REAL_QID": "0", "DELAY": "3", "RETRY_TOPIC": "T"}
    for topic in ("SCHEDULE_TOPIC_XXXX", "%RETRY%G"):
        log.put(topic, A, 5000, own, sys_flag=8, reconsume_times=1)
    return log.rows


@given(retried())
def test_a_retry_of_a_committed_message_is_not_a_commit(rows: Rows) -> None:
    (row,) = rows
    assert (row["commits"], brief(row)) == (1, ("commit", 100, 0))


def double_and_lonely() -> list[Row]:
    log = Log()
    half = log.half(A, 0)
    log.commit(half, 100)
    log.commit(log.copy(half, 90, 1, by_java=True), 200)
    lonely = log.commit(log.half(B, 0), 300)
    return [row for row in log.rows if row["message_id"] == A or row is lonely]


@given(double_and_lonely())
def test_double_commits_and_commits_without_a_half_message(rows: Rows) -> None:
    twice, alone = rows
    assert (brief(twice), twice["commits"]) == (("commit", 100, 1), 2)
    assert (brief(alone), alone["half_stored_at"], alone["half_count"], alone["checked_at"]) == (
        ("commit", None, None),
        None,
        None,
        None,
    )


def traced() -> list[Row]:
    log = Log()
    halves = [log.half(item, 0) for item in (R, S, T, U)]
    log.commit(halves[0], 100)
    for half in halves[:3]:
        log.op(half, ms=100)
    return log.rows


@given(traced())
def test_traces_add_the_reported_state(rows: Rows) -> None:
    assert [(row["decision"], row["from_check"], row["reported_state"]) for row in rows] == [
        ("commit", True, "COMMIT_MESSAGE"), ("rollback", False, "ROLLBACK_MESSAGE"),
        ("unknown", False, "COMMIT_MESSAGE"), ("open", None, "UNKNOW"),
    ]  # fmt: skip


def of_java() -> list[Row]:
    log = Log()
    log.half(V, 0)
    log.copy(log.half(W, 0), 60_000, 1, by_java=True)
    return log.rows


@given(of_java())
def test_a_rollback_recorded_only_in_a_trace(rows: Rows) -> None:
    """A Java broker does not expose its op messages, so transactions that it checks later are still undecided."""
    reported, unheard = rows
    assert (brief(reported), reported["decided_at"], reported["from_check"]) == (("rollback", None, 0), None, False)
    assert brief(unheard) == ("open", None, 1)


def two_brokers() -> list[Row]:
    item, other = Log("broker-a"), Log("broker-b")
    half = item.half(A, 0)
    other.half(B, 0)
    item.op(half, ms=50)
    return item.rows + other.rows


@given(two_brokers())
def test_queue_offsets_are_separate_for_each_broker(rows: Rows) -> None:
    assert [(row["broker"], row["decision"]) for row in rows] == [
        ("broker-a", "rollback"), ("broker-b", "open"),
    ]  # fmt: skip


def several_ends() -> list[Row]:
    log = Log()
    log.op(log.half("KEY1", 0), log.half("KEY2", 0), ms=50)
    log.put("RMQ_SYS_TRANS_OP_HALF_TOPIC", None, 60, {"TAGS": "d"}, body=b"\xff what")
    return log.rows


@given(several_ends())
def test_several_ends_in_one_op_message_and_ids_without_a_time(rows: Rows) -> None:
    assert [(row["message_id"], row["decision"]) for row in rows] == [
        ("KEY1", "rollback"), ("KEY2", "rollback"),
    ]  # fmt: skip
