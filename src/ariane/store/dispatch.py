"""From records to queue entries. A put leaves a note of what it appended; `step` turns the notes into entries, queue by queue.

Records that were appended before this process began are read from the log instead (`derive`). Half and rolled-back records get
no entry. In synchronous mode nothing above the flushed position is derived, so that no consumer ever reads what a loss of power
could take back. [DefaultMessageStore.ReputMessageService]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ariane.model.message import TRANSACTION_COMMIT, TRANSACTION_MASK
from ariane.protocol.record import FIXED_SIZE
from ariane.store import queue_numbering
from ariane.store.consume_queue import ENTRY, ConsumeQueue
from ariane.store.consume_queues import ConsumeQueues
from ariane.store.deletions import Deletions
from ariane.store.files import write_error
from ariane.store.queue_numbering import NumberingRestarts
from ariane.store.record_scanner import CorruptRange, ScannedRecord, compute_tags_code
from ariane.store.recovery import RecoveryReport

BATCH_RECORDS = 20_000  # records whose entries are gathered before they are written, when the log is read again


class Arrival(NamedTuple):
    """A consumer can read up to `max_offset` now; the newest message has these tags and this store time."""

    topic: str
    queue_id: int
    max_offset: int
    tags_code: int
    store_ms: int


class RejectedRecord(NamedTuple):
    """A record that gets no entry, and why."""

    record: ScannedRecord
    why: str

    def __str__(self) -> str:
        return f"record at {self.record.offset} ({self.record.topic.decode('utf-8', 'replace')}): {self.why}"


class DispatchResult(NamedTuple):
    """What a rebuild of queue entries could not do."""

    rejected: list[RejectedRecord]
    lost_entries: list[str]  # entries without a record, in words


class PendingEntry(NamedTuple):
    """What a put leaves behind: `entry` for `queue` (None: no entry), of a record that ends at `end`."""

    queue: ConsumeQueue | None
    entry: bytes
    queue_offset: int
    tags_code: int
    store_ms: int
    end: int


def has_entry(sys_flag: int) -> bool:
    """Whether a record with these flags appears in its queue."""
    return sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)


def dispatch_pending(
    notes: deque[PendingEntry], up_to: int, queues: ConsumeQueues
) -> tuple[list[Arrival], PendingEntry | None]:
    """Derive the noted records that end at or below `up_to`; what arrived, and the last note taken.

    All entries are written before any counts: when a write fails the notes stay, and the next call writes the same again.
    """
    groups: dict[ConsumeQueue, list[bytes]] = {}
    ends: dict[ConsumeQueue, int] = {}
    arrivals: list[Arrival] = []
    taken = 0
    last: PendingEntry | None = None
    for note in notes:
        queue, entry, queue_offset, tags, store_ms, end = note
        if end > up_to:
            break
        taken += 1
        last = note
        if queue is not None:
            group = groups.get(queue)
            if group is None:
                groups[queue] = [entry]
            else:
                group.append(entry)
            ends[queue] = end
            arrivals.append(Arrival(queue.topic, queue.queue_id, queue_offset + 1, tags, store_ms))
    joined = [(queue, b"".join(group)) for queue, group in groups.items()]
    for queue, data in joined:
        _write(queue, data)
    for queue, data in joined:
        queue.commit_written(data, ends[queue])
        queues.remember_tail(queue)
    if taken == len(notes):
        notes.clear()
    else:
        for _ in range(taken):
            notes.popleft()
    return arrivals, last


def _write(queue: ConsumeQueue, data: bytes) -> None:
    try:
        queue.write(data)
    except OSError as error:
        raise write_error(error, queue.segments.directory) from error


def dispatch_records(
    records: Iterable[ScannedRecord],
    queues: ConsumeQueues,
    delays_ms: Sequence[int],
    corrupt_ranges: Sequence[CorruptRange] = (),
    *,
    recovered: RecoveryReport,
    deletions: Deletions,
) -> DispatchResult:
    """Make the entries of `records`, in the order of the log, that their queues lack.

    `lost` are the holes of what is read, complete once all records were taken. Numbers out of order: see `numbering`. Records in
    `deletions` get no entry.
    """
    deriving = _Dispatcher(queues, delays_ms, recovered, deletions)
    deriving.take(records)
    deriving.end(sum(hole.size for hole in corrupt_ranges))
    return DispatchResult(deriving.refused, deriving.lost)


class _Dispatcher:
    def __init__(
        self, queues: ConsumeQueues, delays_ms: Sequence[int], recovered: RecoveryReport, deletions: Deletions
    ) -> None:
        self._queues = queues
        self._deletions = deletions
        self._delays_ms = delays_ms
        self._recovered = recovered
        self._gathered: dict[ConsumeQueue, list[bytes]] = {}
        self._held: dict[ConsumeQueue, ScannedRecord] = {}
        self._count = 0
        self.refused: list[RejectedRecord] = []
        self.lost: list[str] = []

    def take(self, records: Iterable[ScannedRecord]) -> None:
        """All of `records`, one after another."""
        queues = self._queues
        for found in records:
            if not has_entry(found.sys_flag) or self._deletions.covers(found):
                continue
            fault, queue = queues.queue_for_record(found)
            if queue is None:
                self._refuse(found, fault)
                continue
            if found.offset < queue.last_end:
                continue
            if found.queue_offset == queue.next_offset and not (self._held and queue in self._held):
                self._append(queue, found)
            else:
                self._out_of_order(queue, found)

    def end(self, lost_bytes: int) -> None:
        """Decide about what is still held, and write all."""
        missing_max = lost_bytes // FIXED_SIZE + len(self.refused)
        for queue, held in self._held.items():
            is_new = self._recovered.is_rebuild and not queue.segments.bases and not queue.max
            restarts = self._restarts(queue, held)
            stays = queue_numbering.is_last_placed(
                queue.next_offset, held.queue_offset, missing_max, restarts=restarts, is_new=is_new
            )
            if stays:
                self._place(queue, held)
            else:
                self._refuse(held, f"its number {held.queue_offset} is out of order, {queue.next_offset} was due")
        self._held.clear()
        self._write_all()

    def _out_of_order(self, queue: ConsumeQueue, found: ScannedRecord) -> None:
        held = self._held.pop(queue, None)
        if held is not None:
            due = queue.next_offset
            restarts = self._restarts(queue, held)
            verdict = queue_numbering.decide(due, held.queue_offset, found.queue_offset, restarts=restarts)
            if verdict.place_held:
                self._place(queue, held)
            else:
                self._refuse(held, f"its number {held.queue_offset} is out of order, {due} was due")
            if verdict.place_new:
                self._place(queue, found)
                return
        if found.queue_offset == queue.next_offset:
            self._append(queue, found)
        else:
            self._held[queue] = found

    def _restarts(self, queue: ConsumeQueue, held: ScannedRecord) -> NumberingRestarts:
        # A queue without an entry can lose none. Its first file may be lost, then its numbers begin with those of the second.
        return self._recovered.restarts_at(held.offset) if queue.last_end else NumberingRestarts.LIKELY

    def _place(self, queue: ConsumeQueue, found: ScannedRecord) -> None:
        """Let `found` be the next entry of its queue, at the number it names."""
        if found.queue_offset != queue.next_offset:
            self._write(queue)
            due = queue.next_offset
            fault = align_queue_end(queue, found, compute_tags_code(found, self._delays_ms))
            if fault:
                self._refuse(found, fault)
                return
            if due < found.queue_offset and queue.segments.bases:
                numbers = f"{due} to {found.queue_offset - 1}"
                self.lost.append(
                    f"{queue.topic}-{queue.queue_id}: entries {numbers} have no record, readers are led past"
                )
        self._append(queue, found)

    def _append(self, queue: ConsumeQueue, found: ScannedRecord) -> None:
        entry = ENTRY.pack(found.offset, found.size, compute_tags_code(found, self._delays_ms))
        self._gathered.setdefault(queue, []).append(entry)
        queue.next_offset += 1
        queue.last_end = found.end
        self._count += 1
        if self._count % BATCH_RECORDS == 0:
            self._write_all()

    def _refuse(self, found: ScannedRecord, why: str) -> None:
        self.refused.append(RejectedRecord(found, why))

    def _write_all(self) -> None:
        for queue in list(self._gathered):
            self._write(queue)

    def _write(self, queue: ConsumeQueue) -> None:
        data = b"".join(self._gathered.pop(queue, ()))
        if data:
            _write(queue, data)
            queue.commit_written(data, queue.last_end)
            queue.clear_tail()


def align_queue_end(queue: ConsumeQueue, found: ScannedRecord, code: int) -> str:
    """Let `found` have the next entry of a queue that ends elsewhere; why it cannot, or ""."""
    number = found.queue_offset
    if not queue.segments.bases:
        queue.restart(number)
    elif number < queue.max:
        # Offsets only begin again when the topic was deleted and made anew: what came before was deleted with it.
        queue.restart(number)
    elif (number - queue.max) * len(ENTRY.pack(0, 0, 0)) > queue.segments.size:
        return (
            f"queue offset {number} of {queue.topic}-{queue.queue_id}, which ends at {queue.max}, is out of all order"
        )
    else:
        try:
            queue.fill_lost(number, found.offset, found.size, code)
        except OSError as error:
            raise write_error(error, queue.segments.directory) from error
    return ""
