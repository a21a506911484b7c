"""Dispatch: builds consume queue entries from records of the commit log.

    put -> PendingEntry -> `dispatch_pending` -> entries of many records, one write per queue -> arrivals
    start -> runs of records of the log -> `dispatch_runs` -> entries that the queues lack

Half and rolled-back records get no entry. In synchronous mode no record after the flushed position is dispatched, so that no
consumer ever reads a message that a power loss could take back. [DefaultMessageStore.ReputMessageService]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ariane.kernels.record_runs import QueueRecords
from ariane.kernels.scanned_record import ScannedRecord
from ariane.model.message import TRANSACTION_COMMIT, TRANSACTION_MASK
from ariane.protocol.records.queue_entry import ENTRY, ENTRY_SIZE
from ariane.protocol.records.record import FIXED_SIZE
from ariane.store.disk.files import write_error
from ariane.store.log.deletions import Deletions
from ariane.store.log.record_scanner import DELAY_TOPICS, CorruptRange, ScannedRun, compute_tags_code
from ariane.store.queues import queue_numbering
from ariane.store.queues.consume_queue import ConsumeQueue
from ariane.store.queues.consume_queues import ConsumeQueues
from ariane.store.queues.queue_numbering import NumberingRestarts
from ariane.store.queues.recovery_plan import RecoveryPlan

BATCH_RECORDS = 20_000  # records per write while the log is read again


class Arrival(NamedTuple):
    """New messages of a queue: consumers can read up to `max_offset`."""

    topic: str
    queue_id: int
    max_offset: int
    entries: bytes  # of these messages; held pulls are filtered by their tags codes before a record is read


class RejectedRecord(NamedTuple):
    """A record that gets no entry, with the reason."""

    record: ScannedRecord
    reason: str

    def __str__(self) -> str:
        return f"record at {self.record.offset} ({self.record.topic.decode('utf-8', 'replace')}): {self.reason}"


class DispatchResult(NamedTuple):
    """Records and entries that a rebuild could not match."""

    rejected: list[RejectedRecord]
    lost_entries: list[str]  # a line for each range of entries without a record
    has_jump: bool  # a queue ends before the number of its next record


class PendingEntry(NamedTuple):
    """Dispatch work of records that were appended together and end at or before `end`.

    Only `end` decides when they are dispatched, so records of one append may be spread over several of these.
    """

    queue: ConsumeQueue | None  # None: the record gets no entry
    entries: bytes  # for `queue`
    next_offset: int  # number after the last of them
    store_ms: int  # for the checkpoint
    end: int

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.entries) // ENTRY_SIZE or 1


def has_entry(sys_flag: int) -> bool:
    """Return whether a record with these flags gets an entry in its queue."""
    return sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)


def dispatch_pending(
    pending: deque[PendingEntry], up_to: int, queues: ConsumeQueues, creations_max: int | None = None
) -> tuple[list[Arrival], PendingEntry | None]:
    """Write the entries of pending records that end at or before `up_to`, in the order of the records.

    Stops before the record that would create the first file of another queue after `creations_max` of them: that takes as
    long as writing the entries of fifty queues.

    All entries are written before any of them counts: after a failed write the records stay pending, and the next call writes the
    same entries again.

    Returns:
        The arrivals, and the last pending entry that was dispatched.
    """
    groups: dict[ConsumeQueue, list[bytes]] = {}
    arrivals: list[Arrival] = []
    count = creations = 0
    last: PendingEntry | None = None
    for pending_entry in pending:
        queue, entries, next_offset, _, end = pending_entry
        if end > up_to:
            break
        if queue is not None and queue.is_new and queue not in groups:
            if creations == creations_max:
                break
            creations += 1
        count += 1
        last = pending_entry
        if queue is not None:
            group = groups.get(queue)
            if group is None:
                collected = queues.collected.get(queue)
                if collected:
                    number = queue.max + len(collected) // ENTRY_SIZE
                    arrivals.append(Arrival(queue.topic, queue.queue_id, number, collected))
                groups[queue] = [collected, entries]
            else:
                group.append(entries)
            arrivals.append(Arrival(queue.topic, queue.queue_id, next_offset, entries))
    joined = [(queue, b"".join(group)) for queue, group in groups.items()]
    for queue, data in joined:
        _write(queue, data)
    for queue, data in joined:
        _commit(queue, data, queues)
    if count == len(pending):
        pending.clear()
    else:
        for _ in range(count):
            pending.popleft()
    return arrivals, last


def dispatch_collected(queue: ConsumeQueue, queues: ConsumeQueues) -> Arrival | None:
    """Write the collected entries of a queue; return their arrival, None if there are none."""
    data = queues.collected.get(queue)
    if not data:
        return None
    _write(queue, data)
    _commit(queue, data, queues)
    return Arrival(queue.topic, queue.queue_id, queue.max, data)


def _commit(queue: ConsumeQueue, data: bytes, queues: ConsumeQueues) -> None:
    """Count written entries, the collected ones among them."""
    queue.commit_written(data)
    queues.remember_tail(queue)
    queues.collected.remove(queue)


def _write(queue: ConsumeQueue, data: bytes) -> None:
    try:
        queue.write(data)
    except OSError as error:
        raise write_error(error, queue.segments.directory) from error


def dispatch_runs(
    runs: Iterable[ScannedRun],
    queues: ConsumeQueues,
    delays_ms: Sequence[int],
    corrupt_ranges: Sequence[CorruptRange],
    *,
    plan: RecoveryPlan,
    deletions: Deletions,
) -> DispatchResult:
    """Write the entries of the records in `runs`, in log order, that their queues lack.

    Args:
        corrupt_ranges: corrupt ranges of the log that is read, complete once all runs were taken.
        plan: decides what a number out of order means, see `queue_numbering`.
        deletions: their records get no entry.
    """
    dispatcher = _Dispatcher(queues, delays_ms, plan, deletions)
    for run in runs:
        dispatcher.take(run)
    dispatcher.end(sum(corrupt.size for corrupt in corrupt_ranges))
    rejected = sorted(dispatcher.refused, key=lambda rejected: rejected.record.offset)
    return DispatchResult(rejected, dispatcher.notes, dispatcher.has_jump)


class _Dispatcher:
    def __init__(
        self, queues: ConsumeQueues, delays_ms: Sequence[int], plan: RecoveryPlan, deletions: Deletions
    ) -> None:
        self._queues = queues  # where entries are written
        self._deletions = deletions  # records of deleted topics get no entry
        self._delays_ms = delays_ms  # tags code of a delayed record is its due time
        self._plan = plan  # whether queues may have lost entries
        # Entries that are not written yet, by queue: one write for many entries.
        self._gathered: dict[ConsumeQueue, list[bytes]] = {}
        # The record out of order of each queue, until the next one decides about it.
        self._deferred: dict[ConsumeQueue, ScannedRecord] = {}
        # Entries that are not written yet; BATCH_RECORDS of them are written together.
        self._count = 0
        self.refused: list[RejectedRecord] = []  # records whose number cannot follow the queue's, with the reason
        self.notes: list[str] = []  # a line for each range of numbers without records
        self.has_jump = False  # a record's number was higher than expected

    def take(self, run: ScannedRun) -> None:
        """Dispatch the next records of the log."""
        for records in run.scanned.queues:
            # Without deletions and with queues in order, which is usual, the entries are complete.
            is_usual = records.is_consecutive and records.topic not in DELAY_TOPICS
            if is_usual and not self._deletions.has_any(records.topic) and self._append_all(records):
                continue
            for record in run.records_of(records.entries):
                self._take_record(record)

    def _append_all(self, records: QueueRecords) -> bool:
        """Append the entries of all records of a queue; return False if that needs a look at each of them."""
        first, _, _ = ENTRY.unpack_from(records.entries)
        _, queue = self._queues.queue_for_record(records.topic, records.queue_id)
        if queue is None or queue in self._deferred or records.queue_offset != queue.next_offset:
            return False
        if first < queue.last_end:
            return False
        last, size, _ = ENTRY.unpack_from(records.entries, len(records.entries) - ENTRY_SIZE)
        self._add(queue, records.entries, last + size)
        return True

    def _take_record(self, record: ScannedRecord) -> None:
        if self._deletions.covers(record):
            return
        fault, queue = self._queues.queue_for_record(record.topic, record.queue_id)
        if queue is None:
            self._refuse(record, fault)
        elif record.offset < queue.last_end:
            return
        elif record.queue_offset == queue.next_offset and queue not in self._deferred:
            self._append(queue, record)
        else:
            self._out_of_order(queue, record)

    def end(self, lost_bytes: int) -> None:
        """Decide about the records that are still deferred, and write all entries."""
        missing_max = lost_bytes // FIXED_SIZE + len(self.refused)
        for queue, deferred in self._deferred.items():
            is_new = self._plan.is_rebuild and not queue.segments.bases and not queue.max
            restarts = self._restarts(queue, deferred)
            stays = queue_numbering.is_last_placed(
                queue.next_offset, deferred.queue_offset, missing_max, restarts=restarts, is_new=is_new
            )
            if stays:
                self._place(queue, deferred)
            else:
                self._refuse(
                    deferred, f"queue offset {deferred.queue_offset} is out of order, expected {queue.next_offset}"
                )
        self._deferred.clear()
        self._write_all()

    def _out_of_order(self, queue: ConsumeQueue, record: ScannedRecord) -> None:
        self.has_jump |= record.queue_offset > queue.next_offset and bool(queue.segments.bases)
        deferred = self._deferred.pop(queue, None)
        if deferred is not None:
            expected = queue.next_offset
            restarts = self._restarts(queue, deferred)
            verdict = queue_numbering.decide(expected, deferred.queue_offset, record.queue_offset, restarts=restarts)
            if verdict.place_deferred:
                self._place(queue, deferred)
            else:
                self._refuse(deferred, f"queue offset {deferred.queue_offset} is out of order, expected {expected}")
            if verdict.place_new:
                self._place(queue, record)
                return
        if record.queue_offset == queue.next_offset:
            self._append(queue, record)
        else:
            self._deferred[queue] = record

    def _restarts(self, queue: ConsumeQueue, deferred: ScannedRecord) -> NumberingRestarts:
        # An empty queue can lose nothing. If its first file was lost, its numbers begin with those of the second.
        return self._plan.restarts_at(deferred.offset) if queue.last_end else NumberingRestarts.LIKELY

    def _place(self, queue: ConsumeQueue, record: ScannedRecord) -> None:
        """Append the entry of a record at the number it names."""
        if record.queue_offset != queue.next_offset:
            self._write(queue)
            expected = queue.next_offset
            fault = align_queue_end(queue, record, compute_tags_code(record, self._delays_ms))
            if fault:
                self._refuse(record, fault)
                return
            if expected < record.queue_offset and queue.segments.bases:
                numbers = f"{expected} to {record.queue_offset - 1}"
                self.notes.append(
                    f"{queue.topic}-{queue.queue_id}: entries {numbers} have no record, consumers skip them"
                )
        self._append(queue, record)

    def _append(self, queue: ConsumeQueue, record: ScannedRecord) -> None:
        entry = ENTRY.pack(record.offset, record.size, compute_tags_code(record, self._delays_ms))
        self._add(queue, entry, record.end)

    def _add(self, queue: ConsumeQueue, entries: bytes, end: int) -> None:
        """Append entries whose last record ends at `end`."""
        self._gathered.setdefault(queue, []).append(entries)
        count = len(entries) // ENTRY_SIZE
        queue.next_offset += count
        queue.last_end = end
        self._count += count
        if self._count >= BATCH_RECORDS:
            self._write_all()

    def _refuse(self, record: ScannedRecord, reason: str) -> None:
        self.refused.append(RejectedRecord(record, reason))

    def _write_all(self) -> None:
        for queue in list(self._gathered):
            self._write(queue)
        self._count = 0

    def _write(self, queue: ConsumeQueue) -> None:
        data = b"".join(self._gathered.pop(queue, ()))
        if data:
            _write(queue, data)
            queue.commit_written(data)
            queue.clear_tail()


def align_queue_end(queue: ConsumeQueue, record: ScannedRecord, code: int) -> str:
    """Move the end of a queue to the number of `record`, its next record; return why that is not possible, or ""."""
    number = record.queue_offset
    if not queue.segments.bases:
        queue.restart(number)
    elif number < queue.max:
        # Numbers only start again if the topic was deleted and created again: the older entries were deleted with it.
        queue.restart(number)
    elif (number - queue.max) * len(ENTRY.pack(0, 0, 0)) > queue.segments.size:
        return f"queue offset {number} of {queue.topic}-{queue.queue_id} is out of order: the queue ends at {queue.max}"
    else:
        try:
            queue.fill_lost(number, record.offset, record.size, code)
        except OSError as error:
            raise write_error(error, queue.segments.directory) from error
    return ""
