"""Read access to the internal queues of delayed messages.

    SCHEDULE_TOPIC_XXXX, queue = level - 1    messages with a delay level; due times ascend
    rmq_sys_wheel_timer, queue 0              timers: messages with a delivery time, in order of arrival
    rmq_sys_wheel_timer, queue 1              cancellations: the tags code is the number of the entry in queue 0

The tags code of an entry in the first two is its due time in ms. [ScheduleMessageService, TimerMessageStore of 5.x]
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ariane.kernels.scanned_record import NotARecord
from ariane.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC
from ariane.protocol.records.queue_entry import BLANK_SIZE, ENTRY, LOST_CODE
from ariane.store.disk.segments import Segments
from ariane.store.log.record_scanner import compute_tags_code, read_record
from ariane.store.queues.consume_queue import ConsumeQueue
from ariane.store.queues.consume_queues import ConsumeQueues

logger = logging.getLogger("ariane.store")

TIMER_QUEUE, CANCEL_QUEUE = 0, 1  # queues of the timer topic
BATCH_ENTRIES = 1000  # entries per read
DUE_MIN_MS = 10**12  # a smaller tags code cannot be a time of this century: Java wrote the entry and hashed the tags


class DelayEntry(NamedTuple):
    """An entry of one of these queues whose record is still in the log."""

    number: int
    offset: int
    size: int
    tags_code: int


class DelayQueues:
    """The delay queues of one store, and due times for their entries."""

    def __init__(self, queues: ConsumeQueues, log: Segments, delays_ms: Sequence[int]) -> None:
        self.delays_ms = delays_ms
        self.log = log
        self._queues = queues

    @property
    def log_start(self) -> int:
        """Offset of the oldest record in the log."""
        return self.log.start

    def level(self, level: int) -> ConsumeQueue | None:
        """Return the queue of a delay level, counted from 0; None if it was never used."""
        return self._queues.get_opened(SCHEDULE_TOPIC, level)

    def timers(self) -> ConsumeQueue | None:
        """Return the timer queue; None if it was never used."""
        return self._queues.get_opened(TIMER_TOPIC, TIMER_QUEUE)

    def cancels(self) -> ConsumeQueue | None:
        """Return the queue of cancellations; None if it was never used."""
        return self._queues.get_opened(TIMER_TOPIC, CANCEL_QUEUE)

    def entries(self, queue: ConsumeQueue, start: int) -> Iterator[DelayEntry]:
        """Yield the entries from number `start` on, except those whose record was removed or lost."""
        log_start = self.log.start
        number = max(start, queue.min_offset(log_start))
        while number < queue.max:
            entries = queue.entries(number, BATCH_ENTRIES)
            if not entries:
                logger.error("Cannot read %s-%d from entry %d on", queue.topic, queue.queue_id, number)
                return
            for offset, size, code in ENTRY.iter_unpack(entries):
                if size != BLANK_SIZE and code != LOST_CODE and offset >= log_start:
                    yield DelayEntry(number, offset, size, code)
                number += 1

    def due_ms(self, entry: DelayEntry) -> int:
        """Return when an entry is due: its tags code, or the time computed from its record if Java wrote the entry."""
        if entry.tags_code >= DUE_MIN_MS:
            return entry.tags_code
        try:
            return compute_tags_code(read_record(self.log, entry.offset)[0], self.delays_ms)
        except NotARecord:
            # Due now, so that its delivery fails and is reported: an unreadable timer must not block later ones.
            logger.error("Cannot read the timer at %d (%d bytes): no due time", entry.offset, entry.size)
            return 0
