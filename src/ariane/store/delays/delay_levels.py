"""Delay levels: a position for each level says which of its messages are delivered.

    level queue   | 0 | 1 | 2 | 3 | 4 |        all messages of a level have the same delay, so they are due in order
                            ^ position 2       0 and 1 are delivered, 2 is the head, 3 was delivered out of order

[ScheduleMessageService, delayOffset.json]
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ariane.model.topic import SCHEDULE_TOPIC
from ariane.protocol.records.queue_entry import ENTRY
from ariane.store.delays.delay_queues import DelayEntry, DelayQueues

logger = logging.getLogger("ariane.store")


class DueMessage(NamedTuple):
    """A queue entry with its due time."""

    topic: str
    queue_id: int
    number: int
    due_ms: int


class DelayLevels:
    """Positions and heads of all delay levels, which are counted from 0 in this class."""

    def __init__(self, queues: DelayQueues) -> None:
        self.count = len(queues.delays_ms)  # from messageDelayLevel; 18 by default
        # Number of the next entry to deliver, by level.
        self.positions = [0] * self.count
        # Deliveries at or after a level's position: the log said so, or one before them could not be delivered.
        self.delivered_out_of_order: set[tuple[int, int]] = set()
        self._queues = queues  # entries of the delay queues, and their due times
        # The next entry of each level, once it was read: `next_due` runs for every delivery.
        self._heads: list[DueMessage | None] = [None] * self.count
        # Level to number and capped due time of a head that was too far ahead of the clock.
        self._capped: dict[int, tuple[int, int]] = {}

    def load(
        self, positions: list[int], java_positions: Mapping[int, int], out_of_order: Iterable[tuple[int, int]]
    ) -> None:
        """Take the saved state over.

        Args:
            positions: saved positions by level, possibly of a configuration with another number of levels.
            java_positions: positions of Java's delayOffset.json by level, counted from 1; the higher one wins.
            out_of_order: level and number of saved deliveries out of order.
        """
        for level in range(self.count):
            saved = positions[level] if level < len(positions) else 0
            self.positions[level] = max(saved, java_positions.get(level + 1, 0))
        self.delivered_out_of_order.update(out_of_order)

    def clamp_to_queues(self) -> None:
        """Lower each position to the end of its queue: the log may have lost entries that a position covers."""
        for level in range(self.count):
            queue = self._queues.level(level)
            self.positions[level] = min(self.positions[level], 0 if queue is None else queue.max)

    def is_used(self) -> bool:
        """Return whether a level has a queue."""
        return any(self._queues.level(level) is not None for level in range(self.count))

    def add_delivered(self, level: int, number: int) -> None:
        """Skip entry `number` of a level when its turn comes: it is delivered."""
        if level < self.count:
            self.delivered_out_of_order.add((level, number))

    def mark_delivered(self, message: DueMessage) -> None:
        """Move a level's position past `message`, its head."""
        self.positions[message.queue_id] = message.number + 1
        self._heads[message.queue_id] = None

    def forget_heads(self) -> None:
        """Read the heads again, because deliveries were added."""
        self._heads = [None] * self.count

    def next_due_ms(self) -> int | None:
        """Return the earliest due time of all levels; None if nothing is delayed."""
        return min(
            (head.due_ms for level in range(self.count) if (head := self._head(level)) is not None), default=None
        )

    def next_due(self, now_ms: int, timer: DueMessage | None) -> DueMessage | None:
        """Return the message that has been due longest, of the heads and a due `timer`; None if none is due."""
        first = timer
        for level in range(self.count):
            head = self._head(level)
            if head is None:
                continue
            due_ms = self._capped_due_ms(level, head, now_ms)
            if due_ms <= now_ms and (first is None or due_ms < first.due_ms):
                first = head
        return first

    def drop_obsolete(self, positions: tuple[int, ...]) -> None:
        """Forget deliveries out of order that durable `positions` cover."""
        self.delivered_out_of_order = {
            (level, number) for level, number in self.delivered_out_of_order if number >= positions[level]
        }

    def _head(self, level: int) -> DueMessage | None:
        head = self._heads[level]
        if head is not None:
            return head
        while (level, self.positions[level]) in self.delivered_out_of_order:
            self.positions[level] += 1
        queue = self._queues.level(level)
        if queue is None or queue.max <= self.positions[level]:
            return None
        first = queue.min_offset(self._queues.log_start)
        if self.positions[level] < first:
            logger.error(
                "Delay level %d: entries %d to %d were removed before delivery", level + 1, self.positions[level], first
            )
            self.positions[level] = first
            return self._head(level)
        number = self.positions[level]
        entry = DelayEntry(number, *ENTRY.unpack(queue.entries(number, 1)))
        head = self._heads[level] = DueMessage(SCHEDULE_TOPIC, level, number, self._queues.due_ms(entry))
        return head

    def _capped_due_ms(self, level: int, head: DueMessage, now_ms: int) -> int:
        """Return the due time of a head, at most the level's delay after it was first seen."""
        # A clock that was set back must not hold a level back: no entry waits longer than its delay.
        latest = now_ms + self._queues.delays_ms[level]
        if head.due_ms <= latest:
            return head.due_ms
        number, capped_ms = self._capped.get(level, (-1, 0))
        if number != head.number or capped_ms > latest:
            capped_ms = latest
            self._capped[level] = (head.number, capped_ms)
        return capped_ms
