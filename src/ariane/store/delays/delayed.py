"""Delayed messages of a store: delay levels and timers, and the state that survives a restart.

    DelayLevels   (`delay_levels`)   positions of the delay levels
    Timers        (`timers`)         pending timers in order of their due times
    DeliveryLog   (`delivery_log`)   timers that are delivered or cancelled already

States of a delayed message; a message is delivered exactly once, also across crashes:

    state       | event                                | next state | recorded by
    ------------+--------------------------------------+------------+--------------------------------------------------------
    (none)      | put with a delay                     | pending    | record in a delay topic; its queue entry, once dispatched
    pending     | delivered                            | delivered  | delivered record with prepared offset ~(its own offset)
    pending     | cancelled (timers only)              | cancelled  | entry of the cancel queue
    pending     | its log file is about to be removed  | restored   | copy in the timer queue with prepared offset ~(its own)
    delivered,  | its turn comes, and the log is       | forgotten  | mark in `timers/state`: level position, or `done`, which
    cancelled,  | flushed beyond the record that       |            | covers it
    restored    | recorded it                          |            |
    delivered,  | power loss before that record was    | pending    | the record is not in the log: delivery is repeated
    restored    | flushed                              |            |

    timers/state   JSON (`DelayState`): runs, next run, position in the timer queue up to which the runs reach; and a mark: the
                   timers below number `seen` and at or before `done` are delivered, as are those of each level below its position

A mark counts only once the log is flushed beyond it: nothing is called delivered that a loss of power could take back. If the
state is lost, it is rebuilt from the log. [ScheduleMessageService, TimerMessageStore of 5.x]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

import msgspec

from ariane.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC
from ariane.store.delays.delay_levels import DelayLevels, DueMessage
from ariane.store.delays.delay_queues import TIMER_QUEUE, DelayQueues
from ariane.store.delays.delivery_log import DeliveryLog, read_delayed_records, scan_deliveries
from ariane.store.delays.pending_deliveries import LOWEST_KEY, CorruptRun, Key
from ariane.store.delays.timers import Timers
from ariane.store.disk.files import OpenFiles, read_whole
from ariane.store.disk.segments import Segments
from ariane.store.queues.consume_queues import ConsumeQueues

JAVA_PRECISION_MS = 2_000  # twice the length of a slot of Java's timer wheel
# [TimerCheckpoint] time up to which the wheel was read, position in the timer log, number of the next entry of the timer queue
_CHECK_POINT = Struct(">qqq")


class DelayMark(NamedTuple):
    """What was delivered when the log ended at `log_end`."""

    log_end: int
    done: Key
    seen: int
    levels: tuple[int, ...]


class _JavaMark(NamedTuple):
    """Timers that 5.x has delivered: those below number `seen`, at or before `done`."""

    done: Key
    seen: int


class DelayState(msgspec.Struct, frozen=True, rename="camel"):
    """Content of timers/state."""

    runs: list[int] = []
    """Runs of pending timers, by number."""
    next_run: int = 0
    """Number of the next run: none is used twice, so a leftover file is never read as a newer run."""
    position: int = 0
    """Timers from this number on are in no run; a start reads them from the queue."""
    done: Key = LOWEST_KEY
    """Timers below `seen` are delivered if they are due at or before this key."""
    seen: int = 0
    """Timers from this number on are pending, whatever their due time."""
    cancels: int = 0
    """A start reads the cancel queue from this number on."""
    delivered: list[int] = []
    """Timers after `done` that are delivered."""
    levels: list[int] = []
    """Position of each delay level."""
    delivered_out_of_order: list[tuple[int, int]] = msgspec.field(default_factory=list, name="ahead")
    """Level and number of deliveries at or after their level's position."""


class DelayedMessages:
    """Delivery order of delayed messages: `next_due`, then `mark_delivered`, in turn. One thread, like the store."""

    def __init__(
        self, files: OpenFiles, root: str, queues: ConsumeQueues, log: Segments, delays_ms: Sequence[int]
    ) -> None:
        self.directory = f"{root}/timers"  # of the timer runs and the saved state
        self._java_check_point = f"{root}/config/timercheck"  # of 5.x
        # Messages were delayed since the caller last set this to False: the delivery loop may have to wake earlier.
        self.has_arrivals = False
        self._disk = files.disk  # holds the saved state
        self._log = log  # delayed records, to read when they are due
        delay_queues = DelayQueues(queues, log, delays_ms)
        self._levels = DelayLevels(delay_queues)  # messages with a delay level, in Java's queues
        self._deliveries = DeliveryLog(delay_queues)  # what is delivered or cancelled already
        # Messages with a delivery time of their own.
        self._timers = Timers(files, self.directory, delay_queues, self._deliveries)
        # Marks that the flushed part of the log does not cover yet, after one that it covers.
        self._marks: deque[DelayMark] = deque()
        # State on disk, and the one that a flush is writing.
        self._saved = DelayState()
        self._saving: DelayState | None = None  # None: no flush is writing

    # --- at start ---

    def load(self, delivered: Iterable[int], log_end: int, java_levels: Mapping[int, int]) -> list[str]:
        """Resume from the saved state and the log, and return the repairs in words.

        Args:
            delivered: offsets of delayed records that the recovered part of the log delivers.
            log_end: end of the recovered log.
            java_levels: positions by level, counted from 1, of Java's delayOffset.json.
        """
        state, notes = self._read_state()
        low, high = self._timers.queue_bounds()
        if state is not None and max(state.position, state.seen) > high:
            notes.append(f"{self.directory} covers timers that the log lost")
            state = None
        java = self._read_java_mark()
        former = state or DelayState(position=low)
        if java is not None and former.seen <= java.seen <= high and former.done < java.done:
            state = msgspec.structs.replace(former, seen=java.seen, done=java.done)
        if state is not None:
            try:
                self._timers.load_runs(state.runs, state.next_run, state.done)
            except CorruptRun as fault:
                notes.append(str(fault))
                state = None
                self._timers.clear()
        # A store that Java wrote has no state, but its delayOffset.json says what the levels delivered.
        if state is None and (high > low or (self._levels.is_used() and not java_levels)):
            notes.append("delayed messages and their deliveries are rebuilt from the whole commit log")
            delivered = scan_deliveries(self._log, log_end)
        state = state or DelayState(position=low, seen=low)
        self._saved = state
        self._levels.load(state.levels, java_levels, state.delivered_out_of_order)
        self._deliveries.delivered.update(state.delivered)
        self._add_delivered(delivered)
        self._levels.clamp_to_queues()
        self._timers.position = self._timers.written_position = max(low, state.position)
        self._deliveries.cancel_position = state.cancels
        self._deliveries.read_cancels()
        self._timers.read_queue(done=state.done, seen=state.seen)
        self._mark(log_end)
        return notes

    def _read_state(self) -> tuple[DelayState | None, list[str]]:
        path = f"{self.directory}/state"
        data = read_whole(self._disk, path)
        if not data:
            return None, []
        try:
            return msgspec.json.decode(data, type=DelayState), []
        except msgspec.DecodeError as error:
            return None, [f"{path} cannot be read ({error})"]

    def _read_java_mark(self) -> _JavaMark | None:
        """Return which timers a broker of 5.x has delivered that served the store; None if none did."""
        data = read_whole(self._disk, self._java_check_point)
        if not data or len(data) < _CHECK_POINT.size:
            return None
        read_ms, _, seen = _CHECK_POINT.unpack_from(data)
        return _JavaMark((read_ms - JAVA_PRECISION_MS, 0), seen) if read_ms > 0 else None

    def _add_delivered(self, offsets: Iterable[int]) -> None:
        for record in read_delayed_records(self._log, offsets):
            topic = record.topic.decode("utf-8", "replace")
            if topic == TIMER_TOPIC:
                self._deliveries.delivered.add(record.queue_offset)
            elif topic == SCHEDULE_TOPIC:
                self._levels.add_delivered(record.queue_id, record.queue_offset)

    # --- arrivals ---

    def read_arrivals(self, log_end: int) -> None:
        """Read the queue entries that were dispatched since the last call."""
        self._deliveries.read_cancels()
        self._timers.read_queue(done=self._timers.last, seen=0)
        self._mark(log_end)
        self.has_arrivals = True

    def apply_master_deliveries(self, delivered: Iterable[int], log_end: int, now_ms: int) -> None:
        """Read arrivals on a slave, whose master delivered the records at the offsets `delivered` until `now_ms`."""
        self.read_arrivals(log_end)
        self._add_delivered(delivered)
        self._levels.forget_heads()
        self._next_timer(now_ms)  # settles what was delivered, up to the first pending timer
        self._mark(log_end)

    def cancel(self, number: int, cancel_entry: int, log_end: int) -> None:
        """Cancel a pending timer now, although its cancel entry may be dispatched only after a flush.

        Args:
            number: number of the timer.
            cancel_entry: number of the cancellation in the cancel queue.
            log_end: end of the log, at or after the cancellation.
        """
        self._deliveries.cancels[number] = cancel_entry
        self._mark(log_end)

    def timers_before(self, log_offset: int) -> list[Key]:
        """Return the pending timers whose records end before `log_offset`, where the log is about to start."""
        return self._timers.before(log_offset)

    def mark_restored(self, number: int, log_end: int) -> None:
        """Deliver a timer by its copy, a record that ends at `log_end`, because its own record is about to be removed."""
        self._deliveries.add_restored(number, log_end)
        self._mark(log_end)

    # --- delivery ---

    def next_due_ms(self) -> int | None:
        """Return when the next message is due, which may be a cancelled one; None if nothing is delayed."""
        timer = self._timers.head()
        level_ms = self._levels.next_due_ms()
        if timer is None or level_ms is None:
            return level_ms if timer is None else timer[0]
        return min(timer[0], level_ms)

    def next_due(self, now_ms: int) -> DueMessage | None:
        """Return the message that has been due longest, until `mark_delivered` is called with it; None if none is due."""
        timer = self._next_timer(now_ms)
        due_timer = None
        if timer is not None and timer[0] <= now_ms:
            due_timer = DueMessage(TIMER_TOPIC, TIMER_QUEUE, timer[1], timer[0])
        return self._levels.next_due(now_ms, due_timer)

    def mark_delivered(self, message: DueMessage, log_end: int) -> None:
        """Count `message` as delivered, by a record that ends at or before `log_end`."""
        if message.topic == TIMER_TOPIC:
            self._timers.advance((message.due_ms, message.number))
        else:
            self._levels.mark_delivered(message)
        self._mark(log_end)

    def _next_timer(self, now_ms: int) -> Key | None:
        """Return the first timer, and remove settled ones before it that are due.

        A cancelled timer stays until it would be due: new ones must exceed the last one that was removed (`min_due_ms`).
        """
        while (key := self._timers.head()) is not None and key[0] <= now_ms and self._deliveries.settle(key):
            self._timers.advance(key)
            self._mark(self._marks[-1].log_end)
        return key

    @property
    def min_due_ms(self) -> int:
        """Time that the due time of a new timer must exceed, so that timers stay in order."""
        return self._timers.last[0]

    @property
    def timer_count(self) -> int:
        """Number of pending timers, including cancelled ones that are not due yet."""
        return len(self._timers)

    def is_pending(self, number: int, due_ms: int) -> bool:
        """Return whether the timer with this number and due time will be delivered."""
        return self._timers.is_pending(number, due_ms)

    def level_positions(self) -> dict[int, int]:
        """Return the number of the next entry of each level, counted from 1, that was ever used."""
        return {level + 1: number for level, number in enumerate(self._levels.positions) if number}

    def saved_level_positions(self) -> dict[int, int]:
        """Return the level positions that a loss of power cannot take back, for delayOffset.json."""
        return {level + 1: number for level, number in enumerate(self._saved.levels) if number}

    # --- the state on disk ---

    def begin_save(self, flushed: int) -> list[tuple[str, bytes]]:
        """Return the files to write before the next checkpoint, in order; none if nothing changed.

        Args:
            flushed: the log is durable below this offset.
        """
        if self._saving is not None:
            return []
        mark = self._durable_mark(flushed)
        run = self._timers.begin_write(mark.seen)
        self._deliveries.drop_obsolete(mark.done, flushed)
        self._levels.drop_obsolete(mark.levels)
        state = DelayState(
            runs=self._timers.listed_runs(run),
            next_run=self._timers.next_run,
            position=self._timers.written_position,
            done=mark.done,
            seen=mark.seen,
            cancels=self._deliveries.oldest_cancel,
            delivered=self._deliveries.durable_deliveries(),
            levels=list(mark.levels),
            delivered_out_of_order=sorted(self._levels.delivered_out_of_order),
        )
        if state == self._saved:
            return []
        self._saving = state
        # The run before the state that lists it: a crash between leaves a file that the next save removes.
        files = [] if run is None else [(run.path, run.content)]
        return [*files, (f"{self.directory}/state", msgspec.json.encode(state))]

    def end_save(self, *, written: bool) -> None:
        """Finish `begin_save`: its files are durable, or were not written."""
        if self._saving is None:
            return
        if written:
            self._saved = self._saving
        self._saving = None
        self._timers.end_write(self._saved.runs, written=written, position=self._saved.position)

    def _mark(self, log_end: int) -> None:
        """Note what is delivered now, to be saved once the log is flushed up to `log_end`."""
        marks = self._marks
        if marks and marks[-1].log_end == log_end:
            marks.pop()
        # Late timers are not covered by `last`, so the mark covers no number from the first of them on.
        seen = min(self._timers.late_entries, default=self._timers.position)
        marks.append(DelayMark(log_end, self._timers.last, seen, tuple(self._levels.positions)))

    def _durable_mark(self, flushed: int) -> DelayMark:
        """Return the last mark that the flushed part of the log covers; it always covers the first one, of the start."""
        marks = self._marks
        while len(marks) > 1 and marks[1].log_end <= flushed:
            marks.popleft()
        return marks[0]
