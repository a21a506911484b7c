"""Replication: the part of a log that slaves may read, and the log of a slave, which is filled with the bytes of its master.

    master   | record | record | record | filler ...|
    slave    | record | record | rec
                               ^ log.end            a record boundary: flushing, dispatching and reading end here
                                   ^ received       next offset to receive, as acknowledged to the master

A partly received record does not exist: a start cuts it off like a torn write, and the master sends it again from there.
Records that arrive together are one run, which is dispatched as a whole if each of its queues simply goes on.
[HAService.HAClient, DefaultMessageStore.appendToCommitLog]
"""

from __future__ import annotations

from collections import deque

from ariane.errors import ConfigError, StoreCorrupt, StoreError, StoreFull
from ariane.kernels.key_hashes import is_indexed
from ariane.kernels.scanned_record import ScannedRecord
from ariane.protocol.records.queue_entry import ENTRY, INDEX_KEY
from ariane.store.delays.delivery_log import is_delivery
from ariane.store.disk.files import write_error
from ariane.store.index.index_builder import IndexBuilder, to_keyed_record
from ariane.store.log.commit_log import CommitLog
from ariane.store.log.deletions import Deletions
from ariane.store.log.record_scanner import CHUNK_BYTES, DELAY_TOPICS, RecordScanner, ScannedRun, compute_tags_code
from ariane.store.queues import dispatch
from ariane.store.queues.consume_queue import ConsumeQueue
from ariane.store.queues.consume_queues import ConsumeQueues
from ariane.store.queues.dispatch import Arrival, PendingEntry
from ariane.store.types import StoreConfig

BATCH_ENTRIES = 20_000  # pending entries per write of queue entries
RECEIVED_MAX = 200_000  # received records without queue entries; beyond, no bytes are taken


class ReplicationSource:
    """The part of a store's log that slaves may read, and the part that consumers may read."""

    def __init__(self, log: CommitLog, config: StoreConfig) -> None:
        # End of the log that other members have, too: consumers read up to there. None: they read what slaves may read.
        self.confirmed: int | None = 0 if config.confirmed_reads else None
        self._log = log
        self._sync = config.flush == "sync"

    @property
    def end(self) -> int:
        """End of the part for slaves: in sync mode of the flushed part, so that no power loss leaves a slave ahead."""
        return self._log.flushed if self._sync else self._log.end

    @property
    def readable_end(self) -> int:
        """End of the part for consumers. Queue entries are written up to there, records are numbered up to the end of the log."""
        confirmed = self.confirmed
        return self.end if confirmed is None else min(self.end, confirmed)

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes, not beyond the end of a file."""
        size = min(size, self.end - offset)
        return self._log.read(offset, size) if size > 0 else b""


class Replica:
    """The log of a slave. `append` and `dispatch_pending` take the place of a master's puts and dispatch."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        pending: deque[PendingEntry],
        delays_ms: tuple[int, ...],
        index: IndexBuilder,
        deletions: Deletions,
    ) -> None:
        self._log = log  # appended as received, byte by byte the master's
        self._deletions = deletions  # records of deleted topics get no queue entries
        self._index = index  # of the keys of all received records
        self._queues = queues  # dispatched from the received records
        self._pending = pending  # shared with the store, which writes the entries
        self._delays_ms = delays_ms  # tags code of a delayed record is its due time
        # Next offset to receive; after `log.end` while a record is incomplete.
        self.received = log.end
        self.file_size = log.size  # must be the master's, because records may not cross a file's end
        self._received: deque[ScannedRun | ScannedRecord] = deque()  # complete records that are not pending yet
        self._received_records = 0  # number of them
        self.delivered: list[int] = []  # offsets of delayed records that the master has delivered; emptied by the store
        self._arrivals: list[Arrival] = []  # also those of a dispatch that failed half-way
        # Last dispatched record, also if a later part of the same dispatch failed.
        self._last_pending: PendingEntry | None = None
        # The first received record, if it does not follow the last one of its queue.
        self._out_of_order: ScannedRecord | None = None

    @property
    def start(self) -> int:
        """Start of the log: what was before has been removed."""
        return self._log.segments.start

    @property
    def end(self) -> int:
        """End of the log: of its last complete record."""
        return self._log.end

    @property
    def flushed(self) -> int:
        """All records that end at or before this offset are on the disk."""
        return self._log.flushed

    def drop_incomplete(self) -> None:
        """Receive an incomplete record again, from its beginning."""
        self.received = self._log.end

    def append(self, offset: int, data: bytes) -> None:
        """Append the bytes that the master has at `offset`. An empty log begins at the offset of its first bytes.

        Raises:
            StoreError, StoreFull: the bytes cannot be written, or too many records are pending.
            ConfigError: master and slave have different file sizes.
        """
        log = self._log
        if log.failure is not None:
            raise log.failure.with_traceback(None)
        if self._received_records >= RECEIVED_MAX:
            raise StoreFull(f"{RECEIVED_MAX} received records are pending: their queue entries cannot be written")
        if self.received == 0 and offset:
            if offset % log.size:
                raise StoreError(
                    f"The master's log begins at {offset}, which is not the beginning of a commit log file of {log.size} bytes:"
                    f" set mappedFileSizeCommitLog to the master's value"
                )
            self._begin_at(offset)
        if offset != self.received:
            raise StoreError(f"The master sends from {offset}, but this log ends at {self.received}")
        if offset % log.size + len(data) > log.size:
            raise ConfigError(
                "mappedFileSizeCommitLog",
                log.size,
                "a slave needs the file size of its master; remove the slave's store to change it",
            )
        log.append_raw(data, offset)
        self.received += len(data)
        self._advance()

    def _begin_at(self, offset: int) -> None:
        try:
            self._log.begin_at(offset)
        except OSError as error:
            raise write_error(error, self._log.segments.path(offset)) from error
        self.received = offset

    def _advance(self) -> None:
        """Move the end of the log to the end of the last complete record."""
        log = self._log
        scanner = RecordScanner(log.segments, log.end, self.received, check_crc=False, hash_keys=True)
        scanner.chunk_bytes = min(CHUNK_BYTES, self.received - log.end)
        end, last_ms = log.end, log.last_ms
        for run in scanner.runs():
            if run.end > self.received:  # bytes of an earlier connection complete its last record
                end, last_ms = self._receive_records(end, last_ms)
                break
            end, last_ms = run.end, run.scanned.times.last_ms
            self._received.append(run._replace(data=b""))  # its bytes are in the log, and may be many
            self._received_records += run.scanned.records
        else:
            if scanner.end <= self.received:
                end = scanner.end  # also after a filler, once its file is complete
        log.advance(end, last_ms)
        if self.received - end > log.size:
            raise StoreCorrupt(
                log.segments.path(end - end % log.size), end % log.size, f"not a record: {scanner.stop_reason}"
            )

    def _receive_records(self, end: int, last_ms: int) -> tuple[int, int]:
        """Take the complete records from `end` on one by one; return the end and the store time of the last one."""
        for record in RecordScanner(self._log.segments, end, self.received, check_crc=False):
            if record.end > self.received:
                break
            end, last_ms = record.end, record.store_ms
            self._received.append(record)
            self._received_records += 1
        return end, last_ms

    def dispatch_pending(self, up_to: int) -> tuple[list[Arrival], PendingEntry | None]:
        """Dispatch the received records up to `up_to`, like `dispatch.dispatch_pending`."""
        while True:
            self._take_received(up_to)
            arrivals, pending = dispatch.dispatch_pending(self._pending, up_to, self._queues)
            self._arrivals += arrivals
            self._last_pending = pending or self._last_pending
            if self._out_of_order is not None and not self._pending:
                self._align_queue(self._out_of_order)
            elif pending is None:
                arrivals, self._arrivals = self._arrivals, []
                return arrivals, self._last_pending

    def _take_received(self, up_to: int) -> None:
        """Make received records pending, as a put does."""
        received = self._received
        while received and len(self._pending) < BATCH_ENTRIES:
            record = received[0]
            if isinstance(record, ScannedRun):
                if record.offset >= up_to:
                    return
                received.popleft()
                if record.end <= up_to and self._take_run(record):
                    self._received_records -= record.scanned.records
                else:
                    log = self._log.segments
                    received.extendleft(reversed(list(RecordScanner(log, record.offset, record.end, check_crc=False))))
                continue
            if record.end > up_to:
                return
            queue = None
            if dispatch.has_entry(record.sys_flag) and not self._deletions.covers(record):
                fault, queue = self._queues.queue_for_record(record.topic, record.queue_id)
                if queue is None:
                    raise StoreError(f"The master's record at {record.offset} has no queue: {fault}")
                if record.queue_offset != queue.next_offset:
                    self._out_of_order = record
                    return
            received.popleft()
            self._received_records -= 1
            if is_delivery(record):
                self.delivered.append(~record.prepared_offset)
            if is_indexed(record.sys_flag):
                self._index.add_pending(to_keyed_record(record))
            self._add_pending(record, queue)

    def _take_run(self, run: ScannedRun) -> bool:
        """Make all records of a run pending; return False if that needs a look at each of them."""
        queues = []
        for records in run.scanned.queues:
            if not records.is_consecutive or records.topic in DELAY_TOPICS or self._deletions.has_any(records.topic):
                return False
            _, queue = self._queues.queue_for_record(records.topic, records.queue_id)
            if queue is None or records.queue_offset != queue.next_offset:
                return False
            queues.append((queue, records))
        last_ms = run.scanned.times.last_ms
        for queue, records in queues:
            queue.next_offset += records.size
            self._pending.append(PendingEntry(queue, records.entries, queue.next_offset, last_ms, run.end))
        if not queues:
            self._pending.append(PendingEntry(None, b"", 0, last_ms, run.end))
        self.delivered += [~prepared_offset for _, prepared_offset in run.scanned.deliveries]
        start = 0
        for count, store_ms in run.scanned.key_times:
            end = start + count * INDEX_KEY.size
            self._index.add_pending_keys(run.offset, store_ms, run.scanned.keys[start:end])
            start = end
        return True

    def _add_pending(self, record: ScannedRecord, queue: ConsumeQueue | None) -> None:
        if queue is None:
            self._pending.append(PendingEntry(None, b"", 0, record.store_ms, record.end))
        else:
            code = compute_tags_code(record, self._delays_ms)
            entry = ENTRY.pack(record.offset, record.size, code)
            queue.next_offset += 1
            self._pending.append(PendingEntry(queue, entry, queue.next_offset, record.store_ms, record.end))

    def _align_queue(self, record: ScannedRecord) -> None:
        """Move the end of a record's queue to its number: the master deleted and created its topic, or removed older entries."""
        fault, queue = self._queues.queue_for_record(record.topic, record.queue_id)
        try:
            fault = (
                dispatch.align_queue_end(queue, record, compute_tags_code(record, self._delays_ms))
                if queue is not None
                else fault
            )
        except OSError as error:
            raise write_error(error, f"the queue of {record.topic!r}") from error
        if fault:
            raise StoreError(f"The master's record at {record.offset}: {fault}")
        self._out_of_order = None
