"""A consume queue: the records of one topic and queue id in order, as entries of 20 bytes in files of equal size.

    commit log offset i64 | record size i32 | tags code i64          entry n is stored at byte 20 * n of the queue

The entry of a record that was lost in a corrupt range points to the record of the entry after it, with the tags code LOST_CODE.
It is skipped here; Java delivers that record twice (a blank entry would make Java skip all later entries of the same read). In
the schedule topic, where the code is a time, it has the code of the entry after it, and that message is delivered twice.

Blank entries (0, 2147483647, 0) fill the first file up to its first real entry if that one has not number 0: the older
records are removed. The newest entries also stay in memory, so that a consumer at the tail costs no read. A queue can be rebuilt
from the commit log. [ConsumeQueue]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ariane.kernels.scanned_record import NotARecord, parse_record
from ariane.model.topic import SCHEDULE_TOPIC
from ariane.protocol.records.queue_entry import BLANK, ENTRY, ENTRY_SIZE, LOST_CODE
from ariane.protocol.records.record import FILLER_MAGIC, FILLER_SIZE, MAGIC, SIZE_AND_MAGIC
from ariane.store.disk.files import OpenFiles
from ariane.store.disk.segments import Segments

TAIL_ENTRIES = 256  # entries in memory per queue after trimming; up to twice as many before
AHEAD_ENTRIES = 256  # read ahead of a consumer: they take hardly longer than those that it wants
AHEAD_COUNT_MAX = 800  # wanted entries; beyond, none are read ahead, so that a queue retains at most 21 KB
LMQ_PREFIX = "%LMQ%"  # Java's light queues contain entries of records of other topics

Read = Callable[[int, int], bytes]  # reads the commit log: (offset, length)


class QueueFilesChanged(NamedTuple):
    """Paths that need an fsync."""

    files: set[str]
    directories: set[str]


class NumberedQueue(Protocol):
    """The part of a queue that a sender needs."""

    opened: bool  # otherwise the number is unknown
    next_offset: int  # of the next record that is put into it


class ConsumeQueue:
    """One queue. Call `open` first; `max` is the number of the next entry, `next_offset` that of the next put."""

    __slots__ = (
        "_disk",
        "_files",
        "_min",
        "_min_for",
        "ahead",
        "ahead_at",
        "changed",
        "last_end",
        "max",
        "next_offset",
        "opened",
        "queue_id",
        "segments",
        "tail",
        "tail_at",
        "topic",
        "topic_bytes",
    )

    def __init__(
        self, files: OpenFiles, topic: str, queue_id: int, segments: Segments, changed: QueueFilesChanged
    ) -> None:
        """`changed` collects what the next flush has to fsync."""
        self._files = files  # bounds the number of open files
        self._disk = files.disk  # creates the directory with the first entry
        self.topic = topic  # internal topics have queues as well
        # Encoded once: every put of this queue needs it.
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id  # queues of a topic that was made smaller remain
        self.segments = segments  # no files before the first entry
        self.changed = changed  # shared by all queues of the store
        # `open` found the end: until then the numbers below are unknown.
        self.opened = False
        # Numbers of the next entry and of the next put; they differ while records are pending.
        self.max = 0
        self.next_offset = 0
        self.last_end = 0  # commit log offset after the record of the last entry
        # Newest entries, from number `tail_at` on: consumers that keep up read from memory.
        self.tail = bytearray()
        self.tail_at = 0  # number of the first entry in `tail`
        # Entries read ahead of a consumer, from number `ahead_at` on. Entries below `max` do not change, except by `clear_tail`.
        self.ahead = b""
        self.ahead_at = 0  # number of the first entry in `ahead`
        # Cached `min_offset`, valid for this start of the log.
        self._min = 0
        self._min_for = -1  # -1: not computed

    def open(self, limit: int, read: Read, *, trusted: bool = False) -> None:
        """Find the end of the queue: entries of records that end at or before `limit` stay, all later ones are zeroed.

        The last entry must agree with its record. An entry that names another record, or no readable one, is stale: Java cuts a
        queue without clearing it. In a `trusted` queue no entry is stale, so an unreadable record is a corrupt one.
        """
        segments = self.segments
        low = self._find_first(segments.stop // ENTRY_SIZE, lambda offset, size: size <= 0 or offset + size > limit)
        # Unflushed entries may be lost or torn one by one: the search can end after such entries, never before good ones.
        first = segments.start // ENTRY_SIZE
        while True:
            last = self.find_last_used(first, low)
            low = first if last is None else last + 1
            if last is None or self._is_valid(last, limit, read, trusted=trusted):
                break
            low = last
        if segments.bases:
            entry = segments.read(low * ENTRY_SIZE, ENTRY_SIZE)
            if segments.bases[-1] > low * ENTRY_SIZE or entry.strip(b"\0"):
                segments.truncate(low * ENTRY_SIZE)
                self.changed.directories.add(segments.directory)
                if segments.has(low * ENTRY_SIZE):
                    self.changed.files.add(segments.path(low * ENTRY_SIZE // segments.size * segments.size))
        self.max = self.next_offset = self.tail_at = low
        offset, size, _ = (0, 0, 0) if last is None else self._entry(last)
        self.last_end = offset + size
        self.opened = True

    def end_by_entries(self) -> int:
        """Return where the record of the last written entry ends, without opening the queue or changing it."""
        segments = self.segments
        low = self._find_first(segments.stop // ENTRY_SIZE, lambda offset, size: size <= 0)
        last = self.find_last_used(segments.start // ENTRY_SIZE, low)
        return 0 if last is None else sum(self._entry(last)[:2])

    def _find_first(self, high: int, is_after: Callable[[int, int], bool]) -> int:
        """Return the number of the first entry below `high` whose (offset, size) `is_after`, like all later ones.

        Blank entries have no offset: each counts like the entry before it.
        """
        low = self.segments.start // ENTRY_SIZE
        while low < high:
            middle = (low + high) // 2
            last = self.find_last_used(low, middle + 1)
            if last is None or not is_after(*self._entry(last)[:2]):
                low = middle + 1
            else:
                high = last
        return low

    def find_last_used(self, low: int, high: int) -> int | None:
        """Return the number of the last entry in [low, high) that is not blank; None if there is none."""
        step = 1
        while high > low:
            per_file = self.segments.size // ENTRY_SIZE
            start = max(low, high - step, (high - 1) // per_file * per_file)
            data = self.segments.read(start * ENTRY_SIZE, (high - start) * ENTRY_SIZE)
            for position in range(len(data) - ENTRY_SIZE, -1, -ENTRY_SIZE):
                if data[position : position + ENTRY_SIZE] != BLANK:
                    return start + position // ENTRY_SIZE
            high = start
            step = min(step * 8, 4096)
        return None

    def _entry(self, number: int) -> tuple[int, int, int]:
        data = self.segments.read(number * ENTRY_SIZE, ENTRY_SIZE)
        return ENTRY.unpack(data) if len(data) == ENTRY_SIZE else (0, 0, 0)

    def _is_valid(self, number: int, limit: int, read: Read, *, trusted: bool) -> bool:
        """Return whether entry `number` points to its record, below `limit`."""
        offset, size, _ = self._entry(number)
        if size <= 0 or offset < 0 or offset + size > limit:
            return False
        data = read(offset, size)
        if not data:
            return True  # the record is older than the log's first file
        try:
            record = parse_record(data, 0, offset, size + FILLER_SIZE, check_crc=False)
        except NotARecord:
            return trusted and self._fits_neighbours(number, offset + size, limit, read)
        is_same = (record.topic, record.queue_id, record.queue_offset) == (self.topic_bytes, self.queue_id, number)
        return record.size == size and (is_same or self.topic.startswith(LMQ_PREFIX))

    def _fits_neighbours(self, number: int, end: int, limit: int, read: Read) -> bool:
        """Return whether an unreadable record fits between its neighbours in the log."""
        offset = self._entry(number)[0]
        before = self.find_last_used(self.segments.start // ENTRY_SIZE, number)
        if before is not None and sum(self._entry(before)[:2]) > offset:
            return False
        if end == limit:
            return True
        data = read(end, FILLER_SIZE)
        if len(data) < FILLER_SIZE:
            return False
        size, magic = SIZE_AND_MAGIC.unpack(data)
        if magic != MAGIC or size <= 0:
            return bool(magic == FILLER_MAGIC)
        try:
            parse_record(read(end, size), 0, end, size + FILLER_SIZE, check_crc=False)
        except NotARecord:
            return False
        return True

    def entries(self, number: int, count: int) -> bytes:
        """Return up to `count` entries from `number` on, not beyond `max` or the end of a file."""
        count = min(count, self.max - number)
        if number >= self.tail_at:
            position = (number - self.tail_at) * ENTRY_SIZE
            return bytes(self.tail[position : position + count * ENTRY_SIZE])
        return self.segments.read(number * ENTRY_SIZE, count * ENTRY_SIZE)

    def read_ahead(self, number: int, count: int) -> bytes:
        """Return entries like `entries`; those after them are read as well, for the next call."""
        if number >= self.tail_at or count > AHEAD_COUNT_MAX:
            return self.entries(number, count)
        position = (number - self.ahead_at) * ENTRY_SIZE
        size = min(count, self.max - number) * ENTRY_SIZE
        if position >= 0:
            entries = self.ahead[position : position + size]
            if len(entries) == size:
                return entries
        self.ahead, self.ahead_at = self.entries(number, count + AHEAD_ENTRIES), number
        return self.ahead[:size]

    def min_offset(self, log_start: int) -> int:
        """Return the number of the first entry whose record is still in a log that starts at `log_start`."""
        if self._min_for != log_start:
            self._min = self._find_first(self.max, lambda offset, size: offset >= log_start)
            self._min_for = log_start
        return self._min

    @property
    def is_new(self) -> bool:
        """Whether the next write creates the first file."""
        return not self.segments.bases

    def write(self, data: bytes) -> None:
        """Write entries at `max` without counting them yet; after an OSError the call can be repeated."""
        segments = self.segments
        if path := segments.write_if_contained(self.max * ENTRY_SIZE, data):
            self.changed.files.add(path)
            return
        if not segments.bases:
            self._create_first_file()
        for offset, piece in segments.split(self.max * ENTRY_SIZE, data):
            if not segments.has(offset):
                segments.create_file(offset)
                self.changed.directories.add(segments.directory)
            segments.write(offset, piece)
            self.changed.files.add(segments.path(offset - offset % segments.size))

    def commit_written(self, data: bytes) -> None:
        """Count the written entries `data`."""
        self.max += len(data) // ENTRY_SIZE
        offset, size, _ = ENTRY.unpack_from(data, len(data) - ENTRY_SIZE)
        self.last_end = offset + size
        self.tail += data
        if len(self.tail) > 2 * TAIL_ENTRIES * ENTRY_SIZE:
            del self.tail[: len(self.tail) - TAIL_ENTRIES * ENTRY_SIZE]
            self.tail_at = self.max - TAIL_ENTRIES

    def fill_lost(self, number: int, offset: int, size: int, code: int) -> None:
        """Write entries for the lost records before `number`, whose own record has `size` bytes at `offset`."""
        data = ENTRY.pack(offset, size, code if self.topic == SCHEDULE_TOPIC else LOST_CODE) * (number - self.max)
        self.write(data)
        self.max = self.next_offset = number
        self.clear_tail()

    def restart(self, number: int) -> None:
        """Remove all entries and make `number` the next one: the topic was deleted and created again."""
        for base in list(self.segments.bases):
            self.segments.remove_file(base)
        self.changed.directories.add(self.segments.directory)
        self.max = self.next_offset = number
        self._min_for = -1
        self.clear_tail()

    def clear_tail(self) -> None:
        """Forget the entries in memory."""
        self.tail.clear()
        self.tail_at = self.max
        self.ahead = b""

    def _create_first_file(self) -> None:
        """Create the directory and the first file, with blank entries up to `max`."""
        segments = self.segments
        self.changed.directories.update(self._disk.make_dirs(segments.directory))
        offset = self.max * ENTRY_SIZE
        base = offset - offset % segments.size
        segments.create_file(base)
        self.changed.directories.add(segments.directory)
        self.changed.files.add(segments.path(base))
        if offset > base:
            segments.write(base, BLANK * ((offset - base) // ENTRY_SIZE))
