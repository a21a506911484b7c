"""Flushes of derived files. Each flush ends with a new checkpoint.

    changed queue files, index files, state of delays  ->  fsync  ->  checkpoint that covers them  ->  fsync

A checkpoint shortens the next start; without one, everything is rebuilt from the log.
[DefaultMessageStore.FlushConsumeQueueService]
"""

from __future__ import annotations

from ariane.store.disk.flush import FlushPostponed, FlushRound
from ariane.store.log.checkpoint import REBUILDING, Checkpoint, encode
from ariane.store.recovery.recovered_state import RecoveredState
from ariane.store.upkeep.removed_files import RemovedFiles
from ariane.store.upkeep.retention import Retention


class CheckpointWriter:
    """The checkpoints of one store, one in flight at a time."""

    def __init__(self, state: RecoveredState, *, retention: Retention, removed_files: RemovedFiles) -> None:
        self._disk = state.files.disk  # of the flush rounds
        self._file = state.checkpoint  # latest written and latest durable checkpoint
        # What a checkpoint covers.
        self._log = state.log
        self._queues = state.queues  # files to flush, and their number
        self._index = state.index  # None: the store has no key index
        self._delayed = state.delayed  # its state is part of each flush
        # Queue files that are about to be removed must not be counted.
        self._retention = retention
        # Learns which files a flush did not find.
        self._removed_files = removed_files
        # At most one, because each checkpoint is computed from the one before.
        self.in_flight: FlushRound | None = None

    @property
    def is_first_needed(self) -> bool:
        """Whether the checkpoint on disk is Java's or of a rebuild: a crash now would be attributed to Java."""
        return self._file.latest.safe_offset is None or self._file.latest.queue_files >= REBUILDING

    def begin(self, dispatched: int, dispatched_ms: int) -> FlushRound | None:
        """Return the work that makes the derived files and a checkpoint of them durable.

        Args:
            dispatched: all records that end at or before this offset have their queue entries.
            dispatched_ms: store time of the last of them.

        Returns:
            None if nothing changed, a checkpoint is in flight, or the log has failed.
        """
        if self.in_flight is not None or self._log.failure is not None:
            return None
        keys = self._index.take_changed(dispatched)
        checkpoint = self._build(dispatched, dispatched_ms)
        delays = self._delayed.begin_save(self._log.flushed)
        if checkpoint == self._file.latest and not any((*self._queues.changed, delays, *keys)):
            return None
        files, directories = self._queues.take_changed()
        self._file.latest = checkpoint
        self.in_flight = FlushRound(
            self._disk,
            up_to=0,
            store_ms=0,
            paths=(*files, *keys.files),
            directories=(*directories, *keys.directories),
            replaced=tuple(delays),
            checkpoint=(self._file.path, encode(checkpoint)),
            missing=[],
        )
        return self.in_flight

    def _build(self, dispatched: int, dispatched_ms: int) -> Checkpoint:
        """Return the checkpoint that is true once the files that changed so far are flushed."""
        log = self._log
        checkpoint = Checkpoint(
            physic_ms=log.flushed_ms,
            logics_ms=dispatched_ms,
            index_ms=self._file.latest.index_ms,
            safe_offset=min(log.flushed, dispatched),
            queue_files=self._queues.file_count() - self._retention.planned_count,
            # The empty log of a slave begins where its master's does, so its start is not known yet.
            log_start=log.start if log.end > log.start else None,
        )
        return self._index.add_to_checkpoint(checkpoint, log.flushed)

    def end(self, flush: FlushRound, error: OSError | FlushPostponed | None) -> None:
        """Take the outcome of `flush`, the one in flight."""
        self.in_flight = None
        self._delayed.end_save(written=error is None)
        self._removed_files.check_flushed(flush.missing or [], self._index)
        if isinstance(error, OSError):
            self._log.fail(error)
        elif error is not None:
            # Differs from every later checkpoint, so the next call writes one although nothing else changed.
            self._file.latest = self._file.latest._replace(safe_offset=None)
        else:
            self._file.durable = self._file.latest
