"""Delivery log: which delayed messages are already delivered or cancelled, as the commit log says.

    commit log   | delayed @100 | ... | delivered, prepared offset ~100 |        @100 is delivered

A delivered record carries the complement (~) of the delayed record's commit log offset as its prepared offset, so deliveries after
the last save of `timers/state` are found when a start reads the log. No order of writes between two files is needed for that.
A cancellation is an entry of the cancel queue. [no counterpart in Java, whose deliveries can repeat after a crash]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ariane.kernels.scanned_record import NotARecord, ScannedRecord
from ariane.model.message import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from ariane.store.delays.delay_queues import DelayQueues
from ariane.store.delays.pending_deliveries import Key
from ariane.store.disk.segments import Segments
from ariane.store.log.record_scanner import RecordScanner, ScannedRun, read_record


def is_delivery(record: ScannedRecord) -> bool:
    """Return whether a record is the delivered form of a delayed one. A withdrawn record (`queue_rebuild`) delivers nothing."""
    return record.prepared_offset < 0 and record.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK


def collect_deliveries(runs: Iterable[ScannedRun], delivered: dict[int, int]) -> Iterator[ScannedRun]:
    """Yield `runs` unchanged and add the deliveries among their records to `delivered`.

    Args:
        delivered: filled with the offset of each delivery and that of the delayed record it delivers.
    """
    for run in runs:
        for offset, prepared_offset in run.scanned.deliveries:
            delivered[offset] = ~prepared_offset
        yield run


def scan_deliveries(log: Segments, log_end: int) -> list[int]:
    """Return the offsets of all delayed records that the log says were delivered."""
    offset, delivered = log.start, []
    while offset < log_end:
        scanner = RecordScanner(log, offset, log_end, check_crc=False, min_store_ms=0, all_written=True)
        delivered += [~prepared for run in scanner.runs() for _, prepared in run.scanned.deliveries]
        offset = scanner.end
        if offset < log_end:
            offset += log.size - offset % log.size  # the rest of this file cannot be read
    return delivered


def read_delayed_records(log: Segments, offsets: Iterable[int]) -> Iterator[ScannedRecord]:
    """Yield the delayed records at these offsets, except those that were removed from the log."""
    for offset in offsets:
        try:
            yield read_record(log, offset)[0]
        except NotARecord:
            continue


class DeliveryLog:
    """Timers that must not be delivered when their turn comes: delivered already, stored again, or cancelled."""

    def __init__(self, queues: DelayQueues) -> None:
        # Delivered timers, by number, until they reach the head of the timer order.
        self.delivered: set[int] = set()
        # Pending cancellations: timer number to number in the cancel queue.
        self.cancels: dict[int, int] = {}
        # Cancellations that took effect: number in the cancel queue to timer, until a durable mark covers the timer.
        self.applied_cancels: dict[int, Key] = {}
        # Entries of the cancel queue below this number were read.
        self.cancel_position = 0
        # Timers in `delivered` that were stored again, with the end of the new record, which may not be flushed yet.
        self._restored: dict[int, int] = {}
        self._queues = queues  # the queue of cancellations

    def read_cancels(self) -> None:
        """Read the new entries of the cancel queue."""
        queue = self._queues.cancels()
        if queue is None or queue.max <= self.cancel_position:
            return
        for entry in self._queues.entries(queue, self.cancel_position):
            if entry.number not in self.applied_cancels:
                self.cancels[entry.tags_code] = entry.number
        self.cancel_position = queue.max

    def is_settled(self, number: int) -> bool:
        """Return whether a timer is cancelled or delivered already."""
        return number in self.cancels or number in self.delivered

    def settle(self, key: Key) -> bool:
        """Return whether the timer at the head is settled, and if so forget it: its turn has come and gone."""
        number = key[1]
        if number in self.cancels:
            self.applied_cancels[self.cancels.pop(number)] = key
            return True
        if number in self.delivered:
            self.delivered.discard(number)
            return True
        return False

    def add_restored(self, number: int, log_end: int) -> None:
        """Count a timer as delivered because it was stored again, by a record that ends at `log_end`."""
        self.delivered.add(number)
        self._restored[number] = log_end

    # --- the saved state ---

    def drop_obsolete(self, done: Key, flushed: int) -> None:
        """Forget what a save no longer needs.

        Args:
            done: timers at or before this key are durably delivered.
            flushed: the log is durable below this offset.
        """
        self.applied_cancels = {entry: key for entry, key in self.applied_cancels.items() if key > done}
        self._restored = {number: end for number, end in self._restored.items() if end > flushed}

    @property
    def oldest_cancel(self) -> int:
        """Number of the oldest cancel entry that the next start has to read."""
        return min([*self.cancels.values(), *self.applied_cancels], default=self.cancel_position)

    def durable_deliveries(self) -> list[int]:
        """Return the delivered timers that a loss of power cannot bring back, sorted."""
        return sorted(number for number in self.delivered if number not in self._restored)
