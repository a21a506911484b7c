"""Delayed messages: their redirection to delay topics, and the loop that delivers the due ones.

    send → `schedule` → SCHEDULE_TOPIC_XXXX (a level) or rmq_sys_wheel_timer (a time)
         → store.delayed → `DeliveryLoop` → original topic

A message is never delivered early, by this machine's clock, and never lost: the log itself records deliveries. A message that
cannot be delivered is logged and skipped; a store that rejects writes is retried.
[ScheduleMessageService, TimerMessageStore of 5.x]
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple, Protocol

import msgspec

from ariane.clock import Clock
from ariane.errors import MessageRefused, ProtocolError, ReplyError, StoreError
from ariane.model.message import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    START_DELIVER_TIME,
    TAGS,
    TIMER_CANCELS,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
)
from ariane.model.topic import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, topic_name_fault
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records import properties, record
from ariane.store.delays.delay_levels import DueMessage
from ariane.store.delays.delay_queues import CANCEL_QUEUE, TIMER_QUEUE
from ariane.store.message_store import AppendResult, MessageStore, RecordDraft

log = logging.getLogger("ariane.broker.delivery.delayed_delivery")

SLICE = 64  # deliveries without a pause for other tasks
IDLE_S = 1.0  # longest sleep: the wall clock may be set in the meantime
RETRY_S = 1.0  # after the store rejected a write
LATE_MS = 1000  # a delivery this late counts as late

# Properties with a delivery time, and their unit in ms; None: an absolute time in ms. Earlier ones win, as in 5.x.
DELIVERY_TIME_UNITS_MS = {START_DELIVER_TIME: None, TIMER_DELAY_SEC: 1000, TIMER_DELAY_MS: 1, TIMER_DELIVER_MS: None}
DELAY_PROPERTIES = frozenset({DELAY, *DELIVERY_TIME_UNITS_MS})


class DelayTarget(NamedTuple):
    """Queue that stores a delayed message until it is due."""

    topic: str
    queue_id: int
    tags_code: int | None  # due time in ms of a timer; that of a level is computed when it is stored


class DelayLimits(NamedTuple):
    """Limits of delays."""

    levels: int  # number of delay levels
    floor_ms: int  # timers must be due after this time: earlier ones may be marked as delivered already
    max_delay_ms: int  # longest delay of a timer


def delay_target(
    property_map: dict[str, str], topic: str, queue_id: int, now_ms: int, limits: DelayLimits
) -> DelayTarget | None:
    """Return the queue that a message with these properties is stored in until it is due; None if it is not delayed.

    Changes `property_map` to the properties to store. A delay level wins over a delivery time and removes it.

    Raises:
        ProtocolError: the delivery time is malformed or too far ahead.
    """
    level = _number(property_map, DELAY) if DELAY in property_map else 0
    if level > 0:
        for name in DELIVERY_TIME_UNITS_MS:
            property_map.pop(name, None)
        property_map[DELAY] = str(min(level, limits.levels))
        property_map[REAL_TOPIC], property_map[REAL_QID] = topic, str(queue_id)
        return DelayTarget(SCHEDULE_TOPIC, min(level, limits.levels) - 1, None)
    name = next((name for name in DELIVERY_TIME_UNITS_MS if name in property_map), "")
    if not name:
        return None
    unit_ms, value = DELIVERY_TIME_UNITS_MS[name], _number(property_map, name)
    due_ms = value if unit_ms is None else now_ms + value * unit_ms
    for other in DELIVERY_TIME_UNITS_MS:
        if other != START_DELIVER_TIME:
            property_map.pop(other, None)
    if name != START_DELIVER_TIME:
        property_map[TIMER_DELIVER_MS] = str(
            due_ms
        )  # absolute: a relative delay would restart if the message is sent again
    if due_ms <= now_ms:
        return None
    if due_ms - now_ms > limits.max_delay_ms:
        days = limits.max_delay_ms / 86_400_000
        raise ProtocolError(
            f"{name}={value} is {(due_ms - now_ms) / 86_400_000:.1f} days ahead, at most {days:g} are allowed (timerMaxDelaySec)"
        )
    due_ms = max(due_ms, limits.floor_ms + 1)
    property_map[REAL_TOPIC], property_map[REAL_QID], property_map[TIMER_OUT_MS] = topic, str(queue_id), str(due_ms)
    return DelayTarget(TIMER_TOPIC, TIMER_QUEUE, due_ms)


def schedule(draft: RecordDraft, property_map: dict[str, str], now_ms: int, limits: DelayLimits) -> RecordDraft:
    """Return the draft to append: redirected if its properties ask for a delay, otherwise unchanged.

    Args:
        property_map: The decoded properties of `draft`.
    """
    if DELAY_PROPERTIES.isdisjoint(property_map):
        return draft
    target = delay_target(property_map, draft.topic, draft.queue_id, now_ms, limits)
    text = properties.join(property_map)
    if target is None:
        return msgspec.structs.replace(draft, properties=text)
    return msgspec.structs.replace(
        draft, topic=target.topic, queue_id=target.queue_id, properties=text, tags_code=target.tags_code
    )


def delay_properties(property_map: dict[str, str]) -> set[str]:
    """Return the names of the properties that ask for a delay. Level 0, which Java clients may write, asks for none."""
    return DELIVERY_TIME_UNITS_MS.keys() & property_map.keys() | (
        {DELAY} if property_map.get(DELAY, "0") != "0" else set()
    )


def remove_delay(property_map: dict[str, str]) -> None:
    """Remove all properties that ask for a delay."""
    for name in DELAY_PROPERTIES:
        property_map.pop(name, None)


def _number(property_map: dict[str, str], name: str) -> int:
    text = property_map[name]
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        unit = "a delay level" if name == DELAY else "a time"
        raise ProtocolError(f"invalid {name}={text!r}: expected {unit} as a whole number ≥ 0")
    return int(text)


class DelayCounters(msgspec.Struct):
    """Deliveries since the start, for operators."""

    delivered: int = 0
    late: int = 0  # by LATE_MS or more
    max_late_ms: int = 0
    failed: int = 0  # could not be delivered, skipped
    cancelled: int = 0


class DeliveryListener(Protocol):
    """Continues with delivered messages. [PostStoreDispatcher]"""

    def on_stored(self) -> None:
        """Schedule the dispatch of stored messages."""
        ...

    def on_delivered(self, message: DueMessage, draft: RecordDraft, size: int) -> None:
        """Count a delayed message that was delivered to its topic."""
        ...


class DeliveryLoop:
    """Delivers due messages. Call `wake` after a message was scheduled."""

    def __init__(self, *, store: MessageStore, listener: DeliveryListener, clock: Clock) -> None:
        self.counts = DelayCounters()
        self._store = store
        self._listener = listener
        self._clock = clock
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Look for due messages now instead of at the end of the current sleep."""
        self._woken.set()

    async def run(self) -> None:
        """Deliver due messages until cancelled."""
        fault = ""
        while True:
            self._woken.clear()
            try:
                count = self.deliver(SLICE)
            except StoreError as error:
                if str(error) != fault:
                    fault = str(error)
                    log.error("Delayed messages are due but the store rejects writes; retrying: %s", error)
                await self._clock.sleep(RETRY_S)
                continue
            fault = ""
            if count == SLICE:
                await asyncio.sleep(0)
                continue
            await self._sleep()

    async def _sleep(self) -> None:
        next_ms = self._store.delayed.next_due_ms()
        wait_s = IDLE_S if next_ms is None else min(max(next_ms - self._clock.now_ms(), 0) / 1000, IDLE_S)
        timer = self._clock.call_later(wait_s, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()

    def deliver(self, count: int) -> int:
        """Deliver at most `count` due messages, and return the number of processed entries.

        Raises:
            StoreError: the store rejects writes.
        """
        store, delayed = self._store, self._store.delayed
        for done in range(count):
            now_ms = self._clock.now_ms()
            message = delayed.next_due(now_ms)
            if message is None:
                if done:
                    self._listener.on_stored()
                return done
            self._deliver(message, now_ms)
            delayed.mark_delivered(message, store.commit_log_max)
        self._listener.on_stored()
        return count

    def _deliver(self, message: DueMessage, now_ms: int) -> None:
        counts = self.counts
        data = self._store.read_queue_record(message.topic, message.queue_id, message.number)
        try:
            if data is None:
                raise ProtocolError("its record is missing or corrupt")
            draft = restore_original(data, message)
            result = self._store.put(draft)
        except (ProtocolError, MessageRefused) as error:
            counts.failed += 1
            log.error(
                "Skipping entry %d of %s queue %d, due at %d ms: %s",
                message.number,
                message.topic,
                message.queue_id,
                message.due_ms,
                error,
            )
            return
        late_ms = now_ms - message.due_ms
        counts.delivered += 1
        counts.late += late_ms >= LATE_MS
        counts.max_late_ms = max(counts.max_late_ms, late_ms)
        self._listener.on_delivered(message, draft, result.size)

    def cancel(self, number: int, due_ms: int, born_host: bytes, unique_key: str = "") -> AppendResult:
        """Append the cancellation of a pending timer.

        Args:
            number: Entry of the timer in its queue.
            born_host: Packed address of the client.
            unique_key: That of the message, by which the pipeline finds its cancellation; empty: it has none.

        Raises:
            ReplyError: the timer is not pending.
        """
        if not self._store.delayed.is_pending(number, due_ms):
            raise ReplyError(ResponseCode.SYSTEM_ERROR, "the message was delivered or cancelled before")
        now_ms = self._clock.now_ms()
        about = {TIMER_CANCELS: str(number)}
        if unique_key:
            about[TIMER_DEL_UNIQKEY] = unique_key
        result = self._store.put(
            RecordDraft(
                topic=TIMER_TOPIC,
                queue_id=CANCEL_QUEUE,
                body=b"",
                born_ms=now_ms,
                born_host=born_host,
                properties=properties.join(about),
                tags_code=number,
            )
        )
        self._store.delayed.cancel(number, result.queue_offset, self._store.commit_log_max)
        self.counts.cancelled += 1
        self._listener.on_stored()
        return result


def move_timers(store: MessageStore, log_offset: int) -> int:
    """Append the pending timers below `log_offset` again, before the files up to there are removed.

    Each copy names the record that it replaces, as a delivery does, so that it is delivered once even after a crash. Return the end
    of the last copy; 0 if there were no timers.
    """
    end = 0
    for due_ms, number in store.delayed.timers_before(log_offset):
        data = store.read_queue_record(TIMER_TOPIC, TIMER_QUEUE, number)
        if data is None:
            log.error("Lost timer %d, due at %d: it cannot be read and its file is being removed", number, due_ms)
            continue
        stored = record.decode(data)
        draft = RecordDraft(
            topic=TIMER_TOPIC,
            queue_id=TIMER_QUEUE,
            body=stored.body,
            properties=stored.properties,
            flag=stored.flag,
            sys_flag=stored.sys_flag,
            born_ms=stored.born_ms,
            born_host=stored.born_host,
            reconsume_times=stored.reconsume_times,
            prepared_offset=~stored.offset,
            tags_code=due_ms,
        )
        result = store.put(draft)
        end = result.offset + result.size
        store.delayed.mark_restored(number, end)
    return end


def restore_original(data: bytes, message: DueMessage) -> RecordDraft:
    """Return the message to deliver for a delayed record.

    The message of a level keeps DELAY, REAL_TOPIC and REAL_QID, as in 4.9.4; that of a timer keeps the requested time.

    Raises:
        ProtocolError: the record names no topic that it can be delivered to.
    """
    stored = record.decode(data)
    property_map = stored.property_map()
    topic, queue_text = property_map.get(REAL_TOPIC, ""), property_map.get(REAL_QID, "")
    fault = topic_name_fault(topic)
    if fault or not queue_text.isdecimal() or topic in (HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC):
        raise ProtocolError(f"cannot deliver to topic {topic!r}, queue {queue_text!r}: {fault or 'invalid target'}")
    text = stored.properties
    if message.topic == TIMER_TOPIC:
        del property_map[REAL_TOPIC], property_map[REAL_QID]
        property_map.pop(TIMER_OUT_MS, None)
        text = properties.join(property_map)
    return RecordDraft(
        topic=topic,
        queue_id=int(queue_text),
        body=stored.body,
        properties=text,
        tags=property_map.get(TAGS, ""),
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        born_ms=stored.born_ms,
        born_host=stored.born_host,
        reconsume_times=stored.reconsume_times,
        prepared_offset=~stored.offset,
    )


class DeliveryTimer(NamedTuple):
    """A message stored in the timer topic."""

    number: int  # entry in its queue
    due_ms: int
    unique_key: str


def decode_timer(data: bytes | None) -> DeliveryTimer | None:
    """Return the timer that a record stores; None for other records."""
    if data is None:
        return None
    stored = record.decode(data)
    due_text = stored.property_map().get(TIMER_OUT_MS, "")
    if stored.topic != TIMER_TOPIC or stored.queue_id != TIMER_QUEUE or not due_text.isdecimal():
        return None
    return DeliveryTimer(stored.queue_offset, int(due_text), stored.property_map().get(UNIQ_KEY, ""))
