"""A log from a log: what a store gives to slaves, and one that takes the bytes of its master and derives queues from them.

    master   | record | record | record | filler ...|
    here     | record | record | rec
                               ^ log.end            a record boundary: what is flushed, derived and read ends here
                                   ^ received       where the next bytes go, and what the master is told

A record whose end has not come yet does not exist: a start cuts it off like a torn write, and the master sends it again from
there. [HAService.HAClient, DefaultMessageStore.appendToCommitLog]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ariane.errors import ConfigError, StoreCorrupt, StoreError, StoreFull
from ariane.store import dispatch
from ariane.store.commit_log import CommitLog
from ariane.store.consume_queue import ENTRY, ConsumeQueue
from ariane.store.consume_queues import ConsumeQueues
from ariane.store.deletions import Deletions
from ariane.store.delivery_log import is_delivery
from ariane.store.dispatch import Arrival, PendingEntry
from ariane.store.files import write_error
from ariane.store.index_builder import to_keyed
from ariane.store.key_hashes import Keyed, is_indexed
from ariane.store.record_scanner import RecordScanner, ScannedRecord, compute_tags_code

BATCH_RECORDS = 20_000  # records taken between two writes of queue entries
RECEIVED_MAX = 200_000  # records that wait for that; beyond, the log waits, too


class ReplicationSource:
    """What consumers and slaves of one store may read of its log."""

    def __init__(self, log: CommitLog, *, sync: bool) -> None:
        self._log = log
        self._sync = sync

    @property
    def end(self) -> int:
        """In sync mode only what is flushed, so that no loss of power leaves a slave ahead of its master."""
        return self._log.flushed if self._sync else self._log.end

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes, not beyond the end of a file."""
        size = min(size, self.end - offset)
        return self._log.read(offset, size) if size > 0 else b""


class Replica:
    """The follower's side of one store. `append` and `step` instead of the puts and the step of a master."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        notes: deque[PendingEntry],
        delays_ms: tuple[int, ...],
        note_keys: Callable[[Keyed], None],
        deletions: Deletions,
    ) -> None:
        self._log = log
        self._deletions = deletions
        self._add_keys = note_keys
        self._queues = queues
        self._pending = notes
        self._delays_ms = delays_ms
        self.received = log.end
        self.file_size = log.size
        self._received_records: deque[ScannedRecord] = deque()  # whole records that are not noted yet
        self.delivered: list[
            int
        ] = []  # where the delayed records lie that the master has delivered; emptied by the store
        self._arrivals: list[Arrival] = []  # of a step that failed half-way, too
        self._last_pending: PendingEntry | None = None
        self._out_of_order: ScannedRecord | None = (
            None  # the first of them, when it does not follow the last one of its queue
        )

    def append(self, offset: int, data: bytes) -> None:
        """Take the bytes that the master has at `offset`. An empty log begins wherever the first ones come from."""
        log = self._log
        if log.failure is not None:
            raise log.failure.with_traceback(None)
        if len(self._received_records) >= RECEIVED_MAX:
            raise StoreFull(f"{RECEIVED_MAX} records wait for their queue entries: the disk of the queues takes none")
        if self.received == 0 and offset:
            if offset % log.size:
                raise StoreError(
                    f"the master begins at {offset}, which is not where a commit log file of {log.size} bytes begins:"
                    f" set mappedFileSizeCommitLog as the master has it"
                )
            self._begin_at(offset)
        if offset != self.received:
            raise StoreError(f"the master sends from {offset}, this log ends at {self.received}")
        if offset % log.size + len(data) > log.size:
            raise ConfigError(
                "mappedFileSizeCommitLog",
                log.size,
                "a slave needs the size that its master has; remove its store to change it",
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
        """Let the log end behind the last record that is complete."""
        log = self._log
        walk = RecordScanner(log.segments, log.end, self.received, check_crc=False)
        end, last_ms = log.end, log.last_ms
        for found in walk:
            if found.end > self.received:
                break
            end, last_ms = found.end, found.store_ms
            self._received_records.append(found)
        else:
            if walk.end <= self.received:
                end = walk.end  # a filler, too, once its file is whole
        log.advance(end, last_ms)
        if self.received - end > log.size:
            raise StoreCorrupt(
                log.segments.path(end - end % log.size), end % log.size, f"no record here: {walk.stop_reason}"
            )

    def dispatch_pending(self, up_to: int) -> tuple[list[Arrival], PendingEntry | None]:
        """Derive the entries of what has come, as far as `up_to`; as `dispatch.step`."""
        while True:
            self._take_received(up_to)
            some, note = dispatch.dispatch_pending(self._pending, up_to, self._queues)
            self._arrivals += some
            self._last_pending = note or self._last_pending
            if self._out_of_order is not None and not self._pending:
                self._align_queue(self._out_of_order)
            elif note is None:
                arrivals, self._arrivals = self._arrivals, []
                return arrivals, self._last_pending

    def _take_received(self, up_to: int) -> None:
        """Leave notes of the records that have come, as a put does."""
        waiting = self._received_records
        while waiting and waiting[0].end <= up_to and len(self._pending) < BATCH_RECORDS:
            found = waiting[0]
            queue = None
            if dispatch.has_entry(found.sys_flag) and not self._deletions.covers(found):
                fault, queue = self._queues.queue_for_record(found)
                if queue is None:
                    raise StoreError(f"the master's record at {found.offset} has no queue: {fault}")
                if found.queue_offset != queue.next_offset:
                    self._out_of_order = found
                    return
            waiting.popleft()
            if is_delivery(found):
                self.delivered.append(~found.prepared_offset)
            if is_indexed(found.sys_flag):
                self._add_keys(to_keyed(found))
            self._add_pending(found, queue)

    def _add_pending(self, found: ScannedRecord, queue: ConsumeQueue | None) -> None:
        if queue is None:
            self._pending.append(PendingEntry(None, b"", 0, 0, found.store_ms, found.end))
        else:
            code = compute_tags_code(found, self._delays_ms)
            entry = ENTRY.pack(found.offset, found.size, code)
            self._pending.append(PendingEntry(queue, entry, found.queue_offset, code, found.store_ms, found.end))
            queue.next_offset += 1

    def _align_queue(self, found: ScannedRecord) -> None:
        """The master deleted the topic of `found` and made it anew, or removed what came before."""
        fault, queue = self._queues.queue_for_record(found)
        try:
            fault = (
                dispatch.align_queue_end(queue, found, compute_tags_code(found, self._delays_ms))
                if queue is not None
                else fault
            )
        except OSError as error:
            raise write_error(error, f"the queue of {found.topic!r}") from error
        if fault:
            raise StoreError(f"the master's record at {found.offset}: {fault}")
        self._out_of_order = None
