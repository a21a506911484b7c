"""Traces that a server writes for its clients: records, ends of deliveries, batches and bounds, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from ariane.errors import StoreError
from ariane.model.trace_event import (
    ConsumeEndEvent,
    ConsumeStartEvent,
    EndTransactionEvent,
    MessageType,
    PublishEvent,
    RecallEvent,
    TraceEvent,
)
from ariane.net.replies import make_peer
from ariane.protocol import trace_codec
from ariane.protocol.records import record
from ariane.protocol.records.record import Record
from ariane.protocol.requests.messaging import ROLLBACK, EndTransactionHeader, SendMessage, SendMessageResponse
from ariane.proxy.conversion.receipt_handles import DeliveryKey
from ariane.proxy.traces import message_traces, open_deliveries, trace_writer
from ariane.proxy.traces.message_traces import DeliveredMessage, MessageTraces, TracedSend, TraceSource
from ariane.proxy.traces.trace_writer import TraceMessage, TraceWriter
from ariane.testing.clock import EPOCH_MS, FakeClock

CLIENT, OTHER = make_peer(1, ("192.0.2.1", 5000)), make_peer(2, ("192.0.2.1", 5001))  # of one machine
KEY = DeliveryKey("G", "T", "broker-a", 0, 1, 3)
MINUTE_MS = 60_000


class Traced:
    """Traces, and what they have stored."""

    def __init__(self) -> None:
        self.clock, self.is_on = FakeClock(), True
        self.messages: list[TraceMessage] = []
        self.fault: StoreError | None = None
        self.writer = TraceWriter(self, self.clock)
        source = TraceSource("192.0.2.9:10911", "RMQ_SYS_TRACE_TOPIC", "north")
        self.traces = MessageTraces(
            writer=self.writer, source=source, is_on=lambda: self.is_on, now_ms=self.clock.now_ms
        )

    async def store(self, message: TraceMessage) -> None:
        if self.fault is not None:
            raise self.fault
        self.messages.append(message)

    def events(self) -> list[TraceEvent]:
        """Return the records that were written since the last call."""
        self.traces.end_due()
        asyncio.run(self.writer.flush())
        messages, self.messages = self.messages, []
        return [event for message in messages for event in trace_codec.decode(message.body)[0]]

    def deliver(self, item: Record, *, taken_ms: int | None = None, invisible_ms: int = MINUTE_MS) -> int:
        """Deliver a message, and return the time of its handle."""
        taken_ms = self.clock.now_ms() if taken_ms is None else taken_ms
        self.traces.delivered(CLIENT, KEY, DeliveredMessage.of(item), taken_ms, taken_ms + invisible_ms)
        return taken_ms


def stored(properties: str = "UNIQ_KEY\x01ID\x02KEYS\x01k1 k2", reconsume_times: int = 0) -> Record:
    data = record.encode(
        b"T", b"body", properties.encode(), queue_id=1, queue_offset=3, offset=4_000, born_ms=0, born_host=CLIENT.packed,
        store_ms=0, store_host=OTHER.packed, flag=0, sys_flag=0, reconsume_times=reconsume_times,
    )  # fmt: skip
    return record.decode(data)


def send_trace(topic: str = "T", **properties: str) -> TracedSend:
    header = SendMessage("P", topic, "", 0, 0, 0, 0, 0, "")
    return TracedSend(CLIENT, header, {"UNIQ_KEY": "ID", **properties}, 4, EPOCH_MS)


def test_a_send_is_a_pub_record_by_the_clock_of_the_server() -> None:
    traced = Traced()
    traced.clock.advance(0.007)
    traced.traces.sent(send_trace(TAGS="A", KEYS="k1 k2"), SendMessageResponse("OFFSET-ID", 0, 5))
    asyncio.run(traced.writer.flush())
    (message,) = traced.messages
    assert (message.client, message.keys) == (CLIENT, ("ID", "k1", "k2"))
    assert traced.events() == [
        PublishEvent(
            timestamp_ms=EPOCH_MS, region="north", group="P", topic="T", message_id="ID", tags="A", keys="k1 k2",
            store_host="192.0.2.9:10911", body_length=4, cost_ms=7, message_type=MessageType.NORMAL,
            offset_message_id="OFFSET-ID", success=True,
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({"TRAN_MSG": "true"}, MessageType.HALF),
        ({"TIMER_DELIVER_MS": "9"}, MessageType.DELAY),
        ({"__SHARDINGKEY": "g"}, MessageType.NORMAL),  # readers of 4.9.4 refuse a trace message with 5.x's own type
    ],
)
def test_the_types_of_sends_are_those_of_4x(properties: dict[str, str], kind: MessageType) -> None:
    traced = Traced()
    traced.traces.sent(send_trace(**properties), None)
    (event,) = traced.events()
    assert isinstance(event, PublishEvent)
    assert (event.message_type, event.success, event.offset_message_id) == (kind, False, "")


def test_decisions_and_recalls_have_records() -> None:
    traced = Traced()
    traced.traces.decided(CLIENT, "T", EndTransactionHeader("T", 1, 2, ROLLBACK, True, "ID", "TX"))
    traced.traces.recalled(CLIENT, "T", "ID", is_success=False)
    decision, recall = traced.events()
    assert isinstance(decision, EndTransactionEvent)
    assert (decision.state, decision.from_check, decision.transaction_id) == ("ROLLBACK_MESSAGE", True, "TX")
    assert isinstance(recall, RecallEvent)
    assert (recall.message_id, recall.success, recall.timestamp_ms) == ("ID", False, EPOCH_MS)


def test_an_acknowledged_delivery_has_a_start_and_an_end() -> None:
    traced = Traced()
    taken_ms = traced.deliver(stored(reconsume_times=2))
    traced.clock.advance(1.5)
    traced.traces.acknowledged(KEY, taken_ms)
    start, end = traced.events()
    assert isinstance(start, ConsumeStartEvent)
    assert isinstance(end, ConsumeEndEvent)
    assert (start.group, start.message_id, start.keys, start.retry_times) == ("G", "ID", "k1 k2", 2)
    assert (end.request_id, end.cost_ms, end.success, end.context_code) == (start.request_id, 1_500, True, 0)
    traced.traces.acknowledged(KEY, taken_ms)  # once more: no effect, as at the broker
    assert traced.events() == []


def test_a_delivery_whose_time_ends_has_failed_at_that_time() -> None:
    traced = Traced()
    traced.deliver(stored())
    traced.clock.advance(65)
    _, end = traced.events()
    assert isinstance(end, ConsumeEndEvent)
    assert (end.success, end.context_code, end.timestamp_ms) == (False, 1, EPOCH_MS + MINUTE_MS)


def test_a_late_acknowledgement_is_an_attempt_of_its_own() -> None:
    traced = Traced()
    taken_ms = traced.deliver(stored())
    traced.clock.advance(65)
    _, failed = traced.events()
    traced.traces.acknowledged(KEY, taken_ms)
    (end,) = traced.events()
    assert isinstance(end, ConsumeEndEvent)
    assert isinstance(failed, ConsumeEndEvent)
    assert (end.success, end.cost_ms, end.timestamp_ms) == (True, 0, EPOCH_MS + 65_000)
    assert end.request_id != failed.request_id


def test_a_late_acknowledgement_after_the_next_delivery_has_no_record() -> None:
    traced = Traced()
    taken_ms = traced.deliver(stored())
    traced.clock.advance(61)
    traced.deliver(stored(reconsume_times=1))
    assert [type(event) for event in traced.events()] == [ConsumeStartEvent, ConsumeEndEvent, ConsumeStartEvent]
    traced.traces.acknowledged(KEY, taken_ms)
    assert traced.events() == []


def test_a_renewed_delivery_goes_on_with_its_new_handle() -> None:
    traced = Traced()
    taken_ms = traced.deliver(stored())
    traced.traces.hidden(KEY, taken_ms, taken_ms + 1, taken_ms + 10 * MINUTE_MS)
    traced.clock.advance(120)
    assert [type(event) for event in traced.events()] == [ConsumeStartEvent]
    traced.traces.acknowledged(KEY, taken_ms)  # the former handle
    assert traced.events() == []
    traced.traces.acknowledged(KEY, taken_ms + 1)
    (end,) = traced.events()
    assert isinstance(end, ConsumeEndEvent)
    assert (end.success, end.cost_ms) == (True, 120_000)


def test_a_returned_message_has_failed_at_once() -> None:
    traced = Traced()
    taken_ms = traced.deliver(stored())
    traced.traces.returned(KEY, taken_ms)
    _, end = traced.events()
    assert isinstance(end, ConsumeEndEvent)
    assert (end.success, end.context_code, end.cost_ms) == (False, 4, 0)


def test_nothing_is_written_for_trace_messages_or_without_the_setting() -> None:
    traced = Traced()
    traced.traces.sent(send_trace("RMQ_SYS_TRACE_TOPIC"), None)
    traced.deliver(stored("UNIQ_KEY\x01ID\x02TRACE_ON\x01false"))
    traced.is_on = False
    traced.traces.sent(send_trace(), None)
    traced.traces.acknowledged(KEY, traced.deliver(stored()))
    assert traced.events() == []


def test_clients_never_share_a_trace_message() -> None:
    traced = Traced()
    for client in (CLIENT, OTHER, CLIENT):
        traced.traces.recalled(client, "T", "ID", is_success=True)
    asyncio.run(traced.writer.flush())
    assert [message.client for message in traced.messages] == [CLIENT, OTHER]
    assert traced.writer.written == 3


def test_records_wait_while_the_store_refuses_them_and_are_counted_beyond_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace_writer, "PENDING_MAX", 2)
    traced = Traced()
    traced.fault = StoreError("the disk is full")
    for _ in range(3):
        traced.traces.recalled(CLIENT, "T", "ID", is_success=True)
    asyncio.run(traced.writer.flush())
    assert (traced.writer.written, traced.writer.dropped) == (0, 1)
    traced.fault = None
    assert len(traced.events()) == 2
    assert (traced.writer.written, traced.writer.dropped) == (2, 1)


def test_pending_records_are_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_writer, "PENDING_BYTES_MAX", 1)
    traced = Traced()
    for _ in range(2):  # each finds the room that the ones before it have left
        for message_id in ("A", "B"):
            traced.traces.recalled(CLIENT, "T", message_id, is_success=True)
        assert [event.message_id for event in traced.events()] == ["A"]
    assert traced.writer.dropped == 2


def test_records_that_cannot_be_stored_at_the_end_are_counted() -> None:
    traced = Traced()
    traced.fault = StoreError("the disk is full")
    traced.traces.recalled(CLIENT, "T", "ID", is_success=True)
    asyncio.run(traced.writer.close())
    assert traced.writer.dropped == 1


def test_open_deliveries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_deliveries, "OPEN_MAX", 1)
    traced = Traced()
    traced.deliver(stored())
    traced.traces.delivered(CLIENT, KEY._replace(offset=4), DeliveredMessage.of(stored()), 1, 2)
    assert [type(event) for event in traced.events()] == [ConsumeStartEvent]
    assert traced.traces.untracked == 1


def test_open_deliveries_are_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of a message may have 32 KB."""
    large = stored("UNIQ_KEY\x01ID\x02KEYS\x01" + 30_000 * "k")
    monkeypatch.setattr(open_deliveries, "OPEN_BYTES_MAX", 60_000)
    traced = Traced()

    def deliver(offset: int) -> None:
        traced.traces.delivered(CLIENT, KEY._replace(offset=offset), DeliveredMessage.of(large), 1, EPOCH_MS + 1)

    for offset in range(3):
        deliver(offset)
    assert traced.traces.untracked == 1
    traced.traces.acknowledged(KEY._replace(offset=0), 1)
    deliver(3)
    assert traced.traces.untracked == 1
    traced.events()
    monkeypatch.setattr(message_traces, "LATE_BYTES_MAX", 40_000)
    traced.clock.advance(1)
    assert [event.success for event in traced.events() if isinstance(event, ConsumeEndEvent)] == [False, False]
    for offset in (1, 3):  # the room is enough for one that is acknowledged late
        traced.traces.acknowledged(KEY._replace(offset=offset), 1)
    assert [event.success for event in traced.events() if isinstance(event, ConsumeEndEvent)] == [True]
