"""The writer of the change log: appends, flushes, rotates and removes files (`change_records` describes the format).

Each flush checks whether files were removed from outside. If so, a new file is started and all documents are written again from
memory (`restart`, `mark_restored`); changes of removed files are durable only when the documents hold them.

[no counterpart in Java, which rewrites the whole document before it answers]
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterable, Mapping
from concurrent.futures import Executor
from typing import NamedTuple

from ariane.broker.state.saved.change_records import (
    NAME_DIGITS,
    OWN_CHANGES,
    PREFIX,
    Change,
    ChangeEntry,
    ChangeLogFile,
    ChangeLogStart,
    DocumentSaved,
    LoadedChanges,
    SavedDocument,
    encode,
)
from ariane.errors import FlushFailed, StoreError, StoreFull
from ariane.store.disk.files import NO_ROOM, Disk, exists, open_error, write_error

log = logging.getLogger("ariane.broker.state")

ROTATE_BYTES = 1 << 20
LOG_BYTES_MAX = 256 << 20  # of all files; reached only while the documents cannot be written


class _Flush(NamedTuple):
    """The files that a worker thread has to fsync to make all changes up to number `up_to` durable."""

    disk: Disk
    up_to: int
    paths: tuple[str, ...]
    new_paths: frozenset[str]

    def run(self) -> None:
        for path in self.paths:
            try:
                handle = self.disk.open(path)
            except (FileNotFoundError, NotADirectoryError):
                continue  # removed by this process, if documents hold its changes; else `find_removed` notices it
            try:
                self.disk.fsync(handle)
            except OSError as error:
                raise OSError(error.errno, error.strerror, path) from error
            finally:
                self.disk.close(handle)
        # A new file is durable only with its entry in the directory.
        for directory in {path.rpartition("/")[0] for path in self.new_paths}:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # `find_removed` notices it
                self.disk.fsync_dir(directory)


def _mark_retrieved(waiter: asyncio.Future[None]) -> None:
    """Keep asyncio from reporting an exception that is never retrieved."""
    if not waiter.cancelled():
        waiter.exception()


class ChangeLog:
    """The writer of the change log.

    `append` is called from the event loop only. A change that it returned from survives the death of the process.

    Args:
        is_sync: Whether responses wait for the disk (`wait_durable`); otherwise the caller flushes periodically.
        executor: Runs fsyncs.
    """

    def __init__(self, disk: Disk, directory: str, loaded: LoadedChanges, executor: Executor, *, is_sync: bool) -> None:
        self._disk = disk
        self._directory = directory  # config/ below the store directory
        self._executor = executor
        self._is_sync = is_sync
        self._files = list(loaded.files)  # oldest first
        self._handle: int | None = None  # of the last file; None before the first append of this process
        self._last_n = loaded.last_n  # number of the last appended change
        self._shared_n = loaded.last_n  # last change that responses to other clients depend on: all but OWN_CHANGES
        self._flushed_n = loaded.last_n  # all changes up to this number are durable
        self._documents: dict[str, tuple[SavedDocument, ...]] = {}  # contents of each document and of its .bak
        self._unflushed: dict[str, int] = {}  # files with changes that are not on the disk → the last of these changes
        self._new_paths: set[str] = set()  # files whose directory entry is not on the disk
        self._is_flushing = False  # one fsync at a time; waiters that come meanwhile share the next
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []  # with the number of the change that each waits for
        self._failure: FlushFailed | None = None  # of the first fsync that failed; the log is read-only since then
        self._removed: str | None = None  # a file that a flush did not find at its path, until `restart`
        self._lost_n: int | None = None  # last change in removed files, until `mark_restored`

    @property
    def last_n(self) -> int:
        """Number of the last change."""
        return self._last_n

    @property
    def has_failed(self) -> bool:
        """Whether an fsync failed: all changes are refused from then on."""
        return self._failure is not None

    @property
    def needs_restore(self) -> bool:
        """Whether files were removed, so that some changes are only in memory until the documents are written again."""
        return self._lost_n is not None

    def start(self, contents: Mapping[str, tuple[SavedDocument, ...]]) -> None:
        """Start a file that extends these contents of the documents. If the disk is full, later appends try again.

        The first file of a store is durable before the store is: it proves that there is a configuration (`lost_configuration`).

        Raises:
            StoreError: the directory cannot be created or written.
        """
        self._documents = dict(contents)
        try:
            self._start_file()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise open_error(error, self._directory) from error
            log.error("Cannot start a change log; changes are refused until there is room: %s", error)
        else:
            if not contents:
                self.flush_blocking()

    # --- writing ---

    def append(self, *changes: Change) -> int:
        """Write changes by one write, all or none. Return the number of the last one.

        Raises:
            StoreFull: no room is left; the caller must not make the changes.
            StoreError: the file cannot be written, or an fsync failed before.
        """
        if sum(file.size for file in self._files) > LOG_BYTES_MAX:
            raise StoreFull(
                f"the change log in {self._directory} has {LOG_BYTES_MAX} bytes, the maximum, because the documents cannot be"
                " written; see the log for the reason"
            )
        self._append(*changes)
        if not OWN_CHANGES.issuperset(map(type, changes)):
            self._shared_n = self._last_n
        return self._last_n

    def _append(self, *changes: Change | DocumentSaved) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        try:
            if self._handle is None:
                self._start_file()
            entries = [ChangeEntry(n, change) for n, change in enumerate(changes, self._last_n + 1)]
            self._write(b"".join(map(encode, entries)))
        except OSError as error:
            raise write_error(error, self._files[-1].path if self._handle is not None else self._directory) from error
        for entry in entries:
            self._files[-1].add(entry.n, entry.change)
        self._last_n += len(entries)
        self._unflushed[self._files[-1].path] = self._last_n

    def _write(self, data: bytes) -> None:
        file, handle = self._files[-1], self._handle
        assert handle is not None
        try:
            self._disk.pwrite(handle, data, file.size)
        except OSError:
            try:
                self._disk.truncate(handle, file.size)  # a part of the line may have been written
            except OSError as error:
                log.warning("Cannot remove a partly written change at the end of %s: %s", file.path, error)
            raise
        file.size += len(data)

    def _start_file(self) -> None:
        path = f"{self._directory}/{PREFIX}{self._last_n + 1:0{NAME_DIGITS}d}"
        for parent in self._disk.make_dirs(self._directory):
            self._disk.fsync_dir(parent)  # otherwise a power loss could remove the directory with all flushed changes
        if self._disk.size(path) is not None:  # started by a process that died before its first change
            self._disk.remove(path)
            self._files = [file for file in self._files if file.path != path]
        handle = self._disk.create(path, 0)
        data = encode(ChangeEntry(self._last_n, ChangeLogStart(self._documents)))
        try:
            self._disk.pwrite(handle, data, 0)
        except OSError:
            self._disk.close(handle)
            self._disk.remove(path)
            raise
        self.close()
        self._handle = handle
        self._files.append(ChangeLogFile(path, len(data)))
        self._unflushed[path] = self._last_n
        self._new_paths.add(path)

    # --- files removed from outside ---

    def find_removed(self) -> str | None:
        """Return the path of a file of the log that is missing at its path, None if all are in place.

        The open file can still be written when its path is gone, but the next start would not find it.
        """
        if self._failure is not None:
            return None
        if self._removed is None:
            self._removed = next((file.path for file in self._files if not self._is_in_place(file)), None)
        return self._removed

    def _is_in_place(self, file: ChangeLogFile) -> bool:
        if self._handle is not None and file is self._files[-1]:
            return self._disk.is_at(self._handle, file.path)
        return exists(self._disk, file.path)

    def restart(self, removed: str, names: Iterable[str]) -> None:
        """Start a new file because `removed`, a file of the log or a document, is missing.

        The changes so far are durable once all documents (`names`) hold them: write these, then call `mark_restored`. A start
        before that misses documents that this file names, and is refused. If no file can be created, all later changes are
        refused.
        """
        self._removed = None
        if self._failure is None:
            self._lost_n = self._last_n
            self._documents = {name: self._documents.get(name, ()) for name in names}
            try:
                self._files = [file for file in self._files if self._is_in_place(file)]
                self._start_file()
            except OSError as error:
                self.fail(error)
                return
            paths = {file.path for file in self._files}
            self._unflushed = {path: n for path, n in self._unflushed.items() if path in paths}
            self._new_paths &= paths
        log.error(
            "%s was removed while the broker runs: writing topics, groups and offsets to %s again from memory."
            " Find out what removed it",
            removed, self._directory, extra={"notice": True},
        )  # fmt: skip

    def mark_restored(self, n: int) -> None:
        """Record that all documents were written again and hold the changes up to number `n`."""
        if self._lost_n is not None and n >= self._lost_n:
            self._lost_n = None
            self._flushed_n = max(self._flushed_n, n)
            self._resolve_waiters()

    def fail(self, error: OSError | StoreError) -> FlushFailed:
        """Refuse all later changes because removed files cannot be written again. Return the error for the caller."""
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        self._lost_n = None
        failure = self._refuse(
            self._directory,
            f"files in it were removed while the broker runs, and cannot be written again ({reason}). Correct that before you"
            " stop the broker: it writes them once more when it stops",
        )
        self._resolve_waiters()
        return failure

    def _refuse(self, path: str, reason: str) -> FlushFailed:
        self._failure = FlushFailed(path, reason)
        log.critical("%s", self._failure, extra={"notice": True})
        return self._failure

    # --- the disk ---

    @property
    def has_pending(self) -> bool:
        """Return whether `wait_durable` would return an awaitable."""
        return self._is_sync and self._shared_n > self._flushed_n

    def wait_durable(self, n: int | None = None) -> Awaitable[None] | None:
        """Wait until changes are as safe as the flush mode promises: up to number `n`, or all that responses depend on.

        Returns:
            None if they are; otherwise an awaitable, which raises FlushFailed if they never will be.
        """
        n = self._shared_n if n is None else n
        if not self._is_sync or n <= self._flushed_n:
            return None
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        waiter.add_done_callback(_mark_retrieved)  # it is never awaited if the request failed for another reason
        if self._failure is not None:
            waiter.set_exception(self._failure)
            return waiter
        if not self._waiters:
            loop.call_soon(self._flush_for_waiters)  # one fsync for all changes of this iteration of the loop
        self._waiters.append((n, waiter))
        return waiter

    def _flush_for_waiters(self) -> None:
        if self._is_flushing or not self._waiters or self._removed is not None or self._lost_n is not None:
            return
        # Changes that arrive during this fsync wait for the next one, which `_resolve_waiters` starts.
        flush = self._plan_flush()
        self._is_flushing = True
        running = asyncio.get_running_loop().run_in_executor(self._executor, flush.run)
        running.add_done_callback(lambda done: self._flushed_for_waiters(flush, done))

    def _flushed_for_waiters(self, flush: _Flush, done: asyncio.Future[None]) -> None:
        self._is_flushing = False
        if not done.cancelled():
            self._finish_flush(flush, done.exception())
        self._resolve_waiters()

    def _resolve_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for n, waiter in waiters:
            if waiter.done():
                continue
            if self._failure is not None:
                waiter.set_exception(self._failure)
            elif n <= self._flushed_n:
                waiter.set_result(None)
            else:
                self._waiters.append((n, waiter))
        self._flush_for_waiters()

    async def flush(self) -> None:
        """Flush all changes to the disk in the worker thread.

        Raises:
            FlushFailed: an fsync failed, now or before.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if not self._unflushed:
            return
        flush = self._plan_flush()
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, flush.run)
        except OSError as error:
            self._finish_flush(flush, error)
            assert self._failure is not None
            raise self._failure from error
        self._finish_flush(flush, None)

    def flush_blocking(self) -> None:
        """Flush all changes to the disk, blocking.

        Raises:
            FlushFailed: an fsync failed, now or before.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        flush = self._plan_flush()
        try:
            flush.run()
        except OSError as error:
            self._finish_flush(flush, error)
            assert self._failure is not None
            raise self._failure from error
        self._finish_flush(flush, None)

    def _plan_flush(self) -> _Flush:
        return _Flush(self._disk, self._last_n, tuple(self._unflushed), frozenset(self._new_paths))

    def _finish_flush(self, flush: _Flush, error: BaseException | None) -> None:
        try:
            self.find_removed()
        except OSError as removal_error:
            error = error or removal_error
        if error is not None:
            if not isinstance(error, OSError):
                raise error
            self._refuse(str(error.filename or self._directory), error.strerror or str(error))
            return
        if self._removed is None and self._lost_n is None:  # otherwise the documents have to hold the changes first
            self._flushed_n = max(self._flushed_n, flush.up_to)
        self._unflushed = {path: n for path, n in self._unflushed.items() if n > flush.up_to}
        self._new_paths -= flush.new_paths

    # --- documents ---

    def rotate(self) -> None:
        """Start a new file, so that the former ones can be removed once the documents hold their changes."""
        if (
            self.has_failed
            or self._handle is None
            or (not self._files[-1].last and self._files[-1].size < ROTATE_BYTES)
        ):
            return
        self._start_file()

    def record_document(self, name: str, content: SavedDocument) -> None:
        """Append that a document is about to be replaced by this content, or that its first one was written."""
        self._append(DocumentSaved(name, content, name in self._documents))

    def remove_covered(self, name: str, content: SavedDocument) -> None:
        """Remove the files whose changes all documents hold, after the document was replaced by this content."""
        former = [saved for saved in self._documents.get(name, ()) if saved.crc != content.crc]
        self._documents[name] = (content, *former[:1])
        while len(self._files) > 1 and self._is_covered(self._files[0]):
            file = self._files.pop(0)
            self._unflushed.pop(file.path, None)
            if self._disk.size(file.path) is not None:
                self._disk.remove(file.path)

    def _is_covered(self, file: ChangeLogFile) -> bool:
        saved_n = {name: contents[0].n for name, contents in self._documents.items() if contents}
        return all(n <= saved_n.get(name, -1) for name, n in file.last.items())

    def close(self) -> None:
        """Close the open file."""
        if self._handle is not None:
            self._disk.close(self._handle)
            self._handle = None
