"""Retention: removes old files, in an order that keeps the store consistent after a power loss at any point.

    commit log   |===old===|===old===|=======|==last==|        oldest first; never the last one
                           ^ start moves here
    queue        |--all below start--|-------|--last--|        files whose last entry points below the log's start
    index        files that end below the log's start, see `broker.file_cleaner`

Pure functions (`removal_trigger`, `count_removable`) decide what to remove, from times, disk use and the clock. A log file is
removed when no later start will need it: everything in it is flushed and below the checkpoint's safe offset. It leaves the table of
files first, so that no reader finds half of it, then the disk, then the directory is made durable; only then the next one, so that
a crash never leaves a gap between files. Before queue files are removed, a checkpoint that no longer counts them is on the disk; a
start that missed files would rebuild all queues. [DefaultMessageStore.CleanCommitLogService, CleanConsumeQueueService]
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Sequence
from typing import NamedTuple

from ariane.protocol.records.queue_entry import ENTRY, ENTRY_SIZE
from ariane.store.disk.files import Disk, Usage
from ariane.store.log.checkpoint import CheckpointFile
from ariane.store.log.commit_log import CommitLog
from ariane.store.queues.consume_queue import ConsumeQueue
from ariane.store.queues.consume_queues import ConsumeQueues

FILES_MAX = 10  # commit log files removed in one run
PLANNED_MAX = 1000  # queue files removed between two flushes: each takes some 20 µs and blocks the event loop


class RetentionTrigger(enum.Enum):
    """Reason for removing files."""

    HOUR = "the hour of deleteWhen"
    SPACE = "diskMaxUsedSpaceRatio"
    MANUAL = "a request"


class RetentionRule(NamedTuple):
    """When files are removed."""

    reserved_ms: int
    """Retention of a commit log file after its last write (fileReservedTime)."""
    hours: frozenset[int]
    """Local hours in which expired files are removed (deleteWhen)."""
    used_max: int
    """Percent of the disk in use above which expired files are removed at any hour (diskMaxUsedSpaceRatio)."""
    forced_above: int | None
    """Percent above which files are removed before they expire; None: never (cleanFileForciblyEnable)."""


class RetainedFile(NamedTuple):
    base: int
    modified_ms: int


def used_percent(usage: Usage | None) -> int:
    """Return how full a disk is, rounded up; -1 if unknown."""
    if usage is None or usage.total <= 0:
        return -1
    return -(-(usage.total - usage.free) * 100 // usage.total)


def removal_trigger(rule: RetentionRule, percent: int, hour: int, *, manual: bool) -> RetentionTrigger | None:
    """Return why expired files should be removed now; None if not. An unknown use counts as too much, as in Java."""
    if hour in rule.hours:
        return RetentionTrigger.HOUR
    if percent < 0 or percent > rule.used_max:
        return RetentionTrigger.SPACE
    return RetentionTrigger.MANUAL if manual else None


def count_removable(files: Sequence[RetainedFile], rule: RetentionRule, percent: int, now_ms: int) -> int:
    """Return how many of `files` (oldest first, without the last) to remove in this run: up to the first that has not expired."""
    is_forced = rule.forced_above is not None and percent > rule.forced_above
    count = 0
    for file in files[:FILES_MAX]:
        if not is_forced and now_ms - file.modified_ms < rule.reserved_ms:
            break
        count += 1
    return count


class Removal(NamedTuple):
    """Unlinks files of one directory, in order. `run` touches nothing else of the store, so a worker thread may call it."""

    disk: Disk
    directory: str
    paths: tuple[str, ...]

    def run(self) -> None:
        for path in self.paths:
            with contextlib.suppress(FileNotFoundError):  # an earlier run removed it
                self.disk.remove(path)
            self.disk.fsync_dir(self.directory)


class Retention:
    """Removal of one store's files. `planned_count` queue files still exist, but the next checkpoint no longer counts them."""

    def __init__(self, disk: Disk, log: CommitLog, queues: ConsumeQueues, checkpoint: CheckpointFile) -> None:
        self._disk = disk  # modification times of files
        self._log = log  # its start moves up
        self._queues = queues  # entries of removed records go with them
        self._checkpoint = checkpoint  # a file is removed only after a checkpoint without it is durable
        self._unlinked_later: list[str] = []  # log files that left the table and may still be on the disk
        # Queue files to remove after the next checkpoint, by queue and base offset.
        self._planned: list[tuple[ConsumeQueue, int]] = []

    @property
    def planned_count(self) -> int:
        return len(self._planned)

    # --- commit log ---

    def log_files(self) -> list[RetainedFile]:
        """Return the files that could be removed, oldest first: all but the last, as far as the durable checkpoint allows."""
        segments, safe = self._log.segments, self._checkpoint.durable.safe_offset
        if safe is None or self._log.failure is not None:
            return []
        files = []
        for base in segments.bases[:-1]:
            if base + segments.size > min(safe, self._log.flushed):
                break
            modified_ms = self._disk.modified_ms(segments.path(base))
            if modified_ms is None:
                break  # removed from outside: nothing is known about it, so no later file is removed either
            files.append(RetainedFile(base, modified_ms))
        return files

    def begin_log_removal(self, file: RetainedFile | None) -> Removal | None:
        """Detach `file`, the oldest one, from the log; return the work to do, including that of an earlier run that failed."""
        if file is not None:
            if file.base != self._log.segments.start or len(self._log.segments.bases) < 2:
                raise AssertionError(f"{file} is not the oldest file of the log, or its last")
            self._unlinked_later.append(self._log.segments.detach(file.base))
        if not self._unlinked_later:
            return None
        return Removal(self._disk, self._log.segments.directory, tuple(self._unlinked_later))

    def end_log_removal(self, removal: Removal) -> None:
        """Finish a removal that has run. The files of one that failed are part of the next removal."""
        self._unlinked_later = [path for path in self._unlinked_later if path not in removal.paths]

    @property
    def is_recorded(self) -> bool:
        """Whether the durable checkpoint has the current start of the log. Before that, no file may be unlinked."""
        start = self._checkpoint.durable.log_start
        return start is not None and start >= self._log.start

    # --- queues ---

    def plan_queue_files(self) -> int:
        """Choose the oldest file of each queue that has one below the log's start; return how many.

        The next checkpoint does not count them; once it is on the disk, call `remove_queue_files`.
        """
        start = self._log.start
        self._planned = [(queue, queue.segments.start) for queue in self._queues.all() if _first_is_old(queue, start)]
        del self._planned[PLANNED_MAX:]
        return len(self._planned)

    def remove_queue_files(self) -> int:
        """Remove the planned files; return how many. The next flush of the queues makes their directories durable; before it, no
        other file of the same queue may be removed."""
        removed = 0
        remaining = self._queues.file_count() - self.planned_count
        planned, self._planned = self._planned, []
        if self._checkpoint.durable.queue_files > remaining:
            return 0  # another flush was in flight; the next run plans again
        for queue, base in planned:
            # Its topic may have been deleted, or created again, since.
            if self._queues.get((queue.topic, queue.queue_id)) is not queue or queue.segments.start != base:
                continue
            if _first_is_old(queue, self._log.start):
                queue.segments.remove_file(base)
                queue.changed.directories.add(queue.segments.directory)
                removed += 1
        return removed


def _first_is_old(queue: ConsumeQueue, log_start: int) -> bool:
    """Return whether the queue has more than one file, and the last record of the first one is removed."""
    segments = queue.segments
    if len(segments.bases) < 2:
        return False
    data = segments.read(segments.start + segments.size - ENTRY_SIZE, ENTRY_SIZE)
    offset, size, _ = ENTRY.unpack(data)
    return bool(size > 0 and offset < log_start)
