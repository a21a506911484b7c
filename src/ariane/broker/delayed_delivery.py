"""Delayed messages: what makes a message one, and the loop that delivers what is due.

    send → `delayed` → SCHEDULE_TOPIC_XXXX (a level) or rmq_sys_wheel_timer (a time) → store.delayed → `Deliveries` → real topic

Never before its time, by this machine's clock; never lost: what was delivered is known from the log itself. A message that
cannot be delivered is reported and passed over, a store that takes no writes is waited for.
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
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
)
from ariane.model.topic import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, topic_name_fault
from ariane.protocol import properties, record
from ariane.protocol.codes import ResponseCode
from ariane.store.delay_levels import DueMessage
from ariane.store.delay_queues import CANCEL_QUEUE, TIMER_QUEUE
from ariane.store.message_store import AppendResult, MessageStore, RecordDraft

log = logging.getLogger("ariane.broker.delayed_delivery")

SLICE = 64  # deliveries between two looks at the sockets
IDLE_S = 1.0  # longest sleep: the wall clock may be set meanwhile
RETRY_S = 1.0  # after the store took no write
LATE_MS = 1000  # a delivery this late counts as late

# Properties that ask for a time, and how many ms their unit has; None: an absolute time in ms. Earlier ones win, as in 5.x.
DELIVERY_TIME_UNITS_MS = {START_DELIVER_TIME: None, TIMER_DELAY_SEC: 1000, TIMER_DELAY_MS: 1, TIMER_DELIVER_MS: None}
DELAY_PROPERTIES = frozenset({DELAY, *DELIVERY_TIME_UNITS_MS})


class DelayTarget(NamedTuple):
    """Where a delayed message is kept until it is due."""

    topic: str
    queue_id: int
    tags_code: int | None  # due time of a timer; a level's is known when it is stored


class DelayLimits(NamedTuple):
    """`levels`: how many there are. `floor_ms`: a timer must be due after it. `longest_ms`: how far ahead it may be."""

    levels: int
    floor_ms: int
    max_delay_ms: int


def delay_target(
    own: dict[str, str], topic: str, queue_id: int, now_ms: int, limits: DelayLimits
) -> DelayTarget | None:
    """Where a message with these properties has to be kept, or None when it is for now. `own` is changed to what is stored.

    ProtocolError names a property that says no time. A delay level wins over a time, and removes it.
    """
    level = _number(own, DELAY) if DELAY in own else 0
    if level > 0:
        for name in DELIVERY_TIME_UNITS_MS:
            own.pop(name, None)
        own[DELAY] = str(min(level, limits.levels))
        own[REAL_TOPIC], own[REAL_QID] = topic, str(queue_id)
        return DelayTarget(SCHEDULE_TOPIC, min(level, limits.levels) - 1, None)
    name = next((name for name in DELIVERY_TIME_UNITS_MS if name in own), "")
    if not name:
        return None
    unit, asked = DELIVERY_TIME_UNITS_MS[name], _number(own, name)
    due_ms = asked if unit is None else now_ms + asked * unit
    for other in DELIVERY_TIME_UNITS_MS:
        if other != START_DELIVER_TIME:
            own.pop(other, None)
    if name != START_DELIVER_TIME:
        own[TIMER_DELIVER_MS] = str(due_ms)  # a delay, sent again with its properties, would begin anew
    if due_ms <= now_ms:
        return None
    if due_ms - now_ms > limits.max_delay_ms:
        days = limits.max_delay_ms / 86_400_000
        raise ProtocolError(
            f"{name}={asked} is {(due_ms - now_ms) / 86_400_000:.1f} days ahead, at most {days:g} are allowed (timerMaxDelaySec)"
        )
    due_ms = max(due_ms, limits.floor_ms + 1)
    own[REAL_TOPIC], own[REAL_QID], own[TIMER_OUT_MS] = topic, str(queue_id), str(due_ms)
    return DelayTarget(TIMER_TOPIC, TIMER_QUEUE, due_ms)


def schedule(draft: RecordDraft, property_map: dict[str, str], now_ms: int, limits: DelayLimits) -> RecordDraft:
    """`draft`, whose properties are `own`, as it has to be stored now: itself, or kept until it is due."""
    if DELAY_PROPERTIES.isdisjoint(property_map):
        return draft
    where = delay_target(property_map, draft.topic, draft.queue_id, now_ms, limits)
    text = properties.join(property_map)
    if where is None:
        return msgspec.structs.replace(draft, properties=text)
    return msgspec.structs.replace(
        draft, topic=where.topic, queue_id=where.queue_id, properties=text, tags_code=where.tags_code
    )


def delay_properties(own: dict[str, str]) -> set[str]:
    """Which properties ask for a delay. Level 0, which Java clients write down when they are told it, asks for none."""
    return DELIVERY_TIME_UNITS_MS.keys() & own.keys() | ({DELAY} if own.get(DELAY, "0") != "0" else set())


def remove_delay(own: dict[str, str]) -> None:
    """Let a message go at once, whatever it was asked for (dead letters)."""
    for name in DELAY_PROPERTIES:
        own.pop(name, None)


def _number(own: dict[str, str], name: str) -> int:
    text = own[name]
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise ProtocolError(f"{name}={text!r} is not a whole number of {'levels' if name == DELAY else 'time'} ≥ 0")
    return int(text)


class DelayCounters(msgspec.Struct):
    """What was delivered since the start, for operators."""

    delivered: int = 0
    late: int = 0
    max_late_ms: int = 0
    failed: int = 0
    cancelled: int = 0


class DeliveryListener(Protocol):
    """Continues with delivered messages. [PostStoreDispatcher]"""

    def on_stored(self) -> None:
        """Schedule the dispatch of stored messages."""
        ...

    def on_delivered(self, due: DueMessage, draft: RecordDraft, size: int) -> None:
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
        self._woken.set()

    async def run(self) -> None:
        """Deliver for ever."""
        fault = ""
        while True:
            self._woken.clear()
            try:
                count = self.deliver(SLICE)
            except StoreError as error:
                if str(error) != fault:
                    fault = str(error)
                    log.error("Delayed messages are due but the store rejects writes; retrying: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            fault = ""
            if count == SLICE:
                await asyncio.sleep(0)
                continue
            await self._sleep()

    async def _sleep(self) -> None:
        next_ms = self._store.delayed.next_due_ms()
        wait_s = IDLE_S if next_ms is None else min(max(next_ms - self._clock.now_ms(), 0) / 1000, IDLE_S)
        timer = asyncio.get_running_loop().call_later(wait_s, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()

    def deliver(self, count: int) -> int:
        """Deliver up to `count` messages that are due; how many entries were done. StoreError: the store takes no write."""
        store, waiting = self._store, self._store.delayed
        for at in range(count):
            now_ms = self._clock.now_ms()
            due = waiting.next_due(now_ms)
            if due is None:
                if at:
                    self._listener.on_stored()
                return at
            self._deliver(due, now_ms)
            waiting.mark_delivered(due, store.commit_log_max)
        self._listener.on_stored()
        return count

    def _deliver(self, due: DueMessage, now_ms: int) -> None:
        counts = self.counts
        data = self._store.read_queue_record(due.topic, due.queue_id, due.number)
        try:
            if data is None:
                raise ProtocolError("its record is gone or damaged")
            draft = restore_original(data, due)
            placed = self._store.put(draft)
        except (ProtocolError, MessageRefused) as fault:
            counts.failed += 1
            log.error(
                "%s queue %d entry %d, due at %d ms, is not delivered: %s",
                due.topic,
                due.queue_id,
                due.number,
                due.due_ms,
                fault,
            )
            return
        late_ms = now_ms - due.due_ms
        counts.delivered += 1
        counts.late += late_ms >= LATE_MS
        counts.max_late_ms = max(counts.max_late_ms, late_ms)
        self._listener.on_delivered(due, draft, placed.size)

    def cancel(self, number: int, due_ms: int, born_host: bytes) -> AppendResult:
        """Write down that a pending timer is not to be delivered; where that note lies.

        ReplyError when it is no longer pending.
        """
        if not self._store.delayed.is_pending(number, due_ms):
            raise ReplyError(ResponseCode.SYSTEM_ERROR, "it was delivered or cancelled before")
        now_ms = self._clock.now_ms()
        placed = self._store.put(
            RecordDraft(
                topic=TIMER_TOPIC,
                queue_id=CANCEL_QUEUE,
                body=b"",
                born_ms=now_ms,
                born_host=born_host,
                properties=properties.join({TIMER_CANCELS: str(number)}),
                tags_code=number,
            )
        )
        self._store.delayed.cancel(number, placed.queue_offset, self._store.commit_log_max)
        self.counts.cancelled += 1
        self._listener.on_stored()
        return placed


def move_timers(store: MessageStore, log_offset: int) -> int:
    """Store the pending timers below `log_offset` once more, before the log begins there; where the last one ends.

    Each names the record that it stands for, as a delivery does: whatever happens, it is delivered once.
    """
    end = 0
    for due_ms, number in store.delayed.timers_before(log_offset):
        data = store.read_queue_record(TIMER_TOPIC, TIMER_QUEUE, number)
        if data is None:
            log.error("timer %d, due at %d, cannot be read: it is lost with the file that is removed", number, due_ms)
            continue
        kept = record.decode(data)
        draft = RecordDraft(
            topic=TIMER_TOPIC,
            queue_id=TIMER_QUEUE,
            body=kept.body,
            properties=kept.properties,
            flag=kept.flag,
            sys_flag=kept.sys_flag,
            born_ms=kept.born_ms,
            born_host=kept.born_host,
            reconsume_times=kept.reconsume_times,
            prepared_offset=~kept.offset,
            tags_code=due_ms,
        )
        placed = store.put(draft)
        end = placed.offset + placed.size
        store.delayed.mark_restored(number, end)
    return end


def restore_original(data: bytes, due: DueMessage) -> RecordDraft:
    """The message that a delayed record stands for. ProtocolError when it stands for none.

    A level's message keeps DELAY, REAL_TOPIC and REAL_QID, as in 4.9.4; a timer's keeps what it was asked for.
    """
    kept = record.decode(data)
    own = kept.property_map()
    topic, queue_text = own.get(REAL_TOPIC, ""), own.get(REAL_QID, "")
    fault = topic_name_fault(topic)
    if fault or not queue_text.isdecimal() or topic in (HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC):
        raise ProtocolError(f"it was for {topic or 'no topic'!r}, queue {queue_text!r}: {fault or 'not deliverable'}")
    text = kept.properties
    if due.topic == TIMER_TOPIC:
        del own[REAL_TOPIC], own[REAL_QID]
        own.pop(TIMER_OUT_MS, None)
        text = properties.join(own)
    return RecordDraft(
        topic=topic,
        queue_id=int(queue_text),
        body=kept.body,
        properties=text,
        tags=own.get(TAGS, ""),
        flag=kept.flag,
        sys_flag=kept.sys_flag,
        born_ms=kept.born_ms,
        born_host=kept.born_host,
        reconsume_times=kept.reconsume_times,
        prepared_offset=~kept.offset,
    )


class DeliveryTimer(NamedTuple):
    """A message that waits in the timer topic."""

    number: int
    due_ms: int
    unique_key: str


def decode_timer(data: bytes | None) -> DeliveryTimer | None:
    """The timer that a record of the log is; None when it is none."""
    if data is None:
        return None
    kept = record.decode(data)
    due = kept.property_map().get(TIMER_OUT_MS, "")
    if kept.topic != TIMER_TOPIC or kept.queue_id != TIMER_QUEUE or not due.isdecimal():
        return None
    return DeliveryTimer(kept.queue_offset, int(due), kept.property_map().get(UNIQ_KEY, ""))
