"""trace_events to journeys: one row per message and group, whatever the order, duplicates or gaps of the input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import trace_cases
import trace_frames as frames
from trace_frames import after, at, before, pub

from ariane.model.trace_event import EndTransactionEvent, MessageType, RecallEvent, TraceEvent
from ariane.pipeline.tables import clocks, journeys
from ariane.tables import JOURNEYS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


given = trace_cases.Cases()
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def results(spark: SparkSession) -> trace_cases.Results:
    """Return the journeys of all inputs."""
    rows = frames.rows(_journeys(spark, *given.frames(spark)))
    return given.split(sorted(rows, key=lambda row: (row["message_id"], row["consumer_group"] or "")))


def _journeys(spark: SparkSession, events: DataFrame, messages: DataFrame) -> DataFrame:
    return journeys.journeys(events, messages, frames.solid(spark, clocks.clocks(events, messages)))


def test_the_columns_match_the_table_schema(spark: SparkSession) -> None:
    frame = _journeys(spark, frames.events(spark, [pub("M")]), frames.stored_messages(spark, []))
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        *((column.name, column.type.lower()) for column in JOURNEYS.columns),
        ("bucket", "string"),
    ]


@given(
    [pub("M", 0, cost_ms=3)],
    [before("M", "R1", 10, "billing"), after("M", "R1", 14, 4, 2, "billing")],
    [before("M", "R2", 1010, "billing", 1), after("M", "R2", 1015, 5, 0, "billing")],
    [before("M", "R3", 20, "audit"), after("M", "R3", 28, 8, 0, "audit")],
)
def test_a_message_consumed_by_two_groups_has_two_rows(rows: Rows) -> None:
    audit, billing = rows
    first, second = billing.pop("deliveries")
    assert (first["request_id"], first["started_at"], first["ended_at"], first["result"]) == (
        "R1",
        at(10),
        at(14),
        "exception",
    )
    assert second == {
        "request_id": "R2", "started_at": at(1010), "ended_at": at(1015), "cost_ms": 5, "result": "success", "retry_times": 1,
        "host": "10.0.0.9:5000", "region": None, "clock_ms": None, "clock_error_ms": None, "started_corrected_at": None,
        "ended_corrected_at": None,
    }  # fmt: skip
    assert {name: value for name, value in billing.items() if value is not None} == {
        "message_id": "M", "consumer_group": "billing", "topic": "T", "keys": "key-M", "tags": "a", "producer_group": "P",
        "message_type": 0, "region": "r", "stored_exact": False, "consumed_times": 1, "retries": 1,
        "producer_host": "10.0.0.9:5000", "store_host": "10.0.0.1:10911", "offset_message_id": "OFF-M", "sent_at": at(0),
        "send_cost_ms": 3, "stored_at": at(3), "sends": 1, "sent_ok": True, "delivered_at": at(10), "queueing_ms": 7,
        "consume_cost_ms": 5, "consumed_at": at(1015), "attempts": 2, "result": "success",
        "consumer_host": "10.0.0.9:5000", "clock_skew": False,
    }  # fmt: skip
    assert (audit["consumer_group"], audit["attempts"], audit["queueing_ms"]) == ("audit", 1, 17)


@given([pub("M")])
def test_an_unconsumed_message_has_a_journey(rows: Rows) -> None:
    (row,) = rows
    known = {name for name, value in row.items() if value is not None}
    assert known == {
        "message_id", "topic", "keys", "tags", "producer_group", "producer_host", "store_host", "offset_message_id",
        "sent_at", "send_cost_ms", "stored_at", "stored_exact", "sends", "sent_ok", "message_type", "region",
    }  # fmt: skip


@given([before("M", "R", 10), after("M", "R", 17)])
def test_a_message_without_a_send_trace_has_a_journey(rows: Rows) -> None:
    (row,) = rows
    known = {name for name, value in row.items() if value is not None}
    assert known == {
        "message_id", "consumer_group", "keys", "delivered_at", "consume_cost_ms", "consumed_at", "attempts", "result",
        "consumer_host", "deliveries", "consumed_times", "retries", "queueing_missing",
    }  # fmt: skip


@given([pub("M")], [before("M", "R", 10)])
def test_a_running_listener_has_an_unknown_result(rows: Rows) -> None:
    (row,) = rows
    assert (row["delivered_at"], row["consumed_at"], row["consume_cost_ms"]) == (at(10), None, None)
    assert (row["result"], row["attempts"]) == ("unknown", 1)


@given([pub("M")], [before("M", "R", 10)])
@given([pub("M")], [before("M", "R", 10)], [after("M", "R", 17)])
def test_a_late_consume_end_updates_the_journey(inputs: list[Rows]) -> None:
    (early,), (late,) = inputs
    end = {"result": "success", "ended_at": at(17), "cost_ms": 7}
    changed = {"result": "success", "consumed_at": at(17), "consume_cost_ms": 7, "consumed_times": 1}
    assert late == early | changed | {"deliveries": [early["deliveries"][0] | end]}


@given([pub("M")], [after("M", "R", 17, cost_ms=7)])
def test_a_lost_consume_start_is_derived_from_its_end(rows: Rows) -> None:
    (row,) = rows
    assert (row["delivered_at"], row["consumed_at"], row["attempts"]) == (at(10), at(17), 1)


CODES = {0: "success", 1: "timeout", 2: "exception", 3: "null", 4: "failed", 9: "unknown"}


@given(*([before(f"M{code}", "R", 10), after(f"M{code}", "R", 17, code=code)] for code in CODES))
def test_consume_codes_map_to_results(rows: Rows) -> None:
    assert {row["message_id"]: row["result"] for row in rows} == {f"M{code}": result for code, result in CODES.items()}


BODIES: list[list[TraceEvent]] = [
    [pub("M", 0, success=False, offset_message_id=""), pub("M", 50)],
    [before("M", "R1", 60), before("N", "R1", 60)],
    [after("M", "R1", 65, code=1), after("N", "R1", 66)],
    [before("M", "R2", 1060), after("M", "R2", 1063, 3)],
    [pub("N", 20)],
]


@given(*BODIES)
@given(*BODIES, *BODIES)
@given(*reversed(BODIES))
def test_journeys_do_not_depend_on_order_or_duplicates(inputs: list[Rows]) -> None:
    once, twice, backwards = inputs
    assert [(row["message_id"], row["attempts"], row["sends"]) for row in once] == [("M", 2, 2), ("N", 1, 1)]
    assert twice == once
    assert backwards == once


@given([pub("M", 0, success=False, store_host="a:1"), pub("M", 50, store_host="b:1")])
def test_the_successful_send_is_shown(rows: Rows) -> None:
    (row,) = rows
    assert (row["sent_at"], row["store_host"], row["sends"], row["sent_ok"]) == (at(50), "b:1", 2, True)


@given([pub("M", success=False)])
def test_a_failed_send_is_not_marked_as_stored(rows: Rows) -> None:
    (row,) = rows
    assert (row["sent_at"], row["stored_at"], row["sent_ok"]) == (at(0), None, False)


@given([pub("M,N", keys="k")], [before("N", "R", 10), after("N", "R", 12)])
def test_the_ids_of_a_java_batch_are_split(rows: Rows) -> None:
    assert [(row["message_id"], row["sent_at"], row["consumer_group"]) for row in rows] == [
        ("M", at(0), None),
        ("N", at(0), "G"),
    ]


@given([pub("M", 100)], [before("M", "R", 40), after("M", "R", 47)])
def test_a_delivery_before_the_send_is_flagged_as_clock_skew(rows: Rows) -> None:
    (row,) = rows
    assert (row["clock_skew"], row["queueing_ms"]) == (True, None)


@given([pub("M", 100, cost_ms=30)], [before("M", "R", 110), after("M", "R", 117)])
def test_a_delivery_may_precede_the_send_response(rows: Rows) -> None:
    """A pending pull is answered immediately: no clock skew and no queueing time."""
    (row,) = rows
    assert (row["clock_skew"], row["queueing_ms"]) == (False, 0)


@given(
    [pub("A"), pub("B", message_type=3), pub("C", message_type=1), before("D", "R", 10), pub("E", message_type=3)],
    [before("B", "R", 1010)],
    stored=2
    * [
        frames.stored("A", 2, offset_message_id="OFF-A"),
        frames.stored("B", 2, "SCHEDULE_TOPIC_XXXX", offset_message_id="OFF-B"),
        frames.stored("B", 1002, offset_message_id="OFF-B2"),
        frames.stored("C", 2, "RMQ_SYS_TRANS_HALF_TOPIC", offset_message_id="OFF-C"),
        frames.stored("C", 62, offset_message_id="OFF-C2"),
        frames.stored("D", 2, "U"),
        frames.stored("E", 2, "SCHEDULE_TOPIC_XXXX", offset_message_id="OFF-E"),
    ],
)
def test_store_and_release_times_come_from_the_broker(rows: Rows) -> None:
    """Cases: normal, delayed, committed half message, a send without a trace, and one that is still pending."""
    names = ("message_id", "topic", "stored_at", "stored_exact", "available_at", "delay_ms", "dead_lettered")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("A", "T", at(2), True, at(2), 0, False),
        ("B", "T", at(2), True, at(1002), 1000, False),
        ("C", "T", at(2), True, at(62), 60, False),
        ("D", "U", at(2), True, at(2), 0, False),
        ("E", "T", at(2), True, None, None, False),
    ]
    assert [(row["queueing_ms"], row["clock_skew"]) for row in rows if row["consumer_group"]] == [
        (8, False),
        (8, False),
    ]


@given(
    [pub("M", 0, success=False, offset_message_id="OFF-1"), pub("M", 50, offset_message_id="OFF-2")],
    stored=[frames.stored("M", 2, offset_message_id="OFF-1"), frames.stored("M", 52, offset_message_id="OFF-2")],
)
def test_a_second_send_of_the_same_id_is_a_separate_record(rows: Rows) -> None:
    (row,) = rows
    assert (row["stored_at"], row["sends"]) == (at(52), 2)


POPPED = {"1ST_POP_TIME": str(frames.T0_MS + 5), "RETRY_TOPIC": "T_1"}


@given(
    [pub("M"), before("M", "R", 10, "G_2"), after("M", "R", 12, code=4, group="G_2")],
    stored=[
        frames.stored("M", 2),
        frames.stored("M", 500, "%RETRY%G_2_T_1", properties=POPPED),
        frames.stored("M", 900, "%DLQ%G_2", properties={"RETRY_TOPIC": "T_1"}),
        frames.stored("M", 950, "%DLQ%H"),
        frames.stored("N", 950, "%DLQ%H"),
    ],
)
def test_dead_letters_and_retries_after_a_pop(rows: Rows) -> None:
    """Recorded for traced messages, even of a group without traces; never for an untraced message."""
    names = ("message_id", "consumer_group", "dead_lettered_at", "dead_lettered", "first_pulled_at", "attempts")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("M", "G_2", at(900), True, at(5), 1),
        ("M", "H", at(950), True, None, None),
    ]


def end(ms: int, state: str, is_check: bool) -> EndTransactionEvent:
    return EndTransactionEvent(
        timestamp_ms=frames.T0_MS + ms, region="r", group="P", topic="T", message_id="M", tags="", keys="", store_host="",
        message_type=MessageType.COMMIT, transaction_id="X", state=state, from_check=is_check,
    )  # fmt: skip


def recall(message_id: str, ms: int, success: bool) -> RecallEvent:
    return RecallEvent(
        timestamp_ms=frames.T0_MS + ms, region="r", group="P", topic="T", message_id=message_id, success=success
    )


ENDS = [end(900, "UNKNOW", True), end(5, "UNKNOW", False), end(500, "COMMIT_MESSAGE", True)]


@given(
    [pub("M", message_type=1), pub("N"), pub("O"), *ENDS],
    [recall("N", 9, True), recall("N", 8, False), recall("O", 9, False), *ENDS],
)
def test_transaction_decisions_and_recalls_are_recorded(rows: Rows) -> None:
    decided, recalled, refused = rows
    assert [(item["decided_at"], item["state"], item["from_check"]) for item in decided["transactions"]] == [
        (at(5), "UNKNOW", False),
        (at(500), "COMMIT_MESSAGE", True),
        (at(900), "UNKNOW", True),
    ]
    assert decided["transaction_state"] == "COMMIT_MESSAGE"
    assert (recalled["recalled_at"], recalled["transactions"], recalled["transaction_state"]) == (at(9), None, None)
    assert (refused["recalled_at"], refused["sent_ok"]) == (None, True)


RECALLS = [
    frames.stored(
        message_id, ms, "rmq_sys_wheel_timer", properties=properties, offset_message_id=f"OFF-{message_id}{ms}"
    )
    for message_id, ms, properties in [
        *((message_id, 2, {}) for message_id in "LMNOP"),
        ("M", 60, {"TIMER_CANCELS": "0", "TIMER_DEL_UNIQKEY": "M"}),  # of Ariane's brokers
        ("N", 60, {"TIMER_DEL_UNIQKEY": "T+N"}),  # of Apache's
        ("O", 60, {"TIMER_DEL_UNIQKEY": "T+O"}),
    ]
] + [frames.stored("P", 60, properties={"TIMER_OUT_MS": "60"})]


@given(
    [*(pub(message_id, message_type=3, offset_message_id=f"OFF-{message_id}2") for message_id in "LMNOP")],
    [recall("O", 50, True)],
    stored=RECALLS,
)
def test_a_recall_that_no_client_traced_is_known_from_its_record(rows: Rows) -> None:
    clock_ms = {row["message_id"]: row["producer_clock_ms"] or 0 for row in rows}
    assert [(row["message_id"], row["recalled_at"]) for row in rows] == [
        ("L", None),
        ("M", at(60 - clock_ms["M"])),
        ("N", at(60 - clock_ms["N"])),
        ("O", at(50)),
        ("P", None),
    ]
    assert {row["stored_at"] for row in rows} == {at(2)}


TWICE = [before("M", "R1", 10), after("M", "R1", 12), before("M", "R2", 90), after("M", "R2", 95)]
EVER = [
    event for n in range(100) for event in (before("N", f"R{n:02}", 10 * n), after("N", f"R{n:02}", 10 * n + 1, 1, 4))
]


@given(TWICE, EVER, TWICE)
def test_repeated_consumption_is_counted_and_deliveries_are_bounded(rows: Rows) -> None:
    first, second = rows
    assert (first["consumed_times"], first["attempts"]) == (2, 2)
    assert (second["consumed_times"], second["attempts"], second["result"]) == (0, 100, "failed")
    assert [item["request_id"] for item in second["deliveries"]] == [f"R{n:02}" for n in (*range(32), *range(68, 100))]


@given([pub("M", cost_ms=-40), before("M", "R", 10), after("M", "R", 3, -7)])
def test_a_negative_cost_is_unknown(rows: Rows) -> None:
    """The client's clock was set back during the call."""
    (row,) = rows
    assert (row["send_cost_ms"], row["consume_cost_ms"], row["stored_at"]) == (None, None, None)
    assert row["queueing_ms"] is None
