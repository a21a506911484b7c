"""The commit log: every record of the broker, one after another, in files of equal size.

    | record | record | ... | filler: room left i32, 0xCBD43194, rest unchanged |   | record | ...
    ^ start of file                       a record and 8 spare bytes must fit       ^ next file

Appending is one pwrite; once it returns, the record survives the death of the process. It survives a power loss once a flush that
covers it has ended. After a failed fsync the content of the disk is unknown, so the log takes no more records.
[CommitLog]
"""

from __future__ import annotations

import logging

from ariane.errors import FlushFailed, MessageRefused, StoreError
from ariane.protocol.records.record import FILLER_SIZE, filler
from ariane.store.disk.files import Disk, OpenFiles, write_error
from ariane.store.disk.flush import FlushRound
from ariane.store.disk.segments import Segments

log = logging.getLogger("ariane.store")

CORRUPT_RECORDS_MAX = 10_000  # remembered corrupt records, so that each is reported only once


class CommitLog:
    """Append, read, flush. `end` is the offset of the next record; the log is durable below `flushed`."""

    def __init__(self, files: OpenFiles, segments: Segments, end: int, last_ms: int) -> None:
        """Open the log at `end`, a record boundary below which everything is flushed; create the file there if it is missing."""
        self._disk: Disk = files.disk  # written directly: every put appends
        self.segments = segments  # files of the log
        self.size = segments.size  # bytes of a file
        # Offset of the next record, and the offset below which everything is on the disk.
        self.end = end
        self.flushed = end
        self.last_ms = last_ms  # store time of the last record: the next may not be earlier
        # Store time of the last flushed record, for the checkpoint.
        self.flushed_ms = last_ms
        # After a failed fsync: the disk may have lost anything since the last good one, so no write is taken again.
        self.failure: StoreError | None = None
        self.write_failure: StoreError | None = None  # the first failed write that was reported, until it is cleared
        self.corrupt_records: dict[int, int] = {}  # offset and size of corrupt records that queue entries point to
        # At most one flush at a time, so that `flushed` only grows.
        self._flushing: FlushRound | None = None
        self._filled: list[tuple[str, int]] = []  # path and handle of full files that are not flushed
        # A file was created whose name is not durable: the next flush has to fsync the directory.
        self._directory_changed = False
        if not segments.has(end):
            segments.create_file(end)
            self._directory_changed = True
        # The file that is written, open all the time: a put must not look up a handle.
        self._base = end - end % self.size
        self._path = segments.path(self._base)  # of the file that is written
        self._handle = self._disk.open(self._path)  # after a change of file the flush closes the former one
        self.room = self._base + self.size - FILLER_SIZE - end  # size of the largest record that fits into this file

    @property
    def start(self) -> int:
        """Offset of the oldest record."""
        return self.segments.start

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes, not beyond the end of the file that contains `offset`."""
        return self.segments.read(offset, length)

    def report_corrupt_record(self, offset: int, size: int) -> None:
        """Report once that a queue entry points to `size` bytes at `offset` that are not a record."""
        if offset not in self.corrupt_records and len(self.corrupt_records) < CORRUPT_RECORDS_MAX:
            self.corrupt_records[offset] = size
            log.error(
                "%s: corrupt record of %d bytes at %d; consumers skip it (see `ariane store check`)",
                self.segments.path(offset - offset % self.size),
                size,
                offset,
            )

    def append(self, data: bytes, store_ms: int) -> None:
        """Write `data`, a record that was encoded for `end` and is not longer than `room`."""
        position = self.end - self._base
        try:
            self._disk.pwrite(self._handle, data, position)
        except OSError as error:
            self._wipe(position)
            raise self._write_failed(error, self._path) from error
        size = len(data)
        self.end += size
        self.room -= size
        self.last_ms = store_ms

    def roll(self, size: int) -> int:
        """Begin the next file because `size` bytes do not fit into the current one; return the new `end`."""
        if size > self.size - FILLER_SIZE:
            raise MessageRefused(
                f"a record or batch of {size} bytes does not fit into a commit log file of {self.size} bytes"
                " (mappedFileSizeCommitLog): send less at a time"
            )
        base = self._base + self.size
        position = self.end - self._base
        try:
            # First the file, then the filler that points to it: a crash between them leaves an empty file, which a start removes.
            if not self.segments.has(base):
                self.segments.create_file(base)
            self._directory_changed = True
            handle = self._disk.open(self.segments.path(base))
        except OSError as error:
            raise self._write_failed(error, self.segments.path(base)) from error
        try:
            self._disk.pwrite(self._handle, filler(self.size - position), position)
        except OSError as error:
            self._disk.close(handle)
            self._wipe(position)
            raise self._write_failed(error, self._path) from error
        self._filled.append((self._path, self._handle))
        self._base, self._path, self._handle = base, self.segments.path(base), handle
        self.end = base
        self.room = self.size - FILLER_SIZE
        return base

    def append_raw(self, data: bytes, offset: int) -> None:
        """Write bytes of a master's log at `offset`, at or after `end` and within one file; `advance` makes them count."""
        base = offset - offset % self.size
        try:
            if base != self._base:
                if not self.segments.has(base):
                    self.segments.create_file(base)
                self._directory_changed = True
                handle = self._disk.open(self.segments.path(base))
                self._filled.append((self._path, self._handle))
                self._base, self._path, self._handle = base, self.segments.path(base), handle
        except OSError as error:
            raise write_error(error, self.segments.path(base)) from error
        try:
            self._disk.pwrite(self._handle, data, offset - base)
        except OSError as error:
            self._wipe(offset - base)
            raise write_error(error, self._path) from error

    def advance(self, end: int, last_ms: int) -> None:
        """Count the bytes that `append_raw` wrote up to the record boundary `end`."""
        self.end = end
        self.last_ms = max(self.last_ms, last_ms)

    def begin_at(self, base: int) -> None:
        """Let an empty log begin at another file. Only one file exists at a time, so that a crash leaves no gap."""
        self._filled.append((self._path, self._handle))  # a flush in flight may use it, so the next one closes it
        for existing in list(self.segments.bases):
            self.segments.remove_file(existing)
        self._disk.fsync_dir(self.segments.directory)
        self.segments.create_file(base)
        self._disk.fsync_dir(self.segments.directory)  # durable before `flushed` below and the next checkpoint say so
        self._base, self._path = base, self.segments.path(base)
        self._handle = self._disk.open(self._path)
        self.end = self.flushed = base

    def _write_failed(self, error: OSError, path: str) -> StoreError:
        """Return the error for the caller, and report the first one: every send may meet it."""
        failure = write_error(error, path)
        if self.write_failure is None:
            self.write_failure = failure
            log.error("Messages are refused: %s", failure, extra={"notice": True})
        return failure

    def clear_write_failure(self) -> bool:
        """Report the next failed write again; return whether one was reported."""
        failed, self.write_failure = self.write_failure is not None, None
        return failed

    def _wipe(self, position: int) -> None:
        """Zero the bytes that a failed write left, so that they are never read as a record."""
        try:
            self._disk.truncate(self._handle, position)
            self._disk.truncate(self._handle, self.size)
        except OSError as error:
            self.failure = StoreError(
                f"Cannot clean {self._path} after a failed write: {error}; restart the broker to write again"
            )

    def begin_flush(self) -> FlushRound | None:
        """Return the work that makes everything appended so far durable; None if there is none, or a flush is in flight."""
        if self._flushing is not None or self.failure is not None:
            return None
        if self.flushed == self.end and not self._directory_changed:
            return None
        self._flushing = self.new_flush_round()
        return self._flushing

    def new_flush_round(self) -> FlushRound:
        """Return the same work even if a flush is in flight."""
        return FlushRound(
            self._disk,
            self.end,
            self.last_ms,
            handles=(*self._filled, (self._path, self._handle)),
            directories=(self.segments.directory,) if self._directory_changed else (),
        )

    def end_flush(self, flush: FlushRound, error: OSError | None) -> None:
        """Take the outcome of `flush.run()`."""
        if flush is self._flushing:
            self._flushing = None
        if error is not None:
            self.fail(error)
        if self.failure is not None:
            return
        if flush.up_to > self.flushed:
            self.flushed, self.flushed_ms = flush.up_to, flush.store_ms
        done = set(flush.handles)
        if self._flushing is None:  # else the flush in flight may still use them
            for base in [base for base in self._filled if base in done]:
                self._filled.remove(base)
                self._disk.close(base[1])
        if flush.directories and (self._path, self._handle) in done:
            self._directory_changed = False

    def fail(self, error: OSError) -> None:
        """Refuse all later writes: after a failed fsync the kernel may have dropped the pages and marked them clean."""
        if self.failure is None:
            self.failure = FlushFailed(str(error.filename or self.segments.directory), error.strerror or str(error))

    def close(self) -> None:
        for _, handle in self._filled:
            self._disk.close(handle)
        self._filled.clear()
        self._disk.close(self._handle)
