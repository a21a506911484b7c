"""Queue entries of plain sends that are not written yet: one write takes those of many runs.

    put_run → `add` → … → a reader of the queue, or a later record of it: `get`, write, `remove`
                        → after a moment, queue by queue: `begin_round`, `next_queue`, write, `remove`

With 10,000 queues each run has one message for each of many queues, and a write of 20 bytes would cost more than the rest of a
send. The records of collected entries can be read: the store writes the entries of a queue before it reads that queue. Until all
are written, the checkpoint does not cover them, and a start dispatches their records from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ariane.kernels.sends.send_turn import QueueRun
from ariane.protocol.records.queue_entry import ENTRY_SIZE
from ariane.store.queues.consume_queue import ConsumeQueue


class CollectedEntries:
    """The entries, by queue: each queue's follow those that are written, and precede all that `PendingEntry` lists."""

    def __init__(self) -> None:
        self.records = 0  # entries of all queues
        self._entries: dict[ConsumeQueue, bytearray] = {}
        self._round: dict[ConsumeQueue, bytearray] = {}  # of the round in progress; queues are in one of both
        self._order: list[ConsumeQueue] = []  # of the round; those that are written already may be in it

    def __contains__(self, queue: ConsumeQueue) -> bool:
        return queue in self._entries or queue in self._round

    def add(self, runs: list[QueueRun], by_id: Callable[[str], Mapping[int, ConsumeQueue]]) -> int:
        """Add the entries of a run and number its records; return how many they are. `by_id` has all queues of the run."""
        collected, in_round = self._entries, self._round
        size, last = 0, None
        queues: Mapping[int, ConsumeQueue] = {}
        for topic, queue_id, entries, _, _ in runs:
            if topic != last:
                last, queues = topic, by_id(topic)
            queue = queues[queue_id]
            present = in_round.get(queue) if in_round else None
            if present is None:
                present = collected.get(queue)
            if present is None:
                collected[queue] = bytearray(entries)
            else:
                present += entries
            queue.next_offset += len(entries) // ENTRY_SIZE
            size += len(entries)
        self.records += size // ENTRY_SIZE
        return size // ENTRY_SIZE

    def get(self, queue: ConsumeQueue) -> bytes:
        """Return the entries of a queue, b"" if it has none."""
        return bytes(self._entries.get(queue) or self._round.get(queue) or b"")

    def remove(self, queue: ConsumeQueue) -> None:
        """Forget the entries of a queue, because they are written or the queue is deleted."""
        entries = self._entries.pop(queue, None) or self._round.pop(queue, None)
        if entries is not None:
            self.records -= len(entries) // ENTRY_SIZE

    def begin_round(self) -> None:
        """Begin to write all queues that have entries now. A round in progress must have ended."""
        assert not self._round
        self._round, self._entries = self._entries, {}
        self._order = list(self._round)

    def next_queue(self) -> ConsumeQueue | None:
        """Return a queue of the round; None once all of them are written."""
        order = self._order
        while order and order[-1] not in self._round:
            order.pop()
        return order[-1] if order else None

    def clear(self) -> None:
        """Forget all entries."""
        self._entries.clear()
        self._round.clear()
        self._order.clear()
        self.records = 0
