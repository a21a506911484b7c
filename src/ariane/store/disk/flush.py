"""One round of fsyncs, as a value that a worker thread can run while the event loop goes on writing.

    log files -> derived files -> directories that name them -> small files -> checkpoint that covers all of them

A `FlushRound` has handles and paths that the loop thread chose; `run` touches nothing else of the store. The order makes it safe.
[CommitLog.GroupCommitService, FlushRealTimeService, DefaultMessageStore.FlushConsumeQueueService]
"""

from __future__ import annotations

from typing import NamedTuple

from ariane.store.disk.files import NO_ROOM, Disk, write_atomic


class FlushPostponed(Exception):
    """The disk had no room for a derived file. All files are as before, and a later flush may try again."""


class FlushRound(NamedTuple):
    """The work that makes everything below `up_to` durable."""

    disk: Disk  # used by the worker thread
    up_to: int  # commit log offset
    store_ms: int  # store time of the last record below `up_to`
    handles: tuple[tuple[str, int], ...] = ()  # open files of the commit log, not closed until the flush has ended
    paths: tuple[str, ...] = ()  # derived files, opened by `run`; one that was deleted since needs no flush
    directories: tuple[str, ...] = ()  # of created and removed files
    replaced: tuple[tuple[str, bytes], ...] = ()  # small derived files, replaced as a whole
    checkpoint: tuple[str, bytes] | None = None  # path and content; written last, because it promises all of the above
    missing: list[str] | None = None  # receives the `paths` that were deleted since

    def run(self) -> None:
        """Do the work.

        Raises:
            OSError: with the path as `filename`; nothing after the last successful flush counts as durable.
            FlushPostponed: a derived file was not written; the log is not affected.
        """
        for path, handle in self.handles:
            with _PathInErrors(path):
                self.disk.fsync(handle)
        self.disk.for_each(self._fsync_path, self.paths)
        self.disk.for_each(self._fsync_dir, self.directories)
        for path, content in self.replaced:
            with _PathInErrors(path):
                self._write_whole(path, content)
        if self.checkpoint is not None:
            path, content = self.checkpoint
            with _PathInErrors(path):
                handle = self.disk.open(path)
                try:
                    self.disk.pwrite(handle, content, 0)
                    self.disk.fsync(handle)
                finally:
                    self.disk.close(handle)

    def _write_whole(self, path: str, content: bytes) -> None:
        try:
            for directory in self.disk.make_dirs(path.rpartition("/")[0]):
                self.disk.fsync_dir(directory)
            write_atomic(self.disk, path, content)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise FlushPostponed(f"No room to write {path}: free space on that disk") from error
            raise

    def _fsync_path(self, path: str) -> None:
        # A new descriptor reports a write-back error that was not reported yet, so the writer's descriptor is not needed.
        with _PathInErrors(path):
            try:
                handle = self.disk.open(path)
            except FileNotFoundError:  # its topic may have been deleted after the flush began; `end_flush` checks that
                if self.missing is not None:
                    self.missing.append(path)
                return
            try:
                self.disk.fsync(handle)
            finally:
                self.disk.close(handle)

    def _fsync_dir(self, path: str) -> None:
        with _PathInErrors(path):
            try:
                self.disk.fsync_dir(path)
            except FileNotFoundError:
                return  # as above


class _PathInErrors:
    """Adds the path to an OSError that has none."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, self.path) from error
