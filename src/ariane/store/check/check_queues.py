"""The queues' part of `check`: each record has its entry, each entry its record.

Records arrive in log order, by runs; the entries that they should have are compared with those of their queue. Only where these
differ, each record is checked, with entries read through a window that moves with the numbers. At the end the entries that belong
to no record are checked one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

from ariane.kernels.record_runs import QueueRecords
from ariane.kernels.scanned_record import ScannedRecord
from ariane.model.topic import SCHEDULE_TOPIC
from ariane.protocol.records.queue_entry import BLANK_SIZE, ENTRY, ENTRY_SIZE, LOST_CODE
from ariane.store.check.check_report import ERROR, NOTE, WARNING, CheckFinding, inspect_files
from ariane.store.disk.files import OpenFiles
from ariane.store.disk.segments import Segments
from ariane.store.log.record_scanner import DELAY_TOPICS, ScannedRun, compute_tags_code
from ariane.store.queues.consume_queue import LMQ_PREFIX

WINDOW = 256  # entries of a queue in memory
WINDOWS_MAX = 4096  # queues with a window: 20 MB
FINDINGS_MAX = 20  # findings reported per queue; the number of further ones is reported, too
EXT_ADDRESS_MAX = -2147483649  # a tags code up to here is the address of an extended entry of Java's
_SCHEDULE = SCHEDULE_TOPIC.encode()


class _Queue:
    """State of the check of one queue."""

    __slots__ = (
        "claimed",
        "end",
        "first",
        "first_offset",
        "newest",
        "queue_id",
        "reported",
        "segments",
        "topic",
        "window",
        "window_start",
    )

    def __init__(self, topic: str, queue_id: int, segments: Segments) -> None:
        self.topic = topic  # for the report, like the queue id
        self.queue_id = queue_id
        self.segments = segments  # files of the queue
        # Entries of one read, because records of one queue follow each other closely.
        self.window = b""
        self.window_start = 0  # number of the window's first entry
        self.claimed = 0  # entries that belong to a record
        # Findings so far: FINDINGS_MAX of them are reported one by one.
        self.reported = 0
        # First entry that is not blank, and the log offset of its record.
        self.first, self.first_offset = _first(segments)
        self.newest = -1  # highest number of a record
        # Number after the last file: the end of the entries is found by reading.
        self.end = segments.stop // ENTRY_SIZE

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.queue_id}"

    def entry(self, number: int) -> tuple[int, int, int] | None:
        """Return offset, size and tags code; None if it does not exist, (0, BLANK_SIZE, 0) if it is blank."""
        index = number - self.window_start
        if not 0 <= index < len(self.window) // ENTRY_SIZE:
            if not self.segments.start // ENTRY_SIZE <= number < self.end:
                return None
            self.window, self.window_start = self.segments.read(number * ENTRY_SIZE, WINDOW * ENTRY_SIZE), number
            index = 0
            if len(self.window) < ENTRY_SIZE:
                return None
        offset, size, code = ENTRY.unpack_from(self.window, index * ENTRY_SIZE)
        return (offset, size, code) if size else None

    def locate(self, number: int) -> tuple[str, int]:
        """Return the file and the byte of an entry."""
        position = number * ENTRY_SIZE
        return self.segments.path(position - position % self.segments.size), position % self.segments.size


def _first(segments: Segments) -> tuple[int, int]:
    """Return number and commit log offset of the first entry that is not blank; -1 if there is none."""
    for base in segments.bases:
        for position in range(base, base + segments.size, WINDOW * ENTRY_SIZE):
            data = segments.read(position, WINDOW * ENTRY_SIZE)
            for number, (offset, size, _) in enumerate(ENTRY.iter_unpack(data[: len(data) // ENTRY_SIZE * ENTRY_SIZE])):
                if size == 0:
                    return -1, 0
                if size != BLANK_SIZE:
                    return position // ENTRY_SIZE + number, offset
    return -1, 0


class QueueChecks:
    """All queues of a store. Call `load`, `check_run` with the records in log order, then `finish`."""

    def __init__(self, files: OpenFiles, root: str) -> None:
        self._files = files  # bounds the number of open files
        self._root = root
        self._table: dict[tuple[str, int], _Queue] = {}  # by topic and queue id
        # Queues with a window, oldest first, to bound the memory.
        self._windows: dict[_Queue, None] = {}
        self._without: dict[str, int] = {}  # records of topics without queues, by topic
        # Records that are older than their queue: their topic was created again.
        self._former = 0
        # Offset of the first record; entries of older ones are expected to lead nowhere.
        self._log_start: int | None = None
        # Records that were appended while the check runs and have no entry yet.
        self._pending = 0
        # For the summary.
        self.files = 0
        self.entries = 0  # also for the summary

    @property
    def count(self) -> int:
        return len(self._table)

    def load(self) -> Iterator[CheckFinding]:
        disk = self._files.disk
        if disk.size(self._root) is None:
            yield CheckFinding(WARNING, self._root, 0, "is missing", "start a broker: queues are rebuilt from the log")
            return
        for topic in disk.listdir(self._root):
            try:
                names = disk.listdir(f"{self._root}/{topic}")
            except NotADirectoryError:
                fix = "move it out of the store directory: no broker starts with it"
                yield CheckFinding(ERROR, f"{self._root}/{topic}", 0, "a file where a directory should be", fix)
                continue
            for name in names:
                yield from self._load(topic, name)

    def _load(self, topic: str, name: str) -> Iterator[CheckFinding]:
        directory = f"{self._root}/{topic}/{name}"
        if not name.isdecimal() or not name.isascii():
            yield CheckFinding(ERROR, directory, 0, "is not a queue id", "move it out of the store directory")
            return
        segments, findings = inspect_files(self._files, directory, "mappedFileSizeConsumeQueue")
        yield from findings
        if segments.size % ENTRY_SIZE and segments.bases:
            problem = f"a file of {segments.size} bytes does not consist of whole entries"
            yield CheckFinding(ERROR, directory, 0, problem, "remove the queue's directory: it is rebuilt from the log")
            return
        for before, base in zip(segments.bases, segments.bases[1:], strict=False):
            if base != before + segments.size:
                fix = "remove the queue's directory: it is rebuilt from the log"
                problem = "this file is missing between others"
                yield CheckFinding(ERROR, segments.path(before + segments.size), 0, problem, fix)
        self.files += len(segments.bases)
        self._table[topic, int(name)] = _Queue(topic, int(name), segments)

    def check_run(self, run: ScannedRun, complete_to: int) -> Iterator[CheckFinding]:
        """Check the entries of the records of a run. Those of records that end after `complete_to` may not be written yet."""
        if self._log_start is None:
            self._log_start = run.offset
        for records in run.scanned.queues:
            if not self._has_entries(records):
                for record in run.records_of(records.entries):
                    yield from self._check_record(record, must_have=record.end <= complete_to)

    def _has_entries(self, records: QueueRecords) -> bool:
        """Return whether a queue has exactly the entries of these records, and count them; False also if that is not sure."""
        queue = self._table.get((records.topic.decode("utf-8", "replace"), records.queue_id))
        if queue is None or queue.first < 0 or records.topic in DELAY_TOPICS:
            return False
        if not records.is_consecutive or records.queue_offset < 0:
            return False
        first, _, _ = ENTRY.unpack_from(records.entries)
        if first < queue.first_offset and records.queue_offset + records.size > queue.first:
            return False  # records of a topic that was deleted later
        if queue.segments.read(records.queue_offset * ENTRY_SIZE, len(records.entries)) != records.entries:
            return False
        queue.newest = max(queue.newest, records.queue_offset + records.size - 1)
        queue.claimed += records.size
        return True

    def _check_record(self, record: ScannedRecord, *, must_have: bool) -> Iterator[CheckFinding]:
        """Check the entry of `record`. Without `must_have` the entry may not be written yet."""
        topic = record.topic.decode("utf-8", "replace")
        queue = self._table.get((topic, record.queue_id))
        if queue is None or queue.first < 0:
            if must_have:
                self._without[topic] = self._without.get(topic, 0) + 1
            else:
                self._pending += 1
            return
        number = record.queue_offset
        if record.offset < queue.first_offset and number >= queue.first:
            self._former += 1  # its topic was deleted later, and created again
            return
        queue.newest = max(queue.newest, number)
        self._remember(queue)
        entry = queue.entry(number)
        if entry is None and not must_have:
            self._pending += 1
        elif entry is None:
            yield from self._report(queue, number, ERROR, f"lacks entry {number}, of the record at {record.offset}")
        elif entry[:2] != (record.offset, record.size):
            actual = (
                "is empty"
                if entry[1] == BLANK_SIZE or entry[2] == LOST_CODE
                else f"points to {entry[1]} bytes at {entry[0]}"
            )
            problem = f"entry {number} {actual}, not to the record of {record.size} bytes at {record.offset}"
            yield from self._report(queue, number, ERROR if must_have else NOTE, problem)
        else:
            queue.claimed += 1
            code = compute_tags_code(record, ())
            if entry[2] not in (code,) and entry[2] > EXT_ADDRESS_MAX and record.topic != _SCHEDULE:
                problem = f"entry {number} has the tags code {entry[2]}, its record's is {code}"
                yield from self._report(queue, number, WARNING, problem)

    def _remember(self, queue: _Queue) -> None:
        if queue not in self._windows:
            self._windows[queue] = None
            if len(self._windows) > WINDOWS_MAX:
                oldest = next(iter(self._windows))
                del self._windows[oldest]
                oldest.window = b""

    def _report(self, queue: _Queue, number: int, severity: str, problem: str) -> Iterator[CheckFinding]:
        queue.reported += 1
        if queue.reported <= FINDINGS_MAX:
            file, position = queue.locate(number)
            fix = "remove the queue's directory while no broker runs: it is rebuilt from the log"
            yield CheckFinding(severity, file, position, f"{queue.name} {problem}", fix)

    def finish(self) -> Iterator[CheckFinding]:
        """Yield findings about entries without a record, and records without a queue."""
        for topic, count in sorted(self._without.items()):
            problem = f"{count} records of {topic} have no queue: the topic was deleted, or its queues are lost"
            fix = "if it was not deleted: remove the checkpoint and all of consumequeue, they are rebuilt from the log"
            yield CheckFinding(NOTE, f"{self._root}/{topic}", 0, problem, fix)
        if self._former:
            problem = f"{self._former} records belong to topics that were deleted and created again"
            yield CheckFinding(NOTE, self._root, 0, problem, "")
        if self._pending:
            yield CheckFinding(NOTE, self._root, 0, f"{self._pending} new records have no entry yet", "")
        for queue in self._table.values():
            yield from self._check_unclaimed(queue)
            if queue.reported > FINDINGS_MAX:
                problem = f"{queue.name} has {queue.reported - FINDINGS_MAX} more findings of this kind"
                yield CheckFinding(ERROR, queue.segments.directory, 0, problem, "as above")

    def _check_unclaimed(self, queue: _Queue) -> Iterator[CheckFinding]:
        """Check for empty and stale entries, and entries whose record does not exist."""
        empty_run: list[int] = []  # number of the first, count
        checked = stale = 0
        before = -1
        has_ended = False
        for number in range(queue.segments.start // ENTRY_SIZE, queue.end):
            entry = queue.entry(number)
            if entry is None:
                if not has_ended and self._only_zeros(queue, number):
                    break
                has_ended = True
                continue
            stale += has_ended
            offset, size, code = entry
            after = queue.entry(number + 1)
            if (
                code == LOST_CODE
                or (number > queue.first >= 0 and size == BLANK_SIZE)
                or (after and after[0] == offset != 0)
            ):
                empty_run = [empty_run[0], empty_run[1] + 1] if empty_run else [number, 1]
                continue
            if size == BLANK_SIZE:
                continue
            self.entries += 1
            checked += offset >= (self._log_start or 0)
            if offset <= before:
                yield from self._report(queue, number, ERROR, f"entry {number} points back, to {offset} after {before}")
            before = max(before, offset)
        if empty_run:
            problem = (
                f"{empty_run[1]} entries, the first of them {empty_run[0]}, are empty:"
                " their records were in a corrupt range of the log"
            )
            file, position = queue.locate(empty_run[0])
            yield CheckFinding(
                WARNING, file, position, f"{queue.name}: {problem}", "consumers skip them; nothing to do"
            )
        if stale:
            file, position = queue.locate(queue.newest + 1)
            problem = f"{queue.name}: {stale} entries follow unwritten ones"
            yield CheckFinding(WARNING, file, position, problem, "left by a crash or by Java; a start clears them")
        if checked > queue.claimed and not queue.topic.startswith(LMQ_PREFIX):
            file, position = queue.locate(queue.newest)
            problem = (
                f"{queue.name}: {checked - queue.claimed} of {checked} entries point to no valid record of this queue"
            )
            fix = "consumers skip corrupt records; a start clears entries after the end of the log"
            yield CheckFinding(ERROR, file, position, problem, fix)

    @staticmethod
    def _only_zeros(queue: _Queue, number: int) -> bool:
        """Return whether nothing is written in the queue from `number` on."""
        position = number * ENTRY_SIZE
        while queue.segments.has(position):
            within_file = position - position % queue.segments.size + queue.segments.size
            reached = queue.segments.find_data(position)
            if reached is not None and queue.segments.read(reached, within_file - reached).strip(b"\0"):
                return False
            position = within_file
        return True
