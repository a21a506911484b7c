"""Clock offsets of brokers: which messages are read back, when, and what trace messages carry."""

from __future__ import annotations

import asyncio

from ariane.client.instance.instants import Instant
from ariane.client.instance.settings import TraceSettings
from ariane.client.tracing import broker_clocks
from ariane.client.tracing.broker_clocks import BrokerClocks
from ariane.client.tracing.offset_estimate import OffsetEstimate, OffsetSample
from ariane.client.tracing.trace_dispatcher import TraceDispatcher
from ariane.errors import ReplyError
from ariane.model import clock_offset
from ariane.model.clock_offset import ClockOffset
from ariane.model.message import Message
from ariane.model.trace_event import ConsumeStartEvent, MessageType, PublishEvent
from ariane.testing.clock import EPOCH_MS, FakeClock

BROKER = "10.0.0.2:10911"
AHEAD_MS = 1_200  # of the client: the offset is -1,200 ms


class World:
    """A broker whose messages can be read back, and a client whose clock is ahead of it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.clock.wall_offset_ms = AHEAD_MS
        self.stored_ms: dict[str, int] = {}  # by offset id
        self.read: list[str] = []
        self.fault: Exception | None = None
        self.clocks = BrokerClocks(self.read_store_ms, self.clock)

    async def read_store_ms(self, addr: str, offset_message_id: str, message_id: str) -> int:
        self.read.append(message_id)
        if self.fault is not None:
            raise self.fault
        return self.stored_ms[offset_message_id]

    def publish(self, number: int, *, there_ms: int = 1, back_ms: int = 1, body: int = 5) -> PublishEvent:
        started_ms = self.clock.now_ms()
        self.clock.advance_ms(there_ms)
        self.stored_ms[f"OFF{number}"] = int(self.clock.time_ms)
        self.clock.advance_ms(back_ms)
        event = PublishEvent(
            timestamp_ms=started_ms, region="r", group="P", topic="T", message_id=f"ID{number}", tags="", keys="",
            store_host=BROKER, body_length=body, cost_ms=there_ms + back_ms, message_type=MessageType.NORMAL,
            offset_message_id=f"OFF{number}", success=True,
        )  # fmt: skip
        self.clocks.on_publish(event)
        return event


def run(act) -> World:
    async def play() -> World:
        world = World()
        async with asyncio.timeout(5):
            await act(world)
            await world.clocks.close()
        return world

    return asyncio.run(play())


def test_the_offset_of_a_client_that_is_ahead_is_measured_with_its_error():
    async def act(world):
        world.publish(1, there_ms=3, back_ms=1)
        await world.clocks.settle()
        assert world.clocks.offsets == {BROKER: ClockOffset(-1_203, -1_195)}
        assert world.clocks.offsets[BROKER].offset_ms == -1_199
        assert world.clocks.offsets[BROKER].error_ms == 4

    run(act)


def test_samples_are_taken_at_growing_intervals():
    async def act(world):
        for number in range(200):
            world.publish(number)
            await world.clocks.settle()
            world.clock.advance_ms(98)
        assert world.read == ["ID0", "ID5", "ID15", "ID35", "ID75", "ID125", "ID175"]

    run(act)


def test_large_messages_are_not_read_back():
    async def act(world):
        world.publish(1, body=broker_clocks.BODY_MAX + 1)
        assert world.read == []

    run(act)


def test_a_broker_that_does_not_let_messages_be_read_is_asked_less_and_less_often():
    async def act(world):
        world.fault = ReplyError(3, "request type 33 not supported")
        for number in range(3_600):
            world.publish(number)
            await world.clocks.settle()
            world.clock.advance_ms(998)
        assert world.clocks.offsets == {}
        assert world.clocks.text(0.0) == ""
        assert 5 < len(world.read) < 15
        world.fault = None
        world.clock.advance(600)
        world.publish(4_000)
        await world.clocks.settle()
        assert world.clocks.offsets[BROKER].error_ms <= 3
        asked = len(world.read)
        world.clock.advance(5)
        world.publish(4_001)
        await world.clocks.settle()
        assert len(world.read) == asked + 1

    run(act)


def test_the_error_grows_until_the_next_sample():
    async def act(world):
        world.publish(1)
        await world.clocks.settle()
        error_ms = world.clocks.offsets[BROKER].error_ms
        world.clock.advance(100)
        assert world.clocks.offsets[BROKER].error_ms == error_ms + 50

    run(act)


def test_records_from_before_a_set_clock_have_no_offset():
    async def act(world):
        world.publish(1)
        await world.clocks.settle()
        before_s = world.clock.monotonic()
        world.clock.advance(1)
        assert world.clocks.text(before_s)
        world.clock.wall_offset_ms = 0
        assert world.clocks.text(before_s) == ""
        world.clock.advance(5)
        world.publish(2)
        await world.clocks.settle()
        assert world.clocks.text(before_s) == ""
        assert clock_offset.of_text(world.clocks.text(world.clock.monotonic())) == {BROKER: ClockOffset(-3, 3)}

    run(act)


def test_a_broker_whose_clock_was_set_is_measured_afresh():
    estimate = OffsetEstimate(Instant(EPOCH_MS, 0.0))
    assert estimate.add(OffsetSample(EPOCH_MS, 4, Instant(EPOCH_MS + 4, 0.004), EPOCH_MS + 1))
    assert estimate.bounds(Instant(EPOCH_MS + 4, 0.004), 0.001) == ClockOffset(-5, 3)
    later = Instant(EPOCH_MS + 5_004, 5.004)
    assert estimate.add(OffsetSample(EPOCH_MS + 5_000, 4, later, EPOCH_MS + 65_001))
    assert estimate.bounds(later, 5.0) is None
    assert estimate.bounds(Instant(EPOCH_MS + 5_005, 5.005), 5.0045) == ClockOffset(59_995, 60_003)


def test_a_sample_that_is_noted_late_is_not_used():
    estimate = OffsetEstimate(Instant(EPOCH_MS, 0.0))
    assert not estimate.add(OffsetSample(EPOCH_MS, 4, Instant(EPOCH_MS + 50, 0.05), EPOCH_MS + 1))
    assert estimate.sampled_s is None


def test_an_unknown_broker_has_the_offset_that_all_others_agree_on():
    offsets = {"a:1": ClockOffset(-10, -2), "b:1": ClockOffset(-6, 5)}
    assert clock_offset.to_broker(offsets, "b:1") == ClockOffset(-6, 5)
    assert clock_offset.to_broker(offsets, "c:1") == ClockOffset(-6, -2)
    assert clock_offset.to_broker(offsets | {"d:1": ClockOffset(7, 9)}, "c:1") is None
    assert clock_offset.to_broker({}, "c:1") is None


def test_entries_that_cannot_be_read_are_ignored():
    text = "a:1 -3 4,,b:1,c:1 x 5,d:1 5 4,e:1 1 99999999999999999999,f:1 0 0"
    assert clock_offset.of_text(text) == {"a:1": ClockOffset(-3, 4), "f:1": ClockOffset(0, 0)}


def test_a_text_longer_than_clients_write_is_ignored():
    entry = "a:1 -3 4,"
    assert clock_offset.of_text(entry * (clock_offset.TEXT_MAX // len(entry))) == {"a:1": ClockOffset(-3, 4)}
    assert clock_offset.of_text(entry * (clock_offset.TEXT_MAX // len(entry) + 1)) == {}


# --- in trace messages -------------------------------------------------------------------------------------------------


def consumed(number: int, now_ms: int) -> ConsumeStartEvent:
    return ConsumeStartEvent(
        timestamp_ms=now_ms, region="", group="G", request_id="R", message_id=f"ID{number}", retry_times=0, keys=""
    )


def sent_by(act, *, samples_of_traces: bool = True) -> list[Message]:
    """Return the trace messages of a client that records events in `act`."""
    messages: list[Message] = []

    async def play(world):
        async def send(message: Message) -> None:
            messages.append(message)
            if samples_of_traces:
                world.publish(1_000 + len(messages))

        async with TraceDispatcher(send, TraceSettings(), world.clock, world.clocks) as dispatcher:
            await act(world, dispatcher)

    run(play)
    return messages


def test_the_first_record_of_a_consumer_measures_the_offset_that_the_others_carry():
    async def act(world, dispatcher):
        dispatcher.record([consumed(number, world.clock.now_ms()) for number in range(5)])

    first, second = sent_by(act)
    assert (first.body.count(b"\x02"), second.body.count(b"\x02")) == (1, 4)
    assert first.properties == {}
    assert second.properties == {"CLOCK_OFFSETS": f"{BROKER} -1203 -1197"}


def test_the_traces_of_a_producer_carry_an_offset_from_the_first_on():
    async def act(world, dispatcher):
        dispatcher.record([world.publish(number) for number in range(5)])

    (only,) = sent_by(act)
    assert only.body.count(b"\x02") == 5
    assert only.properties == {"CLOCK_OFFSETS": f"{BROKER} -1203 -1197"}


def test_batches_stay_whole_if_no_sample_comes_of_them():
    async def act(world, dispatcher):
        dispatcher.record([consumed(number, world.clock.now_ms()) for number in range(5)])

    first, second = sent_by(act, samples_of_traces=False)
    assert (first.body.count(b"\x02"), second.body.count(b"\x02")) == (1, 4)
    assert second.properties == {}
