"""Old files: which may go, and their removal in an order that a loss of power cannot turn against the store.

    commit log   |===old===|===old===|=======|==last==|        oldest first; the last one never
                           ^ start moves here
    queue        |--all below start--|-------|--last--|        files whose last entry points below the log's start
    index        files that end below the log's start, see broker.cleaning

What to remove is decided by pure functions (`trigger`, `due`) from times, disk use and `now`. A log file goes when no later start
will need it: everything in it is flushed and below the checkpoint's safe offset. It leaves the table of files first, so that no
reader finds half of it, then the disk, then the directory is made durable; only then the next one, so that a crash never
leaves a hole between files. Before files of queues go, a checkpoint that no longer counts them is on the disk; a start that
missed files would make all queues anew. [DefaultMessageStore.CleanCommitLogService, CleanConsumeQueueService]
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Sequence
from typing import NamedTuple

from ariane.store.checkpoint import CheckpointFile
from ariane.store.commit_log import CommitLog
from ariane.store.consume_queue import ENTRY, ENTRY_SIZE, ConsumeQueue
from ariane.store.consume_queues import ConsumeQueues
from ariane.store.files import Disk, Usage

FILES_MAX = 10  # commit log files removed in one run
PLANNED_MAX = 1000  # queue files removed between two flushes: removing one takes some 20 µs, and the loop waits


class RetentionTrigger(enum.Enum):
    """Why a run removes files."""

    HOUR = "the hour of deleteWhen"
    SPACE = "diskMaxUsedSpaceRatio"
    MANUAL = "a request"


class RetentionRule(NamedTuple):
    """When files go."""

    reserved_ms: int
    """Time that a commit log file is kept after its last write (fileReservedTime)."""
    hours: frozenset[int]
    """Local hours in which expired files are removed (deleteWhen)."""
    used_max: int
    """Percent of the disk in use above which they are removed at any hour (diskMaxUsedSpaceRatio)."""
    forced_above: int | None
    """Percent above which files go that have not expired, too; None: never (cleanFileForciblyEnable)."""


class RetainedFile(NamedTuple):
    base: int
    modified_ms: int


def used_percent(usage: Usage | None) -> int:
    """How full a disk is, rounded up; -1 when nobody knows."""
    if usage is None or usage.total <= 0:
        return -1
    return -(-(usage.total - usage.free) * 100 // usage.total)


def removal_trigger(rule: RetentionRule, percent: int, hour: int, *, manual: bool) -> RetentionTrigger | None:
    """Why expired files should be removed now; None when it is not the time. An unknown use counts as too much, as in Java."""
    if hour in rule.hours:
        return RetentionTrigger.HOUR
    if percent < 0 or percent > rule.used_max:
        return RetentionTrigger.SPACE
    return RetentionTrigger.MANUAL if manual else None


def count_removable(files: Sequence[RetainedFile], rule: RetentionRule, percent: int, now_ms: int) -> int:
    """How many of `files`, oldest first and without the last, go in this run: up to the first one that has not expired."""
    at_once = rule.forced_above is not None and percent > rule.forced_above
    count = 0
    for file in files[:FILES_MAX]:
        if not at_once and now_ms - file.modified_ms < rule.reserved_ms:
            break
        count += 1
    return count


class Removal(NamedTuple):
    """Unlink these files of one directory, in order. `run` touches nothing else of the store: a worker thread may do it."""

    disk: Disk
    directory: str
    paths: tuple[str, ...]

    def run(self) -> None:
        for path in self.paths:
            with contextlib.suppress(FileNotFoundError):  # a former run came so far
                self.disk.remove(path)
            self.disk.fsync_dir(self.directory)


class Retention:
    """The removals of one store. `leaving` queue files are still there, and no longer counted by the next checkpoint."""

    def __init__(self, disk: Disk, log: CommitLog, queues: ConsumeQueues, checkpoint: CheckpointFile) -> None:
        self._disk = disk
        self._log = log
        self._queues = queues
        self._checkpoint = checkpoint
        self._unlinked_later: list[str] = []  # log files that are out of the table, and perhaps still on the disk
        self._planned: list[tuple[ConsumeQueue, int]] = []

    @property
    def planned_count(self) -> int:
        return len(self._planned)

    # --- commit log ---

    def log_files(self) -> list[RetainedFile]:
        """Those that could be removed, oldest first: all but the last, as far as the checkpoint on the disk goes."""
        segments, safe = self._log.segments, self._checkpoint.durable.safe_offset
        if safe is None or self._log.failure is not None:
            return []
        found = []
        for base in segments.bases[:-1]:
            if base + segments.size > min(safe, self._log.flushed):
                break
            modified_ms = self._disk.modified_ms(segments.path(base))
            if modified_ms is None:
                break  # removed by somebody else: nothing is known, so nothing behind it goes either
            found.append(RetainedFile(base, modified_ms))
        return found

    def begin_log_removal(self, file: RetainedFile | None) -> Removal | None:
        """Take `file`, the oldest one, out of the log; the work that is left, also that of a former run that failed."""
        if file is not None:
            if file.base != self._log.segments.start or len(self._log.segments.bases) < 2:
                raise AssertionError(f"{file} is not the oldest file of the log, or its last")
            self._unlinked_later.append(self._log.segments.detach(file.base))
        if not self._unlinked_later:
            return None
        return Removal(self._disk, self._log.segments.directory, tuple(self._unlinked_later))

    def end_log_removal(self, removal: Removal) -> None:
        """It has run. One that failed is not ended: the next one takes its files along."""
        self._unlinked_later = [path for path in self._unlinked_later if path not in removal.paths]

    @property
    def is_recorded(self) -> bool:
        """Whether the checkpoint on the disk says that the log begins where it does now; else no file may be unlinked yet."""
        start = self._checkpoint.durable.log_start
        return start is not None and start >= self._log.start

    # --- queues ---

    def plan_queue_files(self) -> int:
        """Choose the oldest file of each queue that has one below the log's start; how many. The next checkpoint leaves
        them out, and once it is on the disk `remove_queue_files` may be called."""
        start = self._log.start
        self._planned = [(queue, queue.segments.start) for queue in self._queues.all() if _first_is_old(queue, start)]
        del self._planned[PLANNED_MAX:]
        return len(self._planned)

    def remove_queue_files(self) -> int:
        """Remove what was planned; how many went. Their directories are made durable by the next flush of the queues, before
        which no other file of the same queue may go."""
        removed = 0
        left = self._queues.file_count() - self.planned_count
        planned, self._planned = self._planned, []
        if self._checkpoint.durable.queue_files > left:
            return 0  # another flush was under way; the next run plans again
        for queue, base in planned:
            # Its topic may have been deleted since, or begun anew.
            if self._queues.get((queue.topic, queue.queue_id)) is not queue or queue.segments.start != base:
                continue
            if _first_is_old(queue, self._log.start):
                queue.segments.remove_file(base)
                queue.changed.directories.add(queue.segments.directory)
                removed += 1
        return removed


def _first_is_old(queue: ConsumeQueue, log_start: int) -> bool:
    """Whether the queue has more than one file, and the first one's last record is gone."""
    segments = queue.segments
    if len(segments.bases) < 2:
        return False
    data = segments.read(segments.start + segments.size - ENTRY_SIZE, ENTRY_SIZE)
    offset, size, _ = ENTRY.unpack(data)
    return bool(size > 0 and offset < log_start)
