"""The key index: finds the records of a topic by key. Built from the commit log, after the queue entries and in batches.

    root/index/20261121055052982    files named by the local time of their creation, the newest last

All keys of a message are in one file, and files follow each other in log order, so a file that is lost or damaged is rebuilt from
the end of the one before it, and all later files with it. The log is indexed up to `position`. [IndexService]
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from ariane.store.disk.files import OpenFiles
from ariane.store.index.index_file import HashedKeys, IndexCorrupt, IndexedLog, IndexFile, IndexSizes
from ariane.store.queues.consume_queue import QueueFilesChanged

NAME_DIGITS = 17


class IndexProgress(NamedTuple):
    """State of the index when it was last flushed, as the checkpoint has it."""

    clean: bool  # the last process stopped in order
    position: (
        int | None
    )  # everything below is indexed and flushed; None: a Java broker wrote last, or there was no index
    files: int  # number of files
    full_ms: int  # end of the newest full file, as in Java's checkpoint


class KeyIndex:
    """All index files of a store. Call `open` first; `notes` has its repairs."""

    def __init__(
        self, files: OpenFiles, root: str, sizes: IndexSizes, *, now_ms: Callable[[], int], log: IndexedLog
    ) -> None:
        self._open_files = files  # bounds the number of open files
        self._disk = files.disk  # creates and removes index files
        self.root = root  # directory of the index
        self._sizes = sizes  # slots and entries of new files
        self._now_ms = now_ms  # names of new files are Java's time stamps
        self._log = log  # entries are checked against its records
        self._files: list[IndexFile] = []  # oldest first
        # The log is indexed below this offset.
        self.position = 0
        # Store time of the last record in the newest full file, for Java's part of the checkpoint.
        self.full_ms = 0
        self.notes: list[str] = []  # a line for each repair
        self._is_recovered = False  # after a crash: the last file was recovered
        self._is_broken = False  # ... and entries that seemed to be flushed were dropped
        # Files to fsync, and whether the directory has to be.
        self._changed: set[str] = set()
        self._names_changed = False  # the directory has to be flushed
        self._remove_after_next: list[IndexFile] = []  # removed after the next flush
        # Removed by this flush: the checkpoint before it no longer counts them.
        self._to_remove: list[IndexFile] = []

    def __len__(self) -> int:
        return len(self._files)

    @property
    def last_update(self) -> tuple[int, int]:
        """Store time and offset of the last indexed record; zeros if there is none."""
        return (self._files[-1].header.end_ms, self._files[-1].header.end_offset) if self._files else (0, 0)

    # --- opening ---

    def open(self, progress: IndexProgress, log_end: int) -> None:
        """Take over valid files and remove the others; indexing continues at `position`.

        If that is below `progress.position`, the checkpoint must be lowered before `write_recovered`, which must follow.
        """
        log_start = self._log.start
        self.full_ms = progress.full_ms
        crashed = progress.position is not None and not progress.clean
        limit = min(log_end, progress.position) if crashed and progress.position is not None else log_end
        names = [
            file_name
            for file_name in self._disk.listdir(self.root)
            if len(file_name) == NAME_DIGITS and file_name.isdecimal()
        ]
        self._files = [IndexFile(self._open_files, f"{self.root}/{name}", self._sizes) for name in names]
        reason = ""
        if progress.position is not None and len(self._files) < progress.files:
            reason = f"{progress.files - len(self._files)} key index files are missing"
            self._remove_from(0)
        elif crashed:
            reason = self._remove_unflushed(limit)
        elif not progress.clean:
            # Java flushes a file when it is full, and records that; after a crash later files may be incomplete.
            self._remove_from(self._find_first(lambda file: file.last_ms() > progress.full_ms or file.room > 0))
        reason = self._verify(limit, recover=crashed) or reason
        if progress.position is not None and not reason and not self._is_broken:
            self.position = max(log_start, min(log_end, progress.position))
        else:
            # The last record may have had more keys than fitted (Java splits them), so it is indexed again.
            self.position = max(log_start, self._files[-1].header.end_offset) if self._files else log_start
            self.full_ms = min(self.full_ms, self._files[-2].header.end_ms if len(self._files) > 1 else 0)
        if reason:
            self.notes.append(f"{reason}: rebuilding the key index from {self.position} of the log")

    def write_recovered(self) -> None:
        """After a crash, write how many entries of the last file are valid."""
        if self._is_recovered and self._files:
            self._files[-1].write_recovered()
            self._changed.add(self._files[-1].path)

    def _remove_unflushed(self, limit: int) -> str:
        """After a crash, remove the files from the first without flushed entries on; return why, if flushed entries are damaged."""
        for number, file in enumerate(self._files):
            try:
                if file.has_flushed_entries(limit, self._log):
                    continue
                reason = ""
            except IndexCorrupt as damage:
                reason = str(damage)
            self._remove_from(number)
            return reason
        return ""

    def _find_first(self, ends: Callable[[IndexFile], bool]) -> int:
        """Return the number of the first file that `ends` accepts; damaged files are left to `_verify`."""
        for number, file in enumerate(self._files):
            try:
                if ends(file):
                    return number
            except IndexCorrupt:
                continue
        return len(self._files)

    def _verify(self, limit: int, *, recover: bool) -> str:
        """Verify all files, and recover the last one; return why files were removed, or ""."""
        reason = ""
        self._is_recovered = recover
        while self._files:
            try:
                for file in self._files[:-1]:
                    file.open(self._log.store_ms)
                if recover:
                    self._is_broken |= self._files[-1].recover(limit, self._log)
                else:
                    self._files[-1].open(self._log.store_ms)
                if self._files[-1].header.next_entry > 1:
                    self._verify_order(limit)
                    break
                self._remove_from(len(self._files) - 1)
            except IndexCorrupt as damage:
                reason = str(damage)
                self._remove_from([file.path for file in self._files].index(damage.path))
        return reason

    def _verify_order(self, limit: int) -> None:
        end = -1
        for file in self._files:
            if file.header.next_entry > 1 and file.header.begin_offset < end:
                raise IndexCorrupt(
                    file.path, f"it begins at {file.header.begin_offset}, before the end of the file before it"
                )
            end = max(end, file.header.end_offset)
            if file.header.next_entry > 1 and end >= limit:
                raise IndexCorrupt(file.path, f"it has an entry for a record at {end}, after the end of the log")

    def remove_damaged(self, path: str) -> None:
        """Remove the damaged file at `path` and all later ones; `position` goes back to the end of the one before."""
        self._remove_from([file.path for file in self._files].index(path))
        self.position = min(self.position, self._files[-1].header.end_offset) if self._files else 0

    def _remove_from(self, number: int) -> None:
        for file in reversed(self._files[number:]):
            self._remove(file)
        del self._files[number:]

    def _remove(self, file: IndexFile) -> None:
        self._open_files.drop(file.path)
        with contextlib.suppress(FileNotFoundError):  # removed from outside
            self._disk.remove(file.path)
        self._changed.discard(file.path)
        self._names_changed = True

    # --- writing ---

    def add(self, hashed: HashedKeys, position: int) -> None:
        """Index these keys; then everything below `position` is indexed.

        After an OSError the call can be repeated: entries that were already written appear twice, which no query shows.
        """
        start, end = 0, hashed.key_count
        while start < end:
            file = self._files[-1] if self._files else self._create_next()
            stop = min(end, start + file.room)
            if stop < end:
                while stop > start and hashed.offset(stop) == hashed.offset(stop - 1):
                    stop -= 1
                if stop == start:
                    if file.header.next_entry > 1:
                        self._create_next()
                        continue
                    stop = (
                        start + file.room
                    )  # one message has more keys than a file: the only case in which they are split
            file.append(hashed if stop - start == end else hashed.part(start, stop))
            self._changed.add(file.path)
            start = stop
        self.position = position

    def _create_next(self) -> IndexFile:
        """Close the last file and create the next."""
        name = datetime.fromtimestamp(self._now_ms() / 1000).strftime("%Y%m%d%H%M%S%f")[:NAME_DIGITS]
        if self._files:
            full = self._files[-1]
            full.write_slots()
            full.forget_slots()
            self._changed.add(full.path)
            self.full_ms = full.header.end_ms
            name = max(name, f"{int(full.name) + 1:0{NAME_DIGITS}d}")
        file = IndexFile(self._open_files, f"{self.root}/{name}", self._sizes)
        self._disk.close(self._disk.create(file.path, self._sizes.file_size))
        self._files.append(file)
        self._names_changed = True
        return file

    def write_slots(self) -> None:
        """Complete the last file, so that another process can open it."""
        if self._files and not self._files[-1].slots_on_disk:
            self._files[-1].write_slots()
            self._changed.add(self._files[-1].path)

    def take_changed(self) -> QueueFilesChanged:
        """Return the files and directories that the flush which begins now has to fsync."""
        for file in self._to_remove:
            self._remove(file)
        self._to_remove, self._remove_after_next = self._remove_after_next, []
        changed = QueueFilesChanged(self._changed, {self.root} if self._names_changed else set())
        self._changed, self._names_changed = set(), False
        return changed

    # --- reading and removing ---

    def has_file(self, path: str) -> bool:
        """Return whether `path` is a file of this index."""
        return any(file.path == path for file in self._files)

    def reset(self) -> None:
        """Drop all files, which may be missing, and create the directory if needed; `position` goes back to the log's start."""
        for directory in self._disk.make_dirs(self.root):
            self._disk.fsync_dir(directory)
        self._remove_from(0)
        self._remove_after_next, self._to_remove = [], []
        self.position = self._log.start

    def files(self) -> list[IndexFile]:
        """Return all files, newest first."""
        return self._files[::-1]

    def drop_before(self, min_offset: int) -> int:
        """Drop the files whose records are all below `min_offset`, except the last one; return how many.

        A start that misses files rebuilds all of them, so these are removed one flush later, when the checkpoint has the new count.
        """
        count = 0
        while count < len(self._files) - 1 and self._files[count].header.end_offset < min_offset:
            count += 1
        self._remove_after_next += self._files[:count]
        del self._files[:count]
        return count
