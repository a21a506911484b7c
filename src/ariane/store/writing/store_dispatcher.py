"""When the queue entries of a store are written: at once for single records, in rounds for runs of plain sends.

    put      → `RecordAppender.pending` → `dispatch_listed`, in the same iteration of the loop
    put_run  → `CollectedEntries` → `dispatch_round`, a second later, some queues at a time
                                  → `dispatch_before_reading`, `dispatch_collected`: one queue, for a reader or a held pull

In synchronous mode, with confirmed reads, and on a slave, all entries are listed: none may be visible before its record is
flushed, confirmed, or received.
"""

from __future__ import annotations

from contextlib import suppress

from ariane.errors import StoreError
from ariane.store.queues import dispatch
from ariane.store.queues.consume_queue import ConsumeQueue
from ariane.store.queues.dispatch import Arrival
from ariane.store.recovery.recovered_state import RecoveredState
from ariane.store.upkeep.removed_files import RemovedFiles
from ariane.store.writing.log_replica import Replica, ReplicationSource
from ariane.store.writing.record_appender import RecordAppender

ROUND_QUEUES = 64  # queues written together: some 0.5 ms
CREATIONS_MAX = 4  # first files of queues that are created together: up to 1 ms each


class StoreDispatcher:
    """Writes the queue entries of one store. Methods raise StoreFull or StoreError if they cannot; a later call tries again."""

    def __init__(
        self,
        state: RecoveredState,
        appender: RecordAppender,
        *,
        source: ReplicationSource,
        removed_files: RemovedFiles,
    ) -> None:
        # All records that end at or before `dispatched` have their queue entries on file; the store time of the last of them.
        self.dispatched, self.dispatched_ms = state.log.end, state.log.last_ms
        self.replica: Replica | None = None  # of a slave
        self._log = state.log  # its end bounds a round
        self._queues = state.queues  # written here
        self._collected = state.queues.collected  # entries of plain sends
        self._index = state.index  # indexes dispatched records
        self._delayed = state.delayed  # reads the entries of delay queues
        self._appender = appender  # lists what is appended
        self._source = source  # how far records may be visible
        self._removed_files = removed_files  # learns of missing files
        # What `dispatched` and `dispatched_ms` are once the round in progress has ended; None between rounds.
        self._round_end: tuple[int, int] | None = None
        self._arrivals: list[Arrival] = []  # until they are taken
        self._has_failed = False  # the last write did: readers do not try again

    def take_arrivals(self) -> list[Arrival]:
        """Return the arrivals since the last call."""
        arrivals, self._arrivals = self._arrivals, []
        return arrivals

    def dispatch_all(self) -> None:
        """Write all entries (in sync mode: of flushed records)."""
        self.dispatch_listed()
        is_in_round = self._round_end is not None
        while self.dispatch_round(ROUND_QUEUES):
            pass
        while is_in_round and self.dispatch_round(ROUND_QUEUES):  # entries that came during that round
            pass

    def dispatch_listed(self, creations_max: int | None = None) -> bool:
        """Write the entries that are not collected, and the collected ones of the same queues.

        Returns:
            Whether entries remain because more than `creations_max` queues are new.
        """
        pending, replica = self._appender.pending, self.replica
        if not pending and replica is None:
            return False
        try:
            if replica is not None:
                arrivals, last = replica.dispatch_pending(self._source.readable_end)
            else:
                end, queues = self._source.readable_end, self._queues
                arrivals, last = dispatch.dispatch_pending(pending, end, queues, creations_max)
                self._appender.count_pending()
        except StoreError as error:
            self._note_failure(error)
            raise
        self._has_failed = False
        self._arrivals += arrivals
        if last is None:
            return False
        if not self._collected.records and self._round_end is None:
            self.dispatched, self.dispatched_ms = last.end, last.store_ms
        self._index.on_dispatched(last.end)
        if replica is not None:
            self._delayed.apply_master_deliveries(replica.delivered, self._log.end, self._log.last_ms)
            replica.delivered.clear()
        elif self._appender.has_delayed:
            self._appender.has_delayed = bool(pending)
            self._delayed.read_arrivals(self._log.end)
        return bool(pending) and pending[0].end <= self._source.readable_end

    def dispatch_round(self, queues_max: int) -> bool:
        """Write the collected entries of some queues; return whether the round is to be continued. [MessageStore.dispatch_round]"""
        if self._round_end is None:
            if self.dispatch_listed(CREATIONS_MAX):
                return True
            if not self._collected.records:
                if not self._appender.pending and self.replica is None:  # readers may have written the last ones
                    self.dispatched, self.dispatched_ms = self._log.end, self._log.last_ms
                return False
            self._collected.begin_round()
            self._round_end = self._log.end, self._log.last_ms
        creations = 0
        for _ in range(queues_max):
            if creations == CREATIONS_MAX:
                break
            queue = self._collected.next_queue()
            if queue is None:
                (self.dispatched, self.dispatched_ms), self._round_end = self._round_end, None
                return False
            creations += queue.is_new
            self.dispatch_collected(queue)
        return True

    def dispatch_collected(self, queue: ConsumeQueue) -> None:
        """Write the collected entries of a queue."""
        try:
            arrival = dispatch.dispatch_collected(queue, self._queues)
        except StoreError as error:
            self._note_failure(error)
            raise
        if arrival is not None:
            self._has_failed = False
            self._arrivals.append(arrival)

    def dispatch_before_reading(self, queue: ConsumeQueue | None = None) -> None:
        """Write what a reader is to see: listed entries, or the collected ones of a queue.

        After a failure only the other methods try again, and report it: reads stay cheap.
        """
        pending = self._appender.pending
        if self._has_failed:
            return
        with suppress(StoreError):
            if queue is not None:
                self.dispatch_collected(queue)
            elif pending and pending[0].end <= self._source.readable_end:
                self.dispatch_listed()

    def limit_creations(self) -> None:
        """Write the listed entries if that creates CREATIONS_MAX first files of queues. Call this before each put.

        So the client that sends to new queues waits for them, and no reader does. Entries of records that consumers cannot see
        yet are written later.
        """
        if self._appender.pending_creations >= CREATIONS_MAX and self._source.readable_end >= self._log.end:
            self.dispatch_before_reading()

    def close(self) -> None:
        """Forget what is not written: a dispatch that is still scheduled must not write."""
        self._collected.clear()
        self._appender.pending.clear()

    def _note_failure(self, error: StoreError) -> None:
        self._has_failed = True
        if isinstance(error.__cause__, FileNotFoundError):
            self._removed_files.report_removed(str(error.__cause__.filename))
