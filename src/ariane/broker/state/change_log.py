"""The writer of the change log: appends, flushes, and files that are begun and removed (`changes` has the format).

Files that somebody removes while the broker runs are noticed at each flush. Then a new file begins, all documents are written again
from memory (`begin_again`, `restored`), and changes of removed files are durable only when the documents hold them.

[no counterpart in Java, which rewrites the whole document before it answers]
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterable, Mapping
from concurrent.futures import Executor
from typing import NamedTuple

from ariane.broker.state.change_records import (
    NAME_DIGITS,
    PREFIX,
    Change,
    ChangeEntry,
    ChangeLogFile,
    ChangeLogStart,
    DocumentSaved,
    LoadedChanges,
    QueuesLocked,
    QueuesUnlocked,
    SavedDocument,
    encode,
)
from ariane.errors import FlushFailed, StoreError, StoreFull
from ariane.store.files import NO_ROOM, Disk, exists, open_error, write_error

log = logging.getLogger("ariane.broker.state")

ROTATE_BYTES = 1 << 20
LOG_BYTES_MAX = 256 << 20  # of all files; reached only while the documents cannot be written


class _Flush(NamedTuple):
    """What a worker thread has to fsync so that all changes up to number `up_to` are on the disk."""

    disk: Disk
    up_to: int
    paths: tuple[str, ...]
    new_paths: frozenset[str]

    def run(self) -> None:
        for path in self.paths:
            try:
                handle = self.disk.open(path)
            except (FileNotFoundError, NotADirectoryError):
                continue  # by this process, if documents hold its changes; else the loop notices it (`find_removed`)
            try:
                self.disk.fsync(handle)
            except OSError as error:
                raise OSError(error.errno, error.strerror, path) from error
            finally:
                self.disk.close(handle)
        for directory in {path.rpartition("/")[0] for path in self.new_paths}:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # the loop checks what was removed
                self.disk.fsync_dir(directory)


def _retrieved(waiter: asyncio.Future[None]) -> None:
    if not waiter.cancelled():
        waiter.exception()


class ChangeLog:
    """The writer. `append` from the loop only; what it returned from survives the death of the process.

    Args:
        is_sync: Whether answers wait for the disk (`durable`); otherwise the caller flushes now and then.
        executor: Runs fsyncs.
    """

    def __init__(self, disk: Disk, directory: str, loaded: LoadedChanges, executor: Executor, *, is_sync: bool) -> None:
        self._disk = disk
        self._directory = directory
        self._executor = executor
        self._is_sync = is_sync
        self._files = list(loaded.files)  # oldest first
        self._handle: int | None = None  # of the last file; None before the first append of this process
        self._last_n = loaded.last_n
        self._shared_n = loaded.last_n  # last change that answers to others depend on: all but locks
        self._flushed_n = loaded.last_n
        self._documents: dict[str, tuple[SavedDocument, ...]] = {}
        self._unflushed: dict[str, int] = {}  # files with changes that are not on the disk, and the last such change
        self._new_paths: set[str] = set()
        self._is_flushing = False
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._failure: FlushFailed | None = None
        self._removed: str | None = None  # a file that a flush did not find at its path, until `begin_again`
        self._lost_n: int | None = None  # last change that removed files held, until `restored`

    @property
    def last_n(self) -> int:
        return self._last_n

    @property
    def has_failed(self) -> bool:
        """Whether an fsync failed: no change is taken any more."""
        return self._failure is not None

    @property
    def needs_restore(self) -> bool:
        """Whether changes are in memory alone, because files were removed: the documents have to be written again."""
        return self._lost_n is not None

    def start(self, contents: Mapping[str, tuple[SavedDocument, ...]]) -> None:
        """Begin a file that extends these contents of the documents. Later appends try again if the disk is full now.

        Raises:
            StoreError: The directory cannot be created or written.
        """
        self._documents = dict(contents)
        try:
            self._start_file()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise open_error(error, self._directory) from error
            log.error("cannot begin a change log, changes are refused until it can be: %s", error)

    # --- writing ---

    def append(self, change: Change) -> int:
        """Write a change. Returns its number.

        Raises:
            StoreFull: There is no room; the caller must not make the change.
            StoreError: The file cannot be written, or an fsync failed before.
        """
        if sum(file.size for file in self._files) > LOG_BYTES_MAX:
            raise StoreFull(
                f"{LOG_BYTES_MAX} bytes of changes wait in {self._directory}: its documents cannot be written"
            )
        n = self._append(change)
        if not isinstance(change, QueuesLocked | QueuesUnlocked):
            self._shared_n = n
        return n

    def _append(self, change: Change | DocumentSaved) -> int:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        try:
            if self._handle is None:
                self._start_file()
            n = self._last_n + 1
            self._write(encode(ChangeEntry(n, change)))
        except OSError as error:
            raise write_error(error, self._files[-1].path if self._handle is not None else self._directory) from error
        self._last_n = n
        self._unflushed[self._files[-1].path] = n
        self._files[-1].add(n, change)
        return n

    def _write(self, data: bytes) -> None:
        file, handle = self._files[-1], self._handle
        assert handle is not None
        try:
            self._disk.pwrite(handle, data, file.size)
        except OSError:
            try:
                self._disk.truncate(handle, file.size)  # a part of the line may be there
            except OSError as error:
                log.warning("%s ends with a part of a change: %s", file.path, error)
            raise
        file.size += len(data)

    def _start_file(self) -> None:
        path = f"{self._directory}/{PREFIX}{self._last_n + 1:0{NAME_DIGITS}d}"
        for parent in self._disk.make_dirs(self._directory):
            self._disk.fsync_dir(parent)  # else a loss of power could take the directory with all that is flushed in it
        if self._disk.size(path) is not None:  # begun by a process that died before its first change
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

    # --- files that are removed from outside ---

    def find_removed(self) -> str | None:
        """Return the path of a file of the log that is not at its path any more, None if there is none.

        The file that is open can still be written, but no start would find it.
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
        """Begin a new file because `removed`, a file of the log or a document, was removed.

        The changes so far are durable once all documents (`names`) hold them: write these, then call `restored`. A start
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
            "%s was removed while the broker runs: topics, groups and offsets are written to %s again from memory."
            " Look for what removed it",
            removed, self._directory, extra={"notice": True},
        )  # fmt: skip

    def mark_restored(self, n: int) -> None:
        """All documents were written again; they hold the changes up to number `n`."""
        if self._lost_n is not None and n >= self._lost_n:
            self._lost_n = None
            self._flushed_n = max(self._flushed_n, n)
            self._resolve_waiters()

    def fail(self, error: OSError | StoreError) -> FlushFailed:
        """Refuse all later changes because removed files cannot be written again. Return the error for the caller."""
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        self._lost_n = None
        failure = self._refuse(
            self._directory,
            f"files in it were removed while the broker runs, and cannot be written again ({why}). Correct that before you"
            " stop the broker: a stop writes them once more",
        )
        self._resolve_waiters()
        return failure

    def _refuse(self, path: str, why: str) -> FlushFailed:
        self._failure = FlushFailed(path, why)
        log.critical("%s", self._failure, extra={"notice": True})
        return self._failure

    # --- the disk ---

    def wait_durable(self, n: int | None = None) -> Awaitable[None] | None:
        """Wait until changes are as safe as the flush mode promises: up to number `n`, or all that answers depend on.

        Returns None if they are; otherwise an awaitable, which raises FlushFailed if they never will be.
        """
        n = self._shared_n if n is None else n
        if not self._is_sync or n <= self._flushed_n:
            return None
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        waiter.add_done_callback(_retrieved)  # a request that failed by itself no longer waits
        if self._failure is not None:
            waiter.set_exception(self._failure)
            return waiter
        if not self._waiters:
            loop.call_soon(self._flush_for_waiters)  # together with what else this turn of the loop changes
        self._waiters.append((n, waiter))
        return waiter

    def _flush_for_waiters(self) -> None:
        if self._is_flushing or not self._waiters or self._removed is not None or self._lost_n is not None:
            return
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
        """Bring everything to the disk, in the worker thread. Raises FlushFailed."""
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
        """Bring everything to the disk, here and now. Raises FlushFailed."""
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
        except OSError as caught:
            error = error or caught
        if error is not None:
            if not isinstance(error, OSError):
                raise error
            self._refuse(str(error.filename or self._directory), error.strerror or str(error))
            return
        if self._removed is None and self._lost_n is None:  # else the documents have to hold the changes first
            self._flushed_n = max(self._flushed_n, flush.up_to)
        self._unflushed = {path: n for path, n in self._unflushed.items() if n > flush.up_to}
        self._new_paths -= flush.new_paths

    # --- documents ---

    def rotate(self) -> None:
        """Begin a new file, so that the changes so far can be removed once the documents hold them."""
        if (
            self.has_failed
            or self._handle is None
            or (not self._files[-1].last and self._files[-1].size < ROTATE_BYTES)
        ):
            return
        self._start_file()

    def record_document(self, name: str, content: SavedDocument) -> None:
        """Note that a document is about to be replaced by this content, or that its first one was written."""
        self._append(DocumentSaved(name, content, name in self._documents))

    def remove_covered(self, name: str, content: SavedDocument) -> None:
        """The document was replaced by this content: remove the files whose changes are in documents."""
        former = [one for one in self._documents.get(name, ()) if one.crc != content.crc]
        self._documents[name] = (content, *former[:1])
        while len(self._files) > 1 and self._is_covered(self._files[0]):
            file = self._files.pop(0)
            self._unflushed.pop(file.path, None)
            if self._disk.size(file.path) is not None:
                self._disk.remove(file.path)

    def _is_covered(self, file: ChangeLogFile) -> bool:
        held = {name: contents[0].n for name, contents in self._documents.items() if contents}
        return all(n <= held.get(name, -1) for name, n in file.last.items())

    def close(self) -> None:
        if self._handle is not None:
            self._disk.close(self._handle)
            self._handle = None
