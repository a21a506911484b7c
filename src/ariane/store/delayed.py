"""What is delayed, and what of it is due: the levels of 4.9.4 and any-time timers, both derived from queues of the log.

    SCHEDULE_TOPIC_XXXX, queue = level - 1    due times ascend by themselves: a position per level says what is delivered
    rmq_sys_wheel_timer, queue 0              due in any order: entries go through `pending`
    rmq_sys_wheel_timer, queue 1              cancellations: the tags code is the number of the entry in queue 0

The tags code of an entry is its due time. A delivered record carries the complement (~) of the delayed one's commit log offset
as its prepared offset, so what was delivered since `timers/state` was written is found when the log is read at start:

    timers/state   JSON: runs, next run, position in queue 0 up to which the runs reach; and a mark: the entries below `seen`
                   and at or before `done` are delivered, as are those of each level below its position

A mark counts only once the log is flushed beyond it: nothing is called delivered that a loss of power could take back. When
the state is lost, all of it is found again from the log. [ScheduleMessageService, TimerMessageStore of 5.x]
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ariane.model.message import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from ariane.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC
from ariane.store.consume_queue import BLANK_SIZE, ENTRY, LOST_CODE, ConsumeQueue
from ariane.store.consume_queues import ConsumeQueues
from ariane.store.files import OpenFiles, read_whole
from ariane.store.pending_deliveries import LOWEST_KEY, CorruptRun, Key, PendingDeliveries
from ariane.store.record_scanner import NotARecord, RecordScanner, ScannedRecord, compute_tags_code, read_record
from ariane.store.segments import Segments

log = logging.getLogger("ariane.store")

TIMERS, CANCELS = 0, 1  # queues of the timer topic
AT_ONCE = 1000  # entries read in one go
DUE_MIN_MS = 10**12  # a tags code below is no time of this century: Java made the entry, and hashed the tags


class DueMessage(NamedTuple):
    """An entry that is due: its queue and number there, and since when."""

    topic: str
    queue_id: int
    number: int
    due_ms: int


class DelayMark(NamedTuple):
    """What was delivered when the log ended at `log_end`."""

    log_end: int
    done: Key
    seen: int
    levels: tuple[int, ...]


class DelayState(msgspec.Struct, frozen=True, rename="camel"):
    """timers/state."""

    runs: list[int] = []
    next_run: int = 0
    position: int = 0
    done: Key = LOWEST_KEY
    seen: int = 0
    cancels: int = 0
    delivered: list[int] = []
    levels: list[int] = []
    ahead: list[tuple[int, int]] = []


class DelayedMessages:
    """`due`, then `done`, one after the other. One thread, as the store."""

    def __init__(self, files: OpenFiles, root: str, queues: ConsumeQueues, segments: Segments, delays: Sequence[int]):
        self.directory = f"{root}/timers"
        self.arrived = False  # something was delayed since this was last set to False
        self._disk = files.disk
        self._queues = queues
        self._segments = segments
        self._delays = delays
        self._pending = PendingDeliveries(files, self.directory)
        self._levels = [0] * len(delays)
        self._heads: list[DueMessage | None] = [None] * len(
            delays
        )  # next entry of each level, as far as it was looked up
        self._first_seen: dict[int, tuple[int, int]] = {}  # level: its head, and when it was met too far ahead
        self._position = 0  # entries of the timer queue below it are pending or done
        self._written = 0  # those below it are in runs
        self._cancel_position = 0
        self._cancels: dict[int, int] = {}  # cancelled timer: its number in the cancel queue
        self._spent: dict[int, Key] = {}  # cancellations that were obeyed, until a mark behind them is written
        self._late: set[int] = set()  # came with a due time that others had passed already
        self._delivered: set[int] = set()  # found in the log, not yet met in order
        self._ahead: set[tuple[int, int]] = (
            set()
        )  # level and number of what was delivered at or behind the level's mark
        self._moved: dict[int, int] = {}  # of those: moved by a record that ends there, perhaps not flushed yet
        self._marks: deque[DelayMark] = deque()
        self._saved = DelayState()
        self._saving: DelayState | None = None

    # --- at start ---

    def load(self, delivered: Iterable[int], log_end: int, java_levels: Mapping[int, int]) -> list[str]:
        """Take up where the last process was. `delivered`: commit log offsets of what the log says was delivered since;
        `java_levels`: positions by level that Java's delayOffset.json knows. What had to be mended, in words."""
        state, notes = self._state()
        timers = self._queue(TIMER_TOPIC, TIMERS)
        low, high = (0, 0) if timers is None else (timers.min_offset(self._segments.start), timers.max)
        if state is not None and max(state.position, state.seen) > high:
            notes.append(f"{self.directory} knows of timers that the log lost")
            state = None
        if state is not None:
            try:
                self._pending.load(state.runs, state.next_run, state.done)
            except CorruptRun as fault:
                notes.append(str(fault))
                state = None
                self._pending.clear()
        if state is None and (high > low or (self._levels_used() and not java_levels)):
            notes.append("what is delayed, and what of it was delivered, is derived again from the whole commit log")
            delivered = self._all_delivered(log_end)
        state = state or DelayState(position=low, seen=low)
        self._saved = state
        self._levels = [
            max(state.levels[at] if at < len(state.levels) else 0, java_levels.get(at + 1, 0))
            for at in range(len(self._delays))
        ]
        self._delivered.update(state.delivered)
        self._ahead.update(state.ahead)
        self._take_delivered(delivered)
        self._clamp_levels()
        self._position = self._written = max(low, state.position)
        self._cancel_position = state.cancels
        self._read_cancels()
        self._read_timers(done=state.done, seen=state.seen)
        self._mark(log_end)
        return notes

    def _state(self) -> tuple[DelayState | None, list[str]]:
        path = f"{self.directory}/state"
        data = read_whole(self._disk, path)
        if not data:
            return None, []
        try:
            return msgspec.json.decode(data, type=DelayState), []
        except msgspec.DecodeError as error:
            return None, [f"{path} cannot be read ({error})"]

    def _all_delivered(self, log_end: int) -> list[int]:
        at, found = self._segments.start, []
        while at < log_end:
            walk = RecordScanner(self._segments, at, log_end, check_crc=False, min_store_ms=0, all_written=True)
            found += [~one.prepared_offset for one in walk if is_delivery(one)]
            at = walk.end
            if at < log_end:
                at += self._segments.size - at % self._segments.size
        return found

    def _take_delivered(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            try:
                found = read_record(self._segments, offset)[0]
            except NotARecord:
                continue
            topic = found.topic.decode("utf-8", "replace")
            if topic == TIMER_TOPIC:
                self._delivered.add(found.queue_offset)
            elif topic == SCHEDULE_TOPIC and found.queue_id < len(self._levels):
                self._ahead.add((found.queue_id, found.queue_offset))

    def _levels_used(self) -> bool:
        return any(self._queue(SCHEDULE_TOPIC, level) is not None for level in range(len(self._delays)))

    def _clamp_levels(self) -> None:
        for level in range(len(self._levels)):
            queue = self._queue(SCHEDULE_TOPIC, level)
            high = 0 if queue is None else queue.max
            self._levels[level] = min(self._levels[level], high)

    # --- what arrives ---

    def catch_up(self, log_end: int) -> None:
        """Take in the entries that were derived since the last time."""
        self._read_cancels()
        timers = self._queues.get((TIMER_TOPIC, TIMERS))
        if timers is not None and timers.max > self._position:
            self._read_timers(done=self._pending.last, seen=0)
        self._mark(log_end)
        self.arrived = True

    def follow(self, delivered: Iterable[int], log_end: int) -> None:
        """As `catch_up`, on a slave: its master delivered what lies at these commit log offsets."""
        self.catch_up(log_end)
        self._take_delivered(delivered)
        self._heads = [None] * len(self._levels)
        self._timer()  # puts aside what was delivered, up to the first that was not
        self._mark(log_end)

    def _read_timers(self, *, done: Key, seen: int) -> None:
        """Push what is pending of the timer queue from the position on. Entries below `seen` are done if at or before `done`."""
        queue = self._queue(TIMER_TOPIC, TIMERS)
        if queue is None:
            return
        last = self._pending.last
        for number, offset, size, code in self._entries(queue, self._position):
            key = (code if code >= DUE_MIN_MS else self._due_of(offset, size), number)
            # One that was delivered, too, when others before it were not (their delivery may be lost in a hole of the log): it is
            # known as delivered until it is met in its order.
            if number >= seen or key > done:
                self._pending.push(key)
                if key <= last:
                    self._late.add(number)
            else:
                self._delivered.discard(number)
        self._position = queue.max

    def _read_cancels(self) -> None:
        queue = self._queue(TIMER_TOPIC, CANCELS)
        if queue is None or queue.max <= self._cancel_position:
            return
        for at, _, _, code in self._entries(queue, self._cancel_position):
            if at not in self._spent:
                self._cancels[code] = at
        self._cancel_position = queue.max

    def _entries(self, queue: ConsumeQueue, start: int) -> Iterator[tuple[int, int, int, int]]:
        """Number, commit log offset, size and tags code of each entry from `start` on whose record is still there."""
        log_start = self._segments.start
        at = max(start, queue.min_offset(log_start))
        while at < queue.max:
            entries = queue.entries(at, AT_ONCE)
            if not entries:
                log.error("%s-%d: entries from %d on cannot be read", queue.topic, queue.queue_id, at)
                return
            for offset, size, code in ENTRY.iter_unpack(entries):
                if size != BLANK_SIZE and code != LOST_CODE and offset >= log_start:
                    yield at, offset, size, code
                at += 1

    def _due_of(self, offset: int, size: int) -> int:
        """Due time of a record whose entry does not tell it."""
        try:
            return compute_tags_code(read_record(self._segments, offset)[0], self._delays)
        except NotARecord:
            log.error("the timer at %d cannot be read (%d bytes): it is due at once, and reported then", offset, size)
            return 0

    def cancel(self, number: int, note: int, log_end: int) -> None:
        """Entry `note` of the cancel queue, which ends at or below `log_end`, says that timer `number` is not to be delivered.

        It counts at once, though the note may not be derived before it is flushed.
        """
        self._cancels[number] = note
        self._mark(log_end)

    def below(self, log_offset: int) -> list[Key]:
        """Pending timers whose records end before `log_offset`, where the log is about to begin."""
        queue = self._queue(TIMER_TOPIC, TIMERS)
        if queue is None:
            return []
        low, high = queue.min_offset(self._segments.start), queue.min_offset(log_offset)
        if high <= low:
            return []
        found = {key for key in self._pending.below(high) if self.is_pending(key[1], key[0])}
        return sorted(found, key=lambda key: key[1])

    def moved(self, number: int, log_end: int) -> None:
        """Timer `number` was stored once more, by a record that ends at `log_end`: that one is delivered in its place."""
        self._delivered.add(number)
        self._moved[number] = log_end
        self._mark(log_end)

    # --- what is due ---

    def next_ms(self) -> int | None:
        """When something is due next; None when nothing is delayed."""
        timer = self._timer()
        times = [head.due_ms for level in range(len(self._levels)) if (head := self._head(level)) is not None]
        if timer is not None:
            times.append(timer[0])
        return min(times, default=None)

    def due(self, now_ms: int) -> DueMessage | None:
        """The entry that is due for the longest time; it stays there until it is `done`."""
        timer = self._timer()
        first = (
            DueMessage(TIMER_TOPIC, TIMERS, timer[1], timer[0]) if timer is not None and timer[0] <= now_ms else None
        )
        for level in range(len(self._levels)):
            head = self._head(level)
            if head is None:
                continue
            due_ms = self._level_due_ms(level, head, now_ms)
            if due_ms <= now_ms and (first is None or due_ms < first.due_ms):
                first = head
        return first

    def done(self, due: DueMessage, log_end: int) -> None:
        """`due` was delivered, by a record that ends at or below `log_end`."""
        if due.topic == TIMER_TOPIC:
            self._late.discard(due.number)
            self._pending.advance((due.due_ms, due.number))
        else:
            self._levels[due.queue_id] = due.number + 1
            self._heads[due.queue_id] = None
        self._mark(log_end)

    def _timer(self) -> Key | None:
        """The timer that is due first, cancelled ones put aside."""
        while True:
            key = self._pending.head()
            if key is None:
                return None
            number = key[1]
            if number in self._cancels:
                self._spent[self._cancels.pop(number)] = key
            elif number in self._delivered:
                self._delivered.discard(number)
            else:
                return key
            self._late.discard(number)
            self._pending.advance(key)
            self._mark(self._marks[-1].log_end)

    def _head(self, level: int) -> DueMessage | None:
        head = self._heads[level]
        if head is not None:
            return head
        while (level, self._levels[level]) in self._ahead:
            self._levels[level] += 1
        queue = self._queue(SCHEDULE_TOPIC, level)
        if queue is None or queue.max <= self._levels[level]:
            return None
        low = queue.min_offset(self._segments.start)
        if self._levels[level] < low:
            log.error("delay level %d: entries %d to %d were removed undelivered", level + 1, self._levels[level], low)
            self._levels[level] = low
            return self._head(level)
        number = self._levels[level]
        offset, size, code = ENTRY.unpack(queue.entries(number, 1))
        due_ms = code if code >= DUE_MIN_MS else self._due_of(offset, size)
        self._heads[level] = DueMessage(SCHEDULE_TOPIC, level, number, due_ms)
        return self._heads[level]

    def _level_due_ms(self, level: int, head: DueMessage, now_ms: int) -> int:
        """A clock that was set back must not hold a level back: no entry waits longer than its delay once it is met."""
        latest = now_ms + self._delays[level]
        if head.due_ms <= latest:
            return head.due_ms
        number, capped_ms = self._first_seen.get(level, (-1, 0))
        if number != head.number or capped_ms > latest:
            capped_ms = latest
            self._first_seen[level] = (head.number, capped_ms)
        return capped_ms

    # --- for operators, and for who makes timers ---

    @property
    def floor_ms(self) -> int:
        """A new timer must be due after this time."""
        return self._pending.last[0]

    @property
    def timers(self) -> int:
        """Pending timers, cancelled ones counted until their time comes."""
        return len(self._pending)

    def is_pending(self, number: int, due_ms: int) -> bool:
        """Whether the timer with this number and due time is still to be delivered."""
        if number in self._cancels or number in self._delivered or number >= self._position:
            return False
        return (due_ms, number) > self._pending.last or number in self._late

    def level_positions(self) -> dict[int, int]:
        """Level: number of its next entry; levels that were never used are left out."""
        return {level + 1: number for level, number in enumerate(self._levels) if number}

    def saved_level_positions(self) -> dict[int, int]:
        """The same as far as a loss of power cannot take it back: for delayOffset.json."""
        return {level + 1: number for level, number in enumerate(self._saved.levels) if number}

    # --- the state on disk ---

    def begin_save(self, flushed: int) -> list[tuple[str, bytes]]:
        """Files to be written, in this order, before a checkpoint; empty when nothing changed."""
        if self._saving is not None:
            return []
        mark = self._flushed_mark(flushed)
        self._pending.drop_exhausted()
        run = self._pending.begin_write(mark.seen)
        runs = set(self._pending.runs)
        if run is not None:
            runs = runs - set(run.merged) | {run.number}
            self._written = run.up_to
        self._spent = {at: key for at, key in self._spent.items() if key > mark.done}
        self._ahead = {(level, number) for level, number in self._ahead if number >= mark.levels[level]}
        self._moved = {number: end for number, end in self._moved.items() if end > flushed}
        cancels = min([*self._cancels.values(), *self._spent], default=self._cancel_position)
        state = DelayState(
            runs=sorted(runs),
            next_run=self._pending.next_run,
            position=self._written,
            done=mark.done,
            seen=mark.seen,
            cancels=cancels,
            delivered=sorted(number for number in self._delivered if number not in self._moved),
            levels=list(mark.levels),
            ahead=sorted(self._ahead),
        )
        if state == self._saved:
            return []
        self._saving = state
        files = [] if run is None else [(run.path, run.content)]
        return [*files, (f"{self.directory}/state", msgspec.json.encode(state))]

    def end_save(self, *, written: bool) -> None:
        """What `begin_save` gave is on disk, or is not."""
        if self._saving is None:
            return
        if written:
            self._saved = self._saving
        else:
            self._written = self._saved.position
        self._saving = None
        self._pending.end_write(written=written)
        if written:
            self._pending.remove_other_files(self._saved.runs)

    def _mark(self, log_end: int) -> None:
        marks = self._marks
        if marks and marks[-1].log_end == log_end:
            marks.pop()
        marks.append(
            DelayMark(log_end, self._pending.last, min(self._late, default=self._position), tuple(self._levels))
        )

    def _flushed_mark(self, flushed: int) -> DelayMark:
        """The last mark that the flushed part of the log covers. The first one, made at start, always is."""
        marks = self._marks
        while len(marks) > 1 and marks[1].log_end <= flushed:
            marks.popleft()
        return marks[0]

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get_opened(topic, queue_id)


def is_delivery(found: ScannedRecord) -> bool:
    """Whether a record is the delivered form of a delayed one. A withdrawn one (`withdrawal`) delivered nothing."""
    return found.prepared_offset < 0 and found.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK


def collect_deliveries(records: Iterable[ScannedRecord], delivered: dict[int, int]) -> Iterator[ScannedRecord]:
    """The same records. The offsets of those that deliver a delayed one are collected on the way, with the delayed one's."""
    for found in records:
        if is_delivery(found):
            delivered[found.offset] = ~found.prepared_offset
        yield found
