"""The changes of a leader's state, in one sequence with its log. Without I/O; `change_follower` is the member's side.

    log                |======|=========|====►
    changes, numbers          7 8       9        each with the position: the end of the log when the change was made
    sent to a member   log up to the position of 7 · 7, 8 · log up to that of 9 · 9 · …

    record() ─► append ─► tail of encoded changes ─► ChangeCursor of each member
    commits of consumers: newest offset per group and queue ─► collect_offsets, ten times per second ─► one change

The tail is bounded. A member that lacks changes which the tail does not have any more gets a snapshot of all tables instead.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from ariane.broker.lifecycle.persistent_state import PersistentState
from ariane.broker.replication import state_changes
from ariane.broker.replication.state_changes import OffsetsCommitted, StateChange
from ariane.broker.state.pop_table import PopChange
from ariane.broker.state.saved.change_records import Change, QueuesLocked, QueuesUnlocked
from ariane.protocol.records.member_stream import NO_CHANGES, ChangePosition

TAIL_BYTES = 4 << 20  # of encoded changes, for members that are behind
FRAME_BYTES = 256 << 10  # of changes that are sent together
LOCKED_QUEUES = 4_000  # queues of one change


class SentChange(NamedTuple):
    """An encoded change."""

    position: int  # of the log that the change follows
    data: bytes


class ChangeStream:
    """The numbered changes of one leader, from its start to its stop.

    Args:
        state: The tables that change.
        log_end: Returns the end of the log.
        tail_bytes: Bytes of changes that are retained.
    """

    def __init__(self, state: PersistentState, log_end: Callable[[], int], tail_bytes: int = TAIL_BYTES) -> None:
        self.name = secrets.token_hex(8)  # numbers of another leader, or of an earlier start, mean nothing
        self.last = 0  # number of the last change
        self.awaited = 0  # number of the last change that answers wait for: not commits of consumers, nor POP
        self._state = state
        self._log_end = log_end
        self._tail_bytes = tail_bytes
        self._tail: dict[int, SentChange] = {}  # by number, without gaps
        self._first = 1  # number of the oldest change of the tail
        self._size = 0  # bytes of the tail
        self._is_encoded = False  # whether a member has ever connected: before, changes are only counted
        self._cursors: set[ChangeCursor] = set()  # of connected members

    @property
    def position(self) -> ChangePosition:
        """The changes that a member with this state has."""
        return ChangePosition(self.name, self.last)

    def append(self, change: Change) -> None:
        """Add a change that is being made, before it is answered."""
        if isinstance(change, QueuesLocked | QueuesUnlocked):
            for start in range(0, len(change.queues), LOCKED_QUEUES):
                some = change.queues[start : start + LOCKED_QUEUES]
                self._append(msgspec.structs.replace(change, queues=some))
        else:
            self._append(change)
        if not isinstance(change, PopChange):
            self.awaited = self.last

    def collect_offsets(self) -> bool:
        """Add the offsets that were committed since the last call, as one change; return whether there were any.

        While all members are behind nothing is added: later commits replace earlier ones of the same group and queue.
        """
        if not any(cursor.is_at_end for cursor in self._cursors):
            return False
        offsets = self._state.offsets.take_changed(state_changes.PART_ENTRIES, state_changes.PART_QUEUES)
        if offsets:
            self._append(OffsetsCommitted(offsets))
        return bool(offsets)

    def connect(self, position: ChangePosition) -> ChangeCursor:
        """Return the cursor of a member that has the changes up to `position`. Call `disconnect` with it at the end."""
        self._is_encoded = True
        self._state.offsets.track_changes()
        number = position.number if position.stream == self.name and position.number <= self.last else NO_CHANGES
        cursor = ChangeCursor(self, number)
        self._cursors.add(cursor)
        return cursor

    def disconnect(self, cursor: ChangeCursor) -> None:
        """Forget a cursor."""
        self._cursors.discard(cursor)

    def has(self, number: int) -> bool:
        """Return whether the tail has all changes from `number` on."""
        return number >= self._first

    def get(self, number: int) -> SentChange | None:
        """Return a change of the tail; None if it was not made yet."""
        return self._tail.get(number)

    def snapshot(self) -> Iterator[SentChange]:
        """Return the parts of a snapshot that has all changes so far."""
        number, changes = self.last, state_changes.snapshot(self._state)
        # Each part is encoded when it is sent, and its offsets are of messages before that.
        return (SentChange(self._log_end(), state_changes.encode(number, change)) for change in changes)

    def _append(self, change: StateChange) -> None:
        self.last += 1
        if not self._is_encoded:
            self._first = self.last + 1
            return
        data = state_changes.encode(self.last, change)
        self._tail[self.last] = SentChange(self._log_end(), data)
        self._size += len(data)
        while self._size > self._tail_bytes:
            self._size -= len(self._tail.pop(self._first).data)
            self._first += 1


class ChangeCursor:
    """What one member has to be sent."""

    def __init__(self, stream: ChangeStream, number: int) -> None:
        self._stream = stream
        self._number = number  # of the last change that was sent; NO_CHANGES: it needs a snapshot
        self._snapshot: Iterator[SentChange] | None = None  # what remains of the snapshot that is being sent
        self._snapshot_number = 0  # of its last change
        self._next: SentChange | None = None  # what is sent next, if it was looked at

    @property
    def is_at_end(self) -> bool:
        """Return whether the member was sent all changes."""
        return self._snapshot is None and self._next is None and self._number == self._stream.last

    @property
    def next_position(self) -> int | None:
        """Position of the log that the next change follows; None without one."""
        self._next = self._next or self._load()
        return None if self._next is None else self._next.position

    def take(self, log_end: int) -> SentChange | None:
        """Return the content of the next frame, for a member that was sent the log up to `log_end`; None: nothing is due."""
        changes: list[bytes] = []
        size = last = 0
        while (position := self.next_position) is not None and position <= log_end and size < FRAME_BYTES:
            assert self._next is not None
            changes.append(self._next.data)
            size, last, self._next = size + len(self._next.data), position, None
        return SentChange(last, state_changes.join(changes)) if changes else None

    def _load(self) -> SentChange | None:
        if self._snapshot is None and not (self._number != NO_CHANGES and self._stream.has(self._number + 1)):
            self._snapshot_number, self._snapshot = self._stream.last, self._stream.snapshot()
        if self._snapshot is not None:
            part = next(self._snapshot, None)
            if part is not None:
                return part
            self._number, self._snapshot = self._snapshot_number, None
            return self._load()
        change = self._stream.get(self._number + 1)
        if change is not None:
            self._number += 1
        return change
