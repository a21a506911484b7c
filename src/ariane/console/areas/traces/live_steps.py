"""Steps of a message from the trace topic and from its stored copies. Works without a pipeline, also on Apache clusters.

trace message ─→ events (trace_codec) ─→ CarriedEvent ─┐
copies of the message at the brokers ──→ StoredCopy ───┴→ clock evidence ─→ TraceStep…
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from ariane.cluster.messages.message_query import PENDING_TOPICS
from ariane.console.areas.traces.host_clocks import ClockEvidence, HostClock, hull
from ariane.model.host import ip_of
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, group_of_topic
from ariane.model.trace_event import (
    ConsumeEndEvent,
    ConsumeStartEvent,
    PublishEvent,
    RecallEvent,
    TraceEvent,
)
from ariane.reports.trace_steps import (
    CALL_RESULTS,
    FAILED,
    SUCCESS,
    UNKNOWN,
    StepKind,
    StepSource,
    TraceStep,
    in_order,
)

TRACE_TOPIC_SOURCE = frozenset({StepSource.TRACE_TOPIC})


class CarriedEvent(NamedTuple):
    """A trace event with facts of the trace message that carried it."""

    event: TraceEvent
    host: str  # address of the client that sent the trace message
    traced_ms: int  # when the broker stored the trace message
    clock: HostClock | None = None  # as the client measured it; None if the trace message does not carry it


class StoredCopy(NamedTuple):
    """A stored record of the message: the original, a retry, a dead letter, a delayed or half message."""

    topic: str  # that stores the record: a retry is in %RETRY%GROUP
    position: str  # broker, queue and offset, for people
    host: str  # address of the broker
    stored_ms: int  # broker's clock
    reconsume_times: int  # 0 for the original
    offset_message_id: str  # identifies the record


class LiveTrace(NamedTuple):
    """Steps in order, and the bounds of the clients' clocks by IP address."""

    steps: list[TraceStep]
    clocks: dict[str, HostClock]


class _Call(NamedTuple):
    """A call of a listener: its begin, its end, or both."""

    start: ConsumeStartEvent | None
    end: ConsumeEndEvent | None
    host: str
    traced_ms: int
    clock: HostClock | None  # as the client measured it


def live_trace(message_id: str, carried: Iterable[CarriedEvent], copies: Sequence[StoredCopy]) -> LiveTrace:
    """Return the steps of one message. Events of other messages are ignored, repeated events count once.

    Args:
        carried: Events of the trace messages that were found by it.
        copies: Stored records with this unique key, as far as they were found.
    """
    of_message = _distinct(record for record in carried if message_id in record.event.message_id.split(","))
    calls = _pair_calls(of_message)
    evidence = ClockEvidence()
    for record in of_message:
        _add_evidence(evidence, record, copies)
    for call in calls:
        _add_delivery_evidence(evidence, call, copies)
    steps = [_copy_step(copy) for copy in copies]
    steps += [step for record in of_message if (step := _producer_step(record, evidence)) is not None]
    steps += [_delivery_step(call, evidence) for call in calls]
    measured = {ip_of(record.host): record.clock for record in of_message if record.clock is not None}
    return LiveTrace(in_order(steps), dict(sorted((evidence.all_clocks() | measured).items())))


def _distinct(carried: Iterable[CarriedEvent]) -> list[CarriedEvent]:
    """Return each event once: a client that gets no response sends its trace message again."""
    first: dict[TraceEvent, CarriedEvent] = {}
    for record in carried:
        earlier = first.get(record.event)
        if earlier is None or record.traced_ms < earlier.traced_ms:
            first[record.event] = record
    return list(first.values())


def _pair_calls(carried: Iterable[CarriedEvent]) -> list[_Call]:
    """Return begin and end of each call of a listener, joined by the request id."""
    calls: dict[str, _Call] = {}
    for event, host, traced_ms, clock in carried:
        if not isinstance(event, ConsumeStartEvent | ConsumeEndEvent):
            continue
        call = calls.get(event.request_id, _Call(None, None, host, traced_ms, clock))
        call = call._replace(clock=hull(call.clock, clock))
        if isinstance(event, ConsumeStartEvent):
            calls[event.request_id] = call._replace(start=event)
        else:
            calls[event.request_id] = call._replace(end=event, traced_ms=traced_ms)
    return list(calls.values())


# --- clocks ------------------------------------------------------------------------------------------------------------


def _add_evidence(evidence: ClockEvidence, carried: CarriedEvent, copies: Sequence[StoredCopy]) -> None:
    event, host, traced_ms, measured = carried
    if measured is not None:
        return  # nor does it limit other clients of its address, which may have other clocks
    ip = ip_of(host)
    recorded_ms = event.timestamp_ms
    if isinstance(event, PublishEvent):
        recorded_ms = event.timestamp_ms + max(0, event.cost_ms)
        # The record of the send was stored between its begin and the broker's response.
        for copy in copies:
            if event.success and copy.offset_message_id in event.offset_message_id.split(","):
                evidence.at_least(ip, copy.stored_ms - recorded_ms)
                evidence.at_most(ip, copy.stored_ms - event.timestamp_ms)
    if recorded_ms is not None:
        evidence.at_most(ip, traced_ms - recorded_ms)


def _add_delivery_evidence(evidence: ClockEvidence, call: _Call, copies: Sequence[StoredCopy]) -> None:
    """Add that the delivered record had been stored before."""
    if call.start is None or call.clock is not None:
        return
    stored_ms = [copy.stored_ms for copy in copies if _is_delivered(copy, call.start)]
    if stored_ms:
        evidence.at_least(ip_of(call.host), min(stored_ms) - call.start.timestamp_ms)


def _is_delivered(copy: StoredCopy, start: ConsumeStartEvent) -> bool:
    """Return whether a delivery may be that of this record."""
    if start.retry_times:
        return copy.topic == RETRY_PREFIX + start.group and copy.reconsume_times == start.retry_times
    return copy.topic not in PENDING_TOPICS and not copy.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


# --- steps -------------------------------------------------------------------------------------------------------------


def _copy_step(copy: StoredCopy) -> TraceStep:
    is_dead = copy.topic.startswith(DLQ_PREFIX)
    return TraceStep(
        kind=StepKind.DEAD_LETTER if is_dead else StepKind.STORE,
        start_ms=copy.stored_ms,
        end_ms=copy.stored_ms,
        error_ms=0,
        group=group_of_topic(copy.topic) or None,
        host=copy.host,
        topic=copy.topic,
        position=copy.position,
        offset_message_id=copy.offset_message_id,
        retry_times=copy.reconsume_times or None,
        sources=frozenset({StepSource.BROKER}),
    )


def _producer_step(carried: CarriedEvent, evidence: ClockEvidence) -> TraceStep | None:
    event, host, _, measured = carried
    clock = measured or evidence.clock(ip_of(host))
    if isinstance(event, PublishEvent):
        start_ms = event.timestamp_ms + (clock.offset_ms or 0)
        return TraceStep(
            kind=StepKind.SEND,
            start_ms=start_ms,
            end_ms=start_ms + max(0, event.cost_ms),
            error_ms=clock.error_ms,
            client_ms=event.timestamp_ms,
            result=SUCCESS if event.success else FAILED,
            group=event.group or None,
            host=host,
            cost_ms=event.cost_ms if event.cost_ms >= 0 else None,
            topic=event.topic or None,
            offset_message_id=event.offset_message_id,
            sources=TRACE_TOPIC_SOURCE,
        )
    if isinstance(event, ConsumeStartEvent | ConsumeEndEvent):
        return None
    at_ms = event.timestamp_ms + (clock.offset_ms or 0)
    moment = TraceStep(
        kind=StepKind.RECALL,
        start_ms=at_ms,
        end_ms=at_ms,
        error_ms=clock.error_ms,
        client_ms=event.timestamp_ms,
        group=event.group or None,
        host=host,
        sources=TRACE_TOPIC_SOURCE,
    )
    if isinstance(event, RecallEvent):
        return msgspec.structs.replace(moment, result=SUCCESS if event.success else FAILED)
    return msgspec.structs.replace(moment, kind=StepKind.DECISION, result=event.state, from_check=event.from_check)


def _delivery_step(call: _Call, evidence: ClockEvidence) -> TraceStep:
    start, end, host, traced_ms, measured = call
    clock = measured or evidence.clock(ip_of(host))
    cost_ms = end.cost_ms if end is not None and end.cost_ms >= 0 else None
    client_start_ms, client_end_ms, note = _call_times(call, cost_ms)
    error_ms = clock.error_ms
    shift_ms = clock.offset_ms or 0
    if client_start_ms is None:
        # Old clients report neither begin nor end: the time of the trace message is an upper bound, by the broker's clock.
        client_start_ms, client_end_ms, shift_ms, error_ms = traced_ms - (cost_ms or 0), traced_ms, 0, None
    result = UNKNOWN
    if end is not None:
        result = SUCCESS if end.success else CALL_RESULTS.get(end.context_code, FAILED)
        result = FAILED if result == SUCCESS and not end.success else result
    return TraceStep(
        kind=StepKind.DELIVERY,
        start_ms=client_start_ms + shift_ms,
        end_ms=None if client_end_ms is None else max(client_start_ms, client_end_ms) + shift_ms,
        error_ms=error_ms,
        client_ms=client_start_ms,
        result=result,
        group=(start.group if start is not None else "") or (end.group if end is not None else "") or None,
        host=host,
        cost_ms=cost_ms,
        retry_times=None if start is None else start.retry_times,
        request_id=start.request_id if start is not None else end.request_id if end is not None else "",
        note="contradictory clocks" if clock.is_contradiction else note,
        sources=TRACE_TOPIC_SOURCE,
    )


def _call_times(call: _Call, cost_ms: int | None) -> tuple[int | None, int | None, str]:
    """Return begin and end of a call by the client's clock, and a doubt about them."""
    start_ms = None if call.start is None else call.start.timestamp_ms
    if call.end is None:
        return start_ms, None, "its end was not reported"
    end_ms = call.end.timestamp_ms
    if end_ms is None and start_ms is not None:
        end_ms = start_ms + (cost_ms or 0)
    if start_ms is None and end_ms is not None:
        return end_ms - (cost_ms or 0), end_ms, "its begin was not reported"
    return start_ms, end_ms, "" if start_ms is not None else "time of the trace message"
