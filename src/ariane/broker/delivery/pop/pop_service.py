"""Takes messages from queues for groups, and ends or changes their deliveries.

    take → due messages again, then new ones → recorded → the committed offset follows (`PopQueue.committed`)

A message is read again from its own queue when it becomes visible; nothing is copied to retry topics.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from ariane.broker.state.consumer_offsets import ConsumerOffsets, starts_first
from ariane.broker.state.pop_queue import PopQueue
from ariane.broker.state.pop_table import PopChange, PopTable, QueueKey
from ariane.broker.state.saved.change_records import (
    MessageHidden,
    MessagesAcknowledged,
    MessagesReturned,
    MessagesTaken,
    PopRestarted,
)
from ariane.model.topic import pop_topics
from ariane.protocol.records import record
from ariane.store.message_store import GetResult, GetStatus, MessageStore, RecordFilter

__all__ = ["PopService", "TakenBatch"]

log = logging.getLogger("ariane.broker")

TAKEN_MAX = 20_000  # unacknowledged messages of a group in a queue: beyond, only due ones are delivered
# Handles of one response count from the first of its offsets, and clients acknowledge with a bit for each offset since.
SPAN_MAX = 4_096
BATCH_BYTES_MAX = 256 * 1024  # that are exceeded by one message at most: a frame has 16 MiB, and messages may have 4


class TakenBatch(NamedTuple):
    """Messages that were taken from a queue in one delivery."""

    key: QueueKey
    offsets: tuple[int, ...]
    records: bytes  # as stored, except RECONSUMETIMES
    result: GetResult | None  # of the read of new messages, for statistics
    deliveries: dict[int, int]  # by offset, of those that were delivered before


class RecordChanges(Protocol):
    """Stores changes durably and makes them. [PersistentState.record_pop]"""

    def __call__(self, *changes: PopChange) -> None:
        """Store and make changes. Raise StoreError if they cannot be stored."""
        ...


class PopService:
    """Takes messages for groups.

    Args:
        record: Makes changes in `table`.
    """

    def __init__(
        self, *, store: MessageStore, offsets: ConsumerOffsets, table: PopTable, record: RecordChanges
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._table = table
        self._record = record

    def queue(self, key: QueueKey, *, from_end: bool = False) -> PopQueue:
        """Return the state of a queue; one that has none starts at the group's offset, or else at an end of the queue.

        A committed offset that is not ours was set by a tool, or by a consumer that pulls: the group continues there.
        """
        queue, committed = self._table.get(key), self._offsets.get(*key)
        if queue is None:
            queue = self._table.open(key, self._first(key, from_end=from_end) if committed is None else committed)
        elif queue.committed_before is None:  # loaded: the document of offsets may be older, or of another program
            if committed is not None and committed > queue.committed:
                queue = self._continue_at(key, queue, committed)
        elif committed != queue.committed_before:
            queue = self._restart(key, committed or 0)
        self._commit(key, queue)
        return queue

    def take(
        self,
        key: QueueKey,
        count: int,
        invisible_ms: int,
        record_filter: RecordFilter,
        now_ms: int,
        *,
        is_ordered: bool = False,
        attempt_id: str | None = None,
    ) -> TakenBatch | None:
        """Take up to `count` messages: those that are visible again, then new ones. None if there are none.

        In order, nothing is taken from a blocked queue (`PopQueue.is_blocked`), and new messages only if none is to be taken again.
        """
        queue = self.queue(key)
        if not is_ordered:
            again, attempt_id = queue.due(now_ms, count), None
        elif queue.is_blocked(now_ms, attempt_id):
            return None
        else:
            again = list(itertools.islice(queue.taken, count))
        again, parts = self._read_again(key, queue, again)
        room = 0 if is_ordered and again else min(count - len(again), TAKEN_MAX - len(queue.taken))
        result: GetResult | None = None
        new: tuple[int, ...] = ()
        if room > 0 and sum(map(len, parts)) < BATCH_BYTES_MAX and (not again or queue.next - again[0] < SPAN_MAX):
            result = self._store.get(key.topic, key.queue_id, queue.next, room, record_filter)
            if result.status is GetStatus.FOUND:
                new = tuple(record.queue_offset(data) for data in result.records)
                parts.append(result.body)
            self._table.skip_to(key, min(result.next_offset, result.max_offset))
        batch: TakenBatch | None = None
        if offsets := (*again, *new):
            deliveries = {offset: queue.taken[offset].deliveries for offset in again}
            # Visible again 1 ms later at the earliest: the next delivery has another time, which makes this one's handles invalid.
            visible_ms = now_ms + max(1, invisible_ms)
            end = max(queue.next, offsets[-1] + 1)
            self._record(MessagesTaken(*key, offsets, now_ms, visible_ms, end, attempt_id))
            batch = TakenBatch(key, offsets, b"".join(parts), result, deliveries)
        self._commit(key, queue)
        return batch

    def acknowledge(self, key: QueueKey, taken_ms: int, offsets: Iterable[int]) -> None:
        """End deliveries. Those that have ended, or were followed by another delivery, are ignored."""
        self.acknowledge_all([(key, taken_ms, offsets)])

    def acknowledge_all(self, acks: Iterable[tuple[QueueKey, int, Iterable[int]]]) -> None:
        """End deliveries of several queues, each with its time, by one append to the change log."""
        ended: dict[QueueKey, list[int]] = {}  # offsets
        for key, taken_ms, offsets in acks:
            if (queue := self._table.get(key)) is not None:
                current = [offset for offset in offsets if queue.is_current(offset, taken_ms)]
                if current:
                    ended.setdefault(key, []).extend(current)
        if ended:
            self._record(*(MessagesAcknowledged(*key, offsets=tuple(offsets)) for key, offsets in ended.items()))
        for key in ended:
            if (queue := self._table.get(key)) is not None:
                self._commit(key, queue)

    def hide(self, key: QueueKey, taken_ms: int, offset: int, at_ms: int, visible_ms: int) -> bool:
        """Change when a message is visible again. Return False if its delivery has ended."""
        queue = self._table.get(key)
        if queue is None or not queue.is_current(offset, taken_ms):
            return False
        self._record(MessageHidden(*key, offset=offset, at_ms=at_ms, visible_ms=visible_ms))
        return True

    def give_back(self, key: QueueKey, taken_ms: int, offsets: Iterable[int], now_ms: int) -> None:
        """Undo a delivery that did not leave the broker: its messages are visible at once."""
        queue = self._table.get(key)
        unsent = () if queue is None else tuple(offset for offset in offsets if queue.is_current(offset, taken_ms))
        if unsent:
            self._record(MessagesReturned(*key, offsets=unsent, at_ms=now_ms))

    def due_ms(self, group: str, topic: str) -> int | None:
        """Return when the first message that a group has taken from a topic becomes visible; None if there is none."""
        queues = itertools.chain.from_iterable(self._table.queues_of(group, name) for name in pop_topics(group, topic))
        return min((due for queue in queues if (due := queue.due_ms) is not None), default=None)

    def committed(self, key: QueueKey) -> int:
        """Return the offset of the first message of a queue that is not acknowledged, 0 without any."""
        queue = self._table.get(key)
        return 0 if queue is None else queue.committed

    def has_messages(self, key: QueueKey, queue: PopQueue, now_ms: int) -> bool:
        """Whether a queue has messages that were never taken, or are visible again."""
        return self.remaining(key, queue) > 0 or ((due_ms := queue.due_ms) is not None and due_ms <= now_ms)

    def remaining(self, key: QueueKey, queue: PopQueue) -> int:
        """Return how many messages of a queue were never taken."""
        return max(0, self._store.max_offset(key.topic, key.queue_id) - queue.next)

    # --- inside ---

    def _first(self, key: QueueKey, *, from_end: bool) -> int:
        topic, queue_id = key.topic, key.queue_id
        if not from_end or starts_first(self._store, topic, queue_id):
            return self._store.min_offset(topic, queue_id)
        return max(0, self._store.max_offset(topic, queue_id) - 1)

    def _continue_at(self, key: QueueKey, queue: PopQueue, committed: int) -> PopQueue:
        """Apply an offset of another program: what is before it is consumed."""
        ended = tuple(offset for offset in queue.taken if offset < committed)
        if ended:
            self._record(MessagesAcknowledged(*key, offsets=ended))
        return queue if committed <= queue.next else self._restart(key, committed)

    def _restart(self, key: QueueKey, first: int) -> PopQueue:
        self._record(PopRestarted(*key, next=first))
        queue = self._table.get(key)
        return queue if queue is not None else self._table.open(key, first)

    def _read_again(self, key: QueueKey, queue: PopQueue, offsets: Sequence[int]) -> tuple[list[int], list[bytes]]:
        """Return the offsets and records of messages that are delivered again; removed ones count as consumed."""
        present: list[int] = []
        records: list[bytes] = []
        lost: list[int] = []
        size = 0
        for offset in offsets:
            if present and (offset - present[0] >= SPAN_MAX or size >= BATCH_BYTES_MAX):
                break
            data = self._store.read_queue_record(key.topic, key.queue_id, offset)
            if data is None:
                lost.append(offset)
                continue
            present.append(offset)
            size += len(data)
            records.append(record.with_more_reconsume_times(data, queue.taken[offset].deliveries))
        if lost:
            log.warning(
                "%s: %d messages of %s-%d were removed before they were consumed",
                key.group,
                len(lost),
                key.topic,
                key.queue_id,
            )
            self._record(MessagesAcknowledged(*key, offsets=tuple(lost)))
            self._commit(key, queue)
        return present, records

    def _commit(self, key: QueueKey, queue: PopQueue) -> None:
        committed = queue.committed
        if committed != queue.committed_before:
            self._offsets.commit(*key, committed)
            queue.committed_before = committed
