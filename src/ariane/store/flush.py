"""What one fsync round has to do, as a value that a worker thread can run while the loop goes on writing.

A Flush holds handles and paths that were picked by the loop thread; `run` touches nothing else of the store. The order inside
is what makes it safe: files, then the directories that name them, and only then the checkpoint that speaks about both.
[CommitLog.GroupCommitService, FlushRealTimeService, DefaultMessageStore.FlushConsumeQueueService]
"""

from __future__ import annotations

from typing import NamedTuple

from ariane.store.files import NO_ROOM, Disk, write_atomic


class FlushPostponed(Exception):
    """The disk had no room for a derived file; all that was there before is as it was, and a later flush may try again."""


class FlushRound(NamedTuple):
    """Make durable everything below `up_to`."""

    disk: Disk
    up_to: int  # commit log offset
    store_ms: int  # store time of the last record below `up_to`
    handles: tuple[tuple[str, int], ...] = ()  # open files of the commit log, kept open until the flush has ended
    paths: tuple[str, ...] = ()  # derived files, opened here; one that was deleted meanwhile needs no flush
    directories: tuple[str, ...] = ()
    replaced: tuple[tuple[str, bytes], ...] = ()  # small derived files, written whole
    checkpoint: tuple[str, bytes] | None = None
    missing: list[str] | None = None  # collects the `paths` that were deleted meanwhile

    def run(self) -> None:
        """Do it. An OSError carries the path as `filename`; then nothing above the last good flush counts as stored.

        Postponed is no such failure: the log is not touched by it.
        """
        for path, handle in self.handles:
            with _naming(path):
                self.disk.fsync(handle)
        self.disk.for_each(self._fsync_path, self.paths)
        self.disk.for_each(self._fsync_dir, self.directories)
        for path, content in self.replaced:
            with _naming(path):
                self._write_whole(path, content)
        if self.checkpoint is not None:
            path, content = self.checkpoint
            with _naming(path):
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
                raise FlushPostponed(f"no room to write {path}: free space on that disk") from error
            raise

    def _fsync_path(self, path: str) -> None:
        # A new descriptor reports a write-back error nobody has seen yet, so nothing is lost by not keeping the writer's.
        with _naming(path):
            try:
                handle = self.disk.open(path)
            except FileNotFoundError:  # its topic was deleted after the flush began; `end_flush` knows whether it was
                if self.missing is not None:
                    self.missing.append(path)
                return
            try:
                self.disk.fsync(handle)
            finally:
                self.disk.close(handle)

    def _fsync_dir(self, path: str) -> None:
        with _naming(path):
            try:
                self.disk.fsync_dir(path)
            except FileNotFoundError:
                return  # as above


class _naming:
    """Put the path into an OSError that has none."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, self.path) from error
