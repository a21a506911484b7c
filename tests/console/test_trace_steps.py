"""Steps of a message from live traces and from the pipeline's tables, and the merge of both."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from ariane.console.areas.traces.host_clocks import HostClock
from ariane.console.areas.traces.live_steps import CarriedEvent, StoredCopy, live_trace
from ariane.console.areas.traces.step_merge import merge_steps
from ariane.console.areas.traces.time_axis import build_axis
from ariane.console.areas.traces.timeline_drawing import BROKER, CONSUMER, PRODUCER, draw
from ariane.console.areas.traces.trace_sources import decode_carriers
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.model.trace_event import (
    ConsumeEndEvent,
    ConsumeStartEvent,
    EndTransactionEvent,
    PublishEvent,
    RecallEvent,
    TraceEvent,
)
from ariane.protocol import trace_codec
from ariane.reports.journey_steps import journey_steps
from ariane.reports.trace_steps import StepKind, StepSource, TraceStep
from ariane.tables import JOURNEYS

T0_MS = 1_700_000_000_000
T0 = datetime.fromtimestamp(T0_MS / 1000, UTC)
ID, OFFSET_ID = "UNIQUE-1", "OFFSET-1"
PRODUCER_HOST, CONSUMER_HOST = "10.0.0.2:4711", "[fd00::3]:4712"
AHEAD_MS = 1200  # the producer's clock is ahead


def sent(at_ms: int = 0, *, success: bool = True, message_id: str = ID) -> CarriedEvent:
    """A send that took 3 ms, recorded by a client whose clock is ahead; its trace was stored 100 ms later."""
    event = PublishEvent(
        timestamp_ms=T0_MS + at_ms + AHEAD_MS, region="", group="shop", topic="orders", message_id=message_id, tags="",
        keys="ORDER-1", store_host="10.0.0.1:10911", body_length=5, cost_ms=3, message_type=0,
        offset_message_id=OFFSET_ID, success=success,
    )  # fmt: skip
    return CarriedEvent(event, PRODUCER_HOST, T0_MS + at_ms + 103)


def started(at_ms: int, request_id: str, retry_times: int = 0) -> CarriedEvent:
    event = ConsumeStartEvent(
        timestamp_ms=T0_MS + at_ms, region="", group="billing", request_id=request_id, message_id=ID,
        retry_times=retry_times, keys="ORDER-1",
    )  # fmt: skip
    return CarriedEvent(event, CONSUMER_HOST, T0_MS + at_ms + 20)


def ended(
    at_ms: int | None, request_id: str, *, success: bool = True, code: int = 0, group: str = "billing"
) -> CarriedEvent:
    event = ConsumeEndEvent(
        request_id=request_id, message_id=ID, cost_ms=5, success=success, keys="ORDER-1", context_code=code,
        timestamp_ms=None if at_ms is None else T0_MS + at_ms, group=group,
    )  # fmt: skip
    return CarriedEvent(event, CONSUMER_HOST, T0_MS + (at_ms or 0) + 20)


def copy(topic: str, at_ms: int, times: int = 0, offset_id: str = OFFSET_ID) -> StoredCopy:
    return StoredCopy(topic, "broker-a queue 0 offset 1", "10.0.0.1:10911", T0_MS + at_ms, times, offset_id)


def relative(step: TraceStep) -> tuple[str, int, int | None, int | None, str]:
    end_ms = None if step.end_ms is None else step.end_ms - T0_MS
    return step.kind.value, step.start_ms - T0_MS, end_ms, step.error_ms, step.result


def test_times_are_corrected_by_the_evidence_of_the_message_itself() -> None:
    trace = live_trace(ID, [sent(), started(10, "R1"), ended(15, "R1")], [copy("orders", 2)])
    # Stored at 2 by the broker, sent at 1200 and answered at 1203 by the producer: its clock is ahead by 1198 to 1201 ms,
    # widened by 1 ms. The consumer's clock agrees with the broker's.
    producer, consumer = trace.clocks["10.0.0.2"], trace.clocks["fd00::3"]
    assert producer == (-1202, -1197)
    assert (producer.offset_ms, producer.error_ms) == (-1200, 3)
    assert (consumer.offset_ms, consumer.error_ms) == (0, 21)
    assert [relative(step) for step in trace.steps] == [
        ("send", 0, 3, 3, "success"),
        ("store", 2, 2, 0, ""),
        ("delivery", 10, 15, 21, "success"),
    ]


def test_without_a_stored_copy_no_clock_offset_is_assumed() -> None:
    steps = live_trace(ID, [sent(), started(10, "R1")], []).steps
    assert [relative(step) for step in steps] == [
        ("delivery", 10, None, None, "unknown"),
        ("send", AHEAD_MS, AHEAD_MS + 3, None, "success"),
    ]
    assert steps[0].note == "its end was not reported"


def test_contradictory_records_are_reported_and_not_corrected() -> None:
    """The call began before its record was stored, and its trace was stored too early for a clock that is behind."""
    early = started(0, "R1")._replace(traced_ms=T0_MS + 1)
    trace = live_trace(ID, [early, ended(1, "R1")._replace(traced_ms=T0_MS + 1)], [copy("orders", 500)])
    call = trace.steps[0]
    assert trace.clocks["fd00::3"].is_contradiction
    assert (call.error_ms, call.note) == (None, "contradictory clocks")


def test_each_attempt_is_a_step_and_a_retry_is_compared_with_its_own_record() -> None:
    trace = live_trace(
        ID,
        [
            started(10, "R1"), ended(15, "R1", success=False, code=4),
            started(10_030, "R2", 1), ended(10_040, "R2", success=False, code=2),
            started(40_100, "R3", 2),
        ],
        [copy("orders", 2), copy("%RETRY%billing", 10_020, 1, "B"), copy("%DLQ%billing", 50_000, 3, "C")],
    )  # fmt: skip
    assert [relative(step)[::4] for step in trace.steps] == [
        ("store", ""), ("delivery", "failed"), ("store", ""), ("delivery", "exception"), ("delivery", "unknown"),
        ("dead letter", ""),
    ]  # fmt: skip
    assert [step.retry_times for step in trace.steps if step.kind is StepKind.DELIVERY] == [0, 1, 2]
    assert [step.group for step in trace.steps if step.topic] == [None, "billing", "billing"]
    # The first record was stored at most 8 ms before its delivery, the retry at most 10 ms.
    assert trace.clocks["fd00::3"].lower_ms == -9


def test_repeated_trace_messages_and_other_messages_count_once_or_not_at_all() -> None:
    again = sent()._replace(traced_ms=T0_MS + 5_000)
    steps = live_trace(ID, [sent(), again, sent(message_id="OTHER"), sent(7, message_id=f"OTHER,{ID}")], []).steps
    assert [relative(step)[:2] for step in steps] == [("send", AHEAD_MS), ("send", AHEAD_MS + 7)]


def test_records_of_old_clients_without_times_or_begins() -> None:
    alone, untimed = live_trace(ID, [ended(15, "R1"), ended(None, "R2", group="")], []).steps
    assert (relative(alone), alone.note) == (("delivery", 10, 15, None, "success"), "its begin was not reported")
    assert (relative(untimed), untimed.group) == (("delivery", 15, 20, None, "success"), None)
    assert untimed.note == "time of the trace message"
    joined = live_trace(ID, [started(10, "R1"), ended(None, "R1", group="")], []).steps
    assert [relative(step) for step in joined] == [("delivery", 10, 15, None, "success")]


def test_a_failed_call_without_a_code_is_not_a_success() -> None:
    (step,) = live_trace(ID, [ended(15, "R1", success=False, code=0)], []).steps
    assert step.result == "failed"


def test_decisions_and_recalls_are_steps_of_the_producer() -> None:
    events: list[TraceEvent] = [
        EndTransactionEvent(
            timestamp_ms=T0_MS + 50, region="", group="shop", topic="orders", message_id=ID, tags="", keys="",
            store_host="", message_type=2, transaction_id=ID, state="UNKNOW", from_check=True,
        ),
        RecallEvent(timestamp_ms=T0_MS + 60, region="", group="shop", topic="orders", message_id=ID, success=False),
    ]  # fmt: skip
    steps = live_trace(ID, [CarriedEvent(event, PRODUCER_HOST, T0_MS + 70) for event in events], []).steps
    assert [(relative(step)[::4], step.from_check) for step in steps] == [
        (("decision", "UNKNOW"), True),
        (("recall", "failed"), False),
    ]


# --- tables ------------------------------------------------------------------------------------------------------------


def at(ms: int) -> datetime:
    return T0 + timedelta(milliseconds=ms)


def attempt(began_ms: int | None, ended_ms: int | None, request_id: str | None, **other: Any) -> dict[str, Any]:
    return {
        "request_id": request_id, "started_at": None if began_ms is None else at(began_ms),
        "ended_at": None if ended_ms is None else at(ended_ms), "cost_ms": 5, "result": "success", "retry_times": 0,
        "host": CONSUMER_HOST, "clock_ms": None, "clock_error_ms": None,
    } | other  # fmt: skip


def journey(group: str | None = "billing", **other: Any) -> dict[str, Any]:
    return dict.fromkeys(JOURNEYS.column_names) | {
        "message_id": ID, "consumer_group": group, "topic": "orders", "producer_group": "shop", "producer_host": PRODUCER_HOST,
        "store_host": "10.0.0.1:10911", "offset_message_id": OFFSET_ID, "sent_at": at(AHEAD_MS), "send_cost_ms": 3,
        "producer_clock_ms": -AHEAD_MS, "producer_clock_error_ms": 1, "stored_at": at(2), "stored_exact": True,
        "sends": 1, "sent_ok": True, "attempts": 1, "deliveries": [attempt(10, 15, "R1", clock_ms=0, clock_error_ms=4)],
    } | other  # fmt: skip


def test_rows_of_several_groups_share_the_steps_of_producer_and_broker() -> None:
    decision = {"decided_at": at(AHEAD_MS + 5), "state": "COMMIT_MESSAGE", "from_check": False, "host": PRODUCER_HOST}
    shared = {"transactions": [decision], "available_at": at(8), "delay_ms": 6, "message_type": 1}
    steps = journey_steps([
        journey(**shared),
        journey("mail", deliveries=[attempt(None, 30, None)], dead_lettered_at=at(90), attempts=9, **shared),
    ])  # fmt: skip
    assert [relative(step) for step in steps] == [
        ("send", 0, 3, 1, "success"),
        ("store", 2, 2, 0, ""),
        ("decision", 5, 5, 1, "COMMIT_MESSAGE"),
        ("available", 8, 8, 0, ""),
        ("delivery", 10, 15, 4, "success"),
        ("delivery", 25, 30, None, "success"),
        ("dead letter", 90, 90, 0, ""),
    ]
    assert steps[5].note == "its begin was not reported, 8 attempts in between are not in the table"
    assert steps[6].topic == "%DLQ%mail"


def test_an_estimated_store_time_has_the_error_of_the_send() -> None:
    steps = journey_steps([journey(stored_exact=False, deliveries=[], recalled_at=at(AHEAD_MS + 9))])
    assert [relative(step) for step in steps] == [
        ("send", 0, 3, 1, "success"), ("store", 2, 2, 4, ""), ("recall", 9, 9, 1, "success"),
    ]  # fmt: skip
    assert steps[1].note == "estimated from the producer's clock"
    unknown = journey_steps([journey(stored_exact=False, producer_clock_ms=None, producer_clock_error_ms=None)])
    assert {step.error_ms for step in unknown} == {None, 4}


# --- both --------------------------------------------------------------------------------------------------------------


def test_a_merge_takes_better_times_from_the_tables_and_newer_steps_from_the_trace_topic() -> None:
    running = attempt(10, None, "R1", result="unknown", cost_ms=None, clock_ms=0, clock_error_ms=4)
    live = live_trace(
        ID, [sent(), started(10, "R1"), ended(15, "R1"), started(10_030, "R2", 1)], [copy("orders", 2)]
    ).steps
    merged = merge_steps(live, journey_steps([journey(deliveries=[running])]))
    assert [(relative(step), len(step.sources)) for step in merged] == [
        (("send", 0, 3, 1, "success"), 2),
        (("store", 2, 2, 0, ""), 2),
        (("delivery", 10, 15, 4, "success"), 2),
        (("delivery", 10_030, None, 21, "unknown"), 1),
    ]
    # The record's position is known to the broker only.
    assert merged[1].position
    assert merged[1].sources == {StepSource.BROKER, StepSource.TABLES}


def test_a_merge_takes_an_end_that_only_the_tables_have() -> None:
    live = live_trace(ID, [started(10, "R1")], [copy("orders", 9)]).steps
    late = attempt(10, 15, "R1", clock_ms=0, clock_error_ms=4_000)
    merged = merge_steps(live, journey_steps([journey(sent_at=None, deliveries=[late])]))
    assert relative(merged[1]) == ("delivery", 10, 15, 21, "success")
    assert (merged[1].note, merged[1].cost_ms) == ("", 5)


def test_each_step_of_the_tables_is_merged_with_one_live_step() -> None:
    """A client that reports no request id may deliver several times in one ms: these share their identity."""
    twins = [ended(None, "") for _ in range(2)]
    call = live_trace(ID, twins[:1], []).steps[0]
    live = [msgspec.structs.replace(call, host=host, client_ms=5) for host in ("a:1", "b:1")]
    tables = [msgspec.structs.replace(step, sources=frozenset({StepSource.TABLES})) for step in [*live, live[0]]]
    merged = merge_steps(live, tables)
    assert sorted((step.host, len(step.sources)) for step in merged) == [("a:1", 1), ("a:1", 2), ("b:1", 2)]


# --- drawing -----------------------------------------------------------------------------------------------------------


def test_retries_are_readable_although_they_wait_a_thousand_times_longer_than_they_run() -> None:
    instants = [0, 3, 10, 15, 10_015, 10_020, 40_020, 40_025]
    axis = build_axis(instants)
    assert [part.duration_ms for part in axis.breaks] == [10_000, 30_000]
    # A call of 5 ms takes more room than a break of 30 s.
    assert axis.position(15) - axis.position(10) > axis.breaks[1].width / 2


def test_waits_of_about_the_same_length_are_not_compressed() -> None:
    assert build_axis([0, 3, 10, 15]).breaks == []
    assert build_axis([0, 5_000, 15_000, 20_000, 80_000]).breaks == []
    # Each gap is twice as long as the one before: the shortest would be invisible on a linear axis.
    assert build_axis([2**power for power in range(21)]).breaks != []


def test_lanes_are_producer_broker_and_each_client_of_a_group() -> None:
    other = msgspec.structs.replace(started(12, "R2").event, group="mail")
    carried = [sent(), started(10, "R1"), ended(15, "R1"), CarriedEvent(other, CONSUMER_HOST, T0_MS + 20)]
    drawing = draw(live_trace(ID, carried, [copy("orders", 2), copy("%DLQ%billing", 99)]).steps)
    assert drawing is not None
    assert [(lane.role, lane.group, len(lane.bars)) for lane in drawing.lanes] == [
        (PRODUCER, "shop", 1), (BROKER, None, 2), (CONSUMER, "billing", 1), (CONSUMER, "mail", 1),
    ]  # fmt: skip
    tones = [bar.tone for lane in drawing.lanes for bar in lane.bars]
    assert tones == ["good", "plain", "bad", "good", "unknown"]
    assert draw([]) is None


def test_an_offset_that_a_client_measured_is_preferred_to_the_evidence() -> None:
    """Producer and consumer have one address and different clocks, and no copy of the message was found."""
    producer, consumer = HostClock(-1_203, -1_198), HostClock(-2, 2)
    carried = [
        sent()._replace(clock=producer),
        started(10, "R1")._replace(host=PRODUCER_HOST),  # written before the first measurement
        ended(15, "R1")._replace(host=PRODUCER_HOST, clock=consumer),
    ]
    trace = live_trace(ID, carried, [])
    assert [relative(step) for step in trace.steps] == [
        ("send", -1, 2, 3, "success"),
        ("delivery", 10, 15, 2, "success"),
    ]


def test_the_offset_of_a_call_holds_for_both_of_its_records() -> None:
    carried = [
        started(10, "R1")._replace(clock=HostClock(-2, 5)),
        ended(15, "R1")._replace(clock=HostClock(-4, 3)),
    ]
    trace = live_trace(ID, carried, [])
    assert trace.clocks == {"fd00::3": (-4, 3)}
    assert trace.steps[0].error_ms == 5


def test_offsets_are_read_from_trace_messages() -> None:
    record = sent().event
    message = ReceivedMessage(
        topic="RMQ_SYS_TRACE_TOPIC", body=trace_codec.encode(record).encode(), queue=MessageQueue("T", "b", 0),
        properties={"CLOCK_OFFSETS": "10.0.0.9:10911 1 2,10.0.0.1:10911 -1203 -1198"}, queue_offset=0, commit_log_offset=0,
        message_id="M", offset_message_id="O", born_ms=0, born_host=PRODUCER_HOST, store_ms=T0_MS, store_host="",
        reconsume_times=0, flag=0, sys_flag=0, stored_size=0,
    )  # fmt: skip
    (carried,) = decode_carriers([message])
    assert carried == CarriedEvent(record, PRODUCER_HOST, T0_MS, HostClock(-1_203, -1_198))


def test_a_bound_from_the_evidence_does_not_replace_measured_ones() -> None:
    carried = [sent()._replace(clock=HostClock(-2, 3)), started(10, "R1")._replace(host=PRODUCER_HOST)]
    assert list(live_trace(ID, carried, []).clocks.values()) == [(-2, 3)]
