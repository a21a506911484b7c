"""The state of a member follows that of its leader: applies the changes of `change_stream` in their order.

    changes ─► config/changes.* of this broker ─► its tables ─► number of the last change, reported to the leader
    snapshot parts ─► collected ─► end: all tables replaced ─► documents written ─► number reported

A change is stored like one of this broker, so that a start as a master needs nothing but the directory. Committed offsets are
stored periodically, as on the master.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ariane.broker.lifecycle.persistent_state import PersistentState
from ariane.broker.replication import state_changes
from ariane.broker.replication.state_changes import OffsetsCommitted, SnapshotEnd, SnapshotPart, StateChange
from ariane.broker.state.pop_table import PopChange, PopDocument, PopQueueEntry
from ariane.broker.state.queue_locks import LockTable
from ariane.broker.state.saved.change_records import (
    GroupDeleted,
    GroupPut,
    OffsetsPut,
    QueuesLocked,
    QueuesUnlocked,
    RequestModePut,
    TopicDeleted,
    TopicPut,
)
from ariane.errors import ProtocolError
from ariane.model.topic import SubscriptionGroupConfig, TopicConfig, TopicDeletion
from ariane.protocol.records.member_stream import NO_CHANGES, ChangePosition
from ariane.protocol.requests.admin import ConsumerOffsetTable, SubscriptionGroupTable
from ariane.protocol.requests.clients import WireQueue
from ariane.protocol.requests.pop import RequestMode
from ariane.protocol.requests.routing import TopicTable
from ariane.store.disk.files import write_error


class DeletionFollower(Protocol):
    """Removes the messages and offsets of topics that the master deleted. [TopicRemover]"""

    def apply_master_deletions(self, deletions: Mapping[str, TopicDeletion]) -> None: ...


class _Snapshot:
    """The parts of a snapshot that were received so far."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicConfig] = {}
        self.groups: dict[str, SubscriptionGroupConfig] = {}
        self.offsets: dict[str, dict[int, int]] = {}
        self.locks: dict[str, dict[str, tuple[WireQueue, ...]]] = {}
        self.deletions: dict[str, TopicDeletion] = {}
        self.pop: dict[str, dict[str, dict[int, PopQueueEntry]]] = {}
        self.modes: list[RequestMode] = []

    def add(self, part: SnapshotPart) -> None:
        self.topics.update({topic.topic_name: topic for topic in part.topics})
        self.groups.update({group.group_name: group for group in part.groups})
        self.offsets.update(part.offsets)
        self.deletions.update(part.deletions)
        self.modes += part.modes
        for group, topics in part.pop.items():
            for topic, taken in topics.items():
                self.pop.setdefault(group, {}).setdefault(topic, {}).update(taken)
        for group, owners in part.locks.items():
            locks = self.locks.setdefault(group, {})
            for client_id, queues in owners.items():
                locks[client_id] = locks.get(client_id, ()) + queues


class ChangeFollower:
    """Applies the changes of a leader to the tables of this broker."""

    def __init__(self, state: PersistentState, deletions: DeletionFollower, now_ms: Callable[[], float]) -> None:
        self.is_following = False  # whether the current or last leader sends changes: then tables are not copied
        self._state = state
        self._deletions = deletions
        self._now_ms = now_ms  # monotonic, of locks
        self._stream = ""  # of the leader
        self._applied = NO_CHANGES  # number of the last change
        self._flushed = NO_CHANGES  # number of the last change that is stored, in synchronous mode on the disk
        self._snapshot: _Snapshot | None = None  # that is being received
        self.has_unsaved = False  # a snapshot was applied and is not stored: call `save`

    @property
    def position(self) -> ChangePosition:
        """The changes that this member has, to continue after a lost connection."""
        has_none = self._applied == NO_CHANGES or self.has_unsaved
        return ChangePosition() if has_none else ChangePosition(self._stream, self._applied)

    @property
    def reported(self) -> int:
        """Number of the last change that is stored here: in a file, in synchronous mode on the disk."""
        if self.has_unsaved:
            return NO_CHANGES
        return self._flushed if self._state.change_log.has_pending else self._applied

    @property
    def has_unflushed(self) -> bool:
        """Return whether changes are in a file, and have to be on the disk before they are reported."""
        return not self.has_unsaved and self._state.change_log.has_pending

    async def flush(self) -> None:
        """Wait until all changes so far may be reported.

        Raises:
            FlushFailed: the disk failed.
        """
        stream, applied = self._stream, self._applied
        waiter = self._state.change_log.wait_durable()
        if waiter is not None:
            await waiter
        if stream == self._stream and not self.has_unsaved:
            self._flushed = max(self._flushed, applied)

    def begin(self, leader: ChangePosition | None) -> None:
        """Follow a leader from now on, over a new connection; None: it sends no changes."""
        self.is_following = leader is not None
        if leader is None or leader.stream != self._stream or self.has_unsaved or self._applied > leader.number:
            self._applied = self._flushed = NO_CHANGES
        self._stream = "" if leader is None else leader.stream
        self._snapshot = None

    def apply(self, data: bytes) -> None:
        """Apply the content of a frame.

        Raises:
            ProtocolError: a change is malformed, or does not follow the last one.
            StoreError: a change cannot be stored.
        """
        for number, change in ((entry.number, entry.change) for entry in state_changes.decode(data)):
            if isinstance(change, SnapshotPart):
                if change.is_first:
                    self._snapshot = _Snapshot()
                self._current_snapshot(number).add(change)
            elif isinstance(change, SnapshotEnd):
                self._replace(self._current_snapshot(number), change)
                self._applied, self._snapshot = number, None
            elif self._applied == NO_CHANGES or number != self._applied + 1:
                raise ProtocolError(f"Change {number} of the leader does not follow change {self._applied}")
            else:
                self._apply(change)
                self._applied = number

    async def save(self) -> None:
        """Store a snapshot that was applied.

        Raises:
            StoreError: a document cannot be written.
        """
        stream = self._stream
        try:
            await self._state.save()
        except OSError as error:
            raise write_error(error, error.filename or "config") from error
        if stream == self._stream:
            self.has_unsaved = False

    def _current_snapshot(self, number: int) -> _Snapshot:
        if self._snapshot is None:
            raise ProtocolError(f"Part of snapshot {number} without the first part")
        return self._snapshot

    def _replace(self, snapshot: _Snapshot, end: SnapshotEnd) -> None:
        state = self._state
        self._deletions.apply_master_deletions(snapshot.deletions)
        state.topics.replace(TopicTable(end.topics, snapshot.topics), is_forced=True)
        state.groups.replace(SubscriptionGroupTable(end.groups, snapshot.groups), is_forced=True)
        state.offsets.replace(ConsumerOffsetTable(snapshot.offsets))
        state.locks.replace(LockTable(snapshot.locks), self._now_ms())
        state.pop.replace(PopDocument(snapshot.pop))
        state.request_modes.replace(snapshot.modes)
        state.mark_replaced()
        self.has_unsaved = True

    def _apply(self, change: StateChange) -> None:
        state = self._state
        if isinstance(change, OffsetsCommitted):
            state.offsets.apply(change.offsets)
            return
        assert not isinstance(change, SnapshotPart | SnapshotEnd)
        if isinstance(change, QueuesLocked | QueuesUnlocked):
            state.record_lock(change)
            state.locks.apply(change, self._now_ms())
            return
        if isinstance(change, PopChange):
            state.record_pop(change)
            return
        if isinstance(change, TopicDeleted) and change.deletion is not None:
            self._deletions.apply_master_deletions({change.name: change.deletion})
        state.record(change)
        match change:
            case TopicPut():
                state.topics.apply(change)
            case TopicDeleted(name):
                state.topics.apply(change)
                state.offsets.remove_topic(name)
                state.pop.remove_topic(name)
            case GroupPut():
                state.groups.apply(change)
            case GroupDeleted(name, _, with_offsets):
                state.groups.apply(change)
                if with_offsets:
                    state.offsets.remove_group(name)
                    state.pop.remove_group(name)
            case OffsetsPut(group, topic, offsets):
                state.offsets.put(group, topic, offsets)
            case RequestModePut(mode):
                state.request_modes.put(mode)
