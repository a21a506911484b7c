"""Values of a recovery: what a start finds in a store directory, and how it recovers log and queues. `recovery` decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ariane.store.disk.files import OpenFiles
from ariane.store.disk.segments import Segments
from ariane.store.log.checkpoint import CheckpointFile
from ariane.store.log.record_scanner import CorruptRange
from ariane.store.queues.consume_queues import ConsumeQueues
from ariane.store.queues.queue_numbering import NumberingRestarts


class LoadedStore(NamedTuple):
    """A store directory whose files are listed but not recovered."""

    files: OpenFiles  # bounds the number of open files
    log: Segments  # its end is not found yet
    gap: int | None
    """Offset of the first commit log file that is missing between others."""
    queues: ConsumeQueues  # listed, and opened after the log is recovered
    checkpoint: CheckpointFile  # how far the files may be trusted
    clean: bool
    """The last process stopped in order."""


class RecoveryReport(NamedTuple):
    """What a start found and repaired, for its log lines and for tests."""

    clean: bool  # the last process stopped in order
    read_from: int  # the scan of the log began here
    dispatch_from: int  # queue entries were dispatched again from here
    end: int  # of the log after recovery
    last_ms: int  # store time of the last record
    stop_reason: str  # why the bytes at `end` are not a record
    cut_bytes: int  # bytes after `end` that were not zero and were removed
    notes: tuple[str, ...] = ()  # lines to report
    corrupt_ranges: tuple[CorruptRange, ...] = ()  # ranges that were skipped
    commits: Sequence[int] = ()  # offsets of records of committed transactions from `read_from` on


class RecoveryPlan(NamedTuple):
    """How a start recovers the log and the queues, decided before records are read."""

    read_from: int  # the scan of the log begins here
    dispatch_from: int  # queue entries are dispatched again from here
    min_store_ms: int | None  # of `RecordScanner`
    is_rebuild: bool  # queues may have been lost, so the first record of a queue may have any number
    restarts: NumberingRestarts  # of topics that were deleted and created again, from `read_from` on
    notes: list[str]  # lines to report
    is_empty: bool = False  # the log contains no record

    def restarts_at(self, offset: int) -> NumberingRestarts:
        """Return which lower numbers restart a queue at this offset of the log.

        Below `read_from` no record is torn: it was flushed, or withdrawn. But Java may have written it.
        """
        return self.restarts if offset >= self.read_from else NumberingRestarts.LIKELY
