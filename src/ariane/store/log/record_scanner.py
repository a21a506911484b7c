"""Reads records where they are stored in the commit log: one at an offset, or a scan that can skip corrupt ranges.

    | record | record | corrupt ... | record | filler |  next file: | record | zeros ...
    ^ start                                                                  ^ end: no valid record follows

For recovery and rebuilds. Unlike `protocol.record.decode` this module also checks the record's position (own offset, room left in
the file) and does not copy the body. [CommitLog.checkMessageAndReturnSize]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from ariane.kernels.implementation import scan_records
from ariane.kernels.record_runs import LOWEST_MS, LogPlace, RunTimes, ScannedRecords
from ariane.kernels.scanned_record import NotARecord, ScannedRecord, hash_tags, parse_record
from ariane.model.message import DELAY, TIMER_CANCELS, TIMER_OUT_MS
from ariane.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC
from ariane.protocol.records import properties as properties_text
from ariane.protocol.records.queue_entry import ENTRY
from ariane.protocol.records.record import (
    BODY_LENGTH_SIZE,
    FILLER_MAGIC,
    FILLER_SIZE,
    FIXED_SIZE,
    HEAD,
    HEAD_MAX,
    I16,
    I32,
    MAGIC,
    MAGIC_AT,
    PROPERTIES_LENGTH_SIZE,
    SIZE_AND_MAGIC,
    TAIL_SIZE,
    TOPIC_LENGTH_SIZE,
    body_size_at,
)
from ariane.store.disk.segments import Segments

CHUNK_BYTES = 1 << 20  # bytes per read of a scan, at most
FIRST_SEARCH_BYTES = (
    4096  # bytes per read of a search, at first: corrupt ranges are mostly short, and there may be many
)
SMALL_READ_BYTES = 1024  # bytes read for a single record: most records are not longer
_ANY_MAGIC = re.compile(b"|".join(re.escape(I32.pack(magic)) for magic in (MAGIC, FILLER_MAGIC)))
_SCHEDULE = SCHEDULE_TOPIC.encode()
_TIMER = TIMER_TOPIC.encode()
DELAY_TOPICS = frozenset((_SCHEDULE, _TIMER))  # tags codes of their entries depend on more than the tags

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def read_record(segments: Segments, offset: int) -> tuple[ScannedRecord, bytes]:
    """Return the record at `offset` and its bytes.

    Raises:
        NotARecord: no record begins there.
    """
    room = segments.size - offset % segments.size
    data = segments.read(offset, SMALL_READ_BYTES)
    size = _record_size(data, 0)
    if size > len(data) and size <= room:
        data = segments.read(offset, size)
    record = parse_record(data, 0, offset, room, check_crc=False)
    return record, data[: record.size]


class CorruptRange(NamedTuple):
    """Bytes between valid records that cannot be read as one: damaged, or never written because power was lost."""

    offset: int
    size: int
    reason: str

    def __str__(self) -> str:
        return f"{self.size} bytes at {self.offset} are not a record ({self.reason})"


class ScannedRun(NamedTuple):
    """Adjacent records, and the bytes that contain them."""

    scanned: ScannedRecords
    data: bytes  # contains the records
    position: int  # of the first record in `data`
    offset: int  # of the first record in the commit log

    @property
    def end(self) -> int:
        return self.offset + self.scanned.size

    def record_at(self, offset: int) -> ScannedRecord:
        """Return the record of this run at a commit log offset."""
        room = self.end - offset + FILLER_SIZE
        return parse_record(self.data, self.position + offset - self.offset, offset, room, check_crc=False)

    def records_of(self, entries: bytes) -> Iterator[ScannedRecord]:
        """Yield the records of some of the run's entries."""
        for offset, _, _ in ENTRY.iter_unpack(entries):
            yield self.record_at(offset)


class _Take(Protocol[T_co]):
    """Returns records at the start of some bytes, see `RecordScanner._scan`; raises NotARecord if none begins there."""

    def __call__(
        self, data: bytes, position: int, place: LogPlace, *, check_crc: bool
    ) -> tuple[T_co, int, RunTimes]: ...


class RecordScanner:
    """Iterator over the records from `start` on.

    Afterwards `end` is the end of the last record, and `stop_reason` says why the scan ended there.

    Args:
        stop: no record that ends after it is read.
        check_crc: verify every body.
        min_store_ms: skip corrupt ranges that valid records follow, and collect them in `corrupt_ranges`. The records after
            one must not be older than this time or than the record before: such records are leftovers of a log that Java cut
            without clearing it. None: the scan ends at the first corrupt range.
        all_written: everything below `stop` was written, so invalid bytes are a corrupt range whatever follows.
        hash_keys: runs contain the keys of their records. May be changed between two runs.
    """

    def __init__(
        self,
        segments: Segments,
        start: int,
        stop: int,
        *,
        check_crc: bool,
        min_store_ms: int | None = None,
        all_written: bool = False,
        hash_keys: bool = False,
    ) -> None:
        # Results: where the scan ended and why, and what it skipped.
        self.end = start
        self.stop_reason = ""
        self.corrupt_ranges: list[CorruptRange] = []
        self.hash_keys = hash_keys
        self.chunk_bytes = CHUNK_BYTES  # bytes per read; fewer for a scan that begins again with each few records
        self._segments = segments  # files of the log
        self._stop = stop
        self._check_crc = check_crc
        # Rises with the records; None: the scan does not skip.
        self._min_store_ms = min_store_ms
        self._all_written = all_written

    @property
    def min_store_ms(self) -> int:
        """No record after the last but one was stored before this time."""
        return self._min_store_ms or 0

    def __iter__(self) -> Iterator[ScannedRecord]:
        return self._scan(self._take_record)

    def runs(self) -> Iterator[ScannedRun]:
        """Yield the records run by run, with what everything derived from them needs.

        The records before and after a corrupt range are in different runs; `corrupt_ranges` has it when the later one is yielded.
        """
        return self._scan(self._take_run)

    def _take_run(
        self, data: bytes, position: int, place: LogPlace, *, check_crc: bool
    ) -> tuple[ScannedRun, int, RunTimes]:
        run = scan_records(data, position, place, check_crc=check_crc, hash_keys=self.hash_keys)
        if run is None:
            record = parse_record(data, position, place.offset, place.room, check_crc=check_crc)
            raise AssertionError(f"no run begins with the record at {record.offset}")
        return ScannedRun(run, data, position, place.offset), run.size, run.times

    @staticmethod
    def _take_record(
        data: bytes, position: int, place: LogPlace, *, check_crc: bool
    ) -> tuple[ScannedRecord, int, RunTimes]:
        record = parse_record(data, position, place.offset, place.room, check_crc=check_crc)
        return record, record.size, RunTimes(record.store_ms, record.store_ms, LOWEST_MS, 0)

    def _scan(self, take: _Take[T]) -> Iterator[T]:
        """Yield what `take` returns: one record or several, the size of all of them, and their store times."""
        segments, size = self._segments, self._segments.size
        data, position = b"", 0
        offset = self.end
        before_ms = 0
        skipped: list[CorruptRange] = []  # corrupt ranges that count once a record follows
        while offset < self._stop:
            room = size - offset % size
            if len(data) - position < FIXED_SIZE:
                data, position = segments.read(offset, self.chunk_bytes), 0
            record_size, magic = (
                SIZE_AND_MAGIC.unpack_from(data, position) if len(data) - position >= FILLER_SIZE else (0, 0)
            )
            if magic == FILLER_MAGIC and record_size == room:
                offset += room
                data, position = b"", 0
                if not skipped:
                    self.end = offset
                if not segments.has(offset):
                    self.stop_reason = self.stop_reason or "the last file is full"
                    return
                continue
            if record_size > len(data) - position and magic == MAGIC and record_size <= room:
                data, position = segments.read(offset, max(record_size, self.chunk_bytes)), 0
            # After a corrupt range the first record decides alone whether it ends there.
            until = 1 if skipped else min(self._stop - offset, len(data) - position)
            try:
                taken, taken_size, times = take(
                    data, position, LogPlace(offset, room, until), check_crc=self._check_crc or bool(skipped)
                )
                if skipped and times.first_ms < (self._min_store_ms or 0):
                    raise NotARecord("it is older than the records before it")
            except NotARecord as error:
                self.stop_reason = skipped[0].reason if skipped else str(error)
                if self._min_store_ms is None:
                    return
                resume = self._find_resume(offset)
                if resume is None:
                    return
                skipped.append(CorruptRange(offset, resume - offset, str(error)))
                offset = resume
                data, position = b"", 0
                if offset == self._stop:
                    self.corrupt_ranges += skipped
                    self.end = offset
                continue
            position += taken_size
            offset += taken_size
            if self._min_store_ms is not None:
                # The earlier of two neighbours: nothing protects store times, and one damaged time must not age all later records.
                self._min_store_ms = max(self._min_store_ms, min(before_ms, times.first_ms), times.floor_ms)
                before_ms = times.last_ms
            if skipped:
                self.corrupt_ranges += skipped
                skipped.clear()
                self.stop_reason = ""
            self.end = offset
            yield taken

    def _find_resume(self, offset: int) -> int | None:
        """Return where the scan can resume after a corrupt offset; None if nothing valid follows."""
        segments, size = self._segments, self._segments.size
        resume = offset - offset % size + size
        bound = min(resume, self._stop)
        next_valid = find_valid_record(segments, offset + 1, bound, self._min_store_ms or 0)
        if next_valid is not None:
            return next_valid
        if self._all_written and bound == self._stop:
            return bound
        return resume if resume < self._stop and segments.has(resume) else None


def find_valid_record(segments: Segments, start: int, stop: int, min_store_ms: int) -> int | None:
    """Return the first offset in [start, stop), within one file, of a valid record or a filler; None if there is none.

    Candidates are found by the magic; a record must name its own offset, and its body must match the CRC. Parts of the file that
    were never written are not read.
    """
    position, size = start, FIRST_SEARCH_BYTES
    while position < stop:
        reached = segments.find_data(position)
        if reached is None or reached >= stop:
            return None
        # The magic is at byte 4 of a record, so a record can begin in the last 4 unwritten bytes.
        position = max(position, reached - MAGIC_AT)
        data = segments.read(position, size)
        for offset in _find_magics(data):
            if position + offset >= stop:
                return None
            if _is_good(segments, position + offset, min_store_ms):
                return position + offset
        if len(data) < size:
            return None
        position += len(data) - FILLER_SIZE + 1  # the next read overlaps, because a magic may cross the border
        size = min(4 * size, CHUNK_BYTES)
    return None


def _find_magics(data: bytes) -> Iterator[int]:
    """Yield the positions in `data` at which a record or a filler may begin: their bytes 4..7 are a magic."""
    for hit in _ANY_MAGIC.finditer(data, MAGIC_AT):
        yield hit.start() - MAGIC_AT


def _is_good(segments: Segments, offset: int, min_store_ms: int) -> bool:
    room = segments.size - offset % segments.size
    size, magic = SIZE_AND_MAGIC.unpack(segments.read(offset, FILLER_SIZE))
    if magic == FILLER_MAGIC:
        return bool(size == room)
    if not FIXED_SIZE <= size <= room:
        return False
    data = segments.read(offset, FIXED_SIZE)
    if len(data) < FIXED_SIZE or HEAD.unpack_from(data)[6] != offset:
        return False
    if not has_matching_lengths(segments, offset, size):
        return False
    try:
        return parse_record(segments.read(offset, size), 0, offset, room, check_crc=True).store_ms >= min_store_ms
    except NotARecord:
        return False


def has_matching_lengths(segments: Segments, offset: int, size: int) -> bool:
    """Return whether the lengths inside the record at `offset` add up to its size, by reading only a few bytes.

    Called before a whole record is read: a damaged size must not cost a read of megabytes at each corrupt offset.
    """
    head = segments.read(offset, HEAD_MAX)
    if len(head) < FIXED_SIZE:
        return False
    (*_, own_offset, sys_flag, _) = HEAD.unpack_from(head)
    size_at = body_size_at(sys_flag)
    body_at = size_at + BODY_LENGTH_SIZE
    if own_offset != offset or body_at > len(head):
        return False
    (body_size,) = I32.unpack_from(head, size_at)
    topic_at = body_at + body_size
    if body_size < 0 or topic_at + TAIL_SIZE > size:
        return False
    topic_size = segments.read(offset + topic_at, TOPIC_LENGTH_SIZE)
    properties_at = topic_at + TOPIC_LENGTH_SIZE + (topic_size[0] if topic_size else 0)
    properties_size = segments.read(offset + properties_at, PROPERTIES_LENGTH_SIZE)
    if len(properties_size) < PROPERTIES_LENGTH_SIZE:
        return False
    (length,) = I16.unpack(properties_size)
    return bool(length >= 0 and properties_at + PROPERTIES_LENGTH_SIZE + length == size)


def iter_readable_runs(segments: Segments, start: int, stop: int) -> Iterator[ScannedRun]:
    """Yield the records between two record boundaries with their keys, without checking bodies.

    After a record that cannot be read, continue with the next file: only there the next boundary is known.
    """
    offset = start
    while offset < stop:
        walk = RecordScanner(segments, offset, stop, check_crc=False, hash_keys=True)
        yield from walk.runs()
        offset = walk.end
        if offset < stop:
            offset = min(offset - offset % segments.size + segments.size, stop)


def _record_size(data: bytes, position: int) -> int:
    """Return TOTALSIZE if a record may begin at `position`, else 0: damaged bytes must not cause a read of a gigabyte."""
    if len(data) - position < FILLER_SIZE:
        return 0
    size, magic = SIZE_AND_MAGIC.unpack_from(data, position)
    return int(size) if magic == MAGIC else 0


def compute_tags_code(record: ScannedRecord, delays_ms: Sequence[int]) -> int:
    """Return the tags code of a record's queue entry: the hash of its TAGS, or in a delay topic its due time in ms."""
    if record.topic == _SCHEDULE:
        delivery_ms = compute_delivery_ms(record.properties.decode("utf-8", "replace"), record.store_ms, delays_ms)
        if delivery_ms is not None:
            return delivery_ms
    if record.topic == _TIMER:
        return compute_timer_tags_code(record.properties.decode("utf-8", "replace"))
    return hash_tags(record.properties)


def compute_timer_tags_code(properties: str) -> int:
    """Return the tags code of a record in the timer topic: its due time, or the timer that it cancels; 0 if it has neither."""
    values = properties_text.decode(properties)
    text = values.get(TIMER_OUT_MS) or values.get(TIMER_CANCELS, "")
    return int(text) if text.isdecimal() else 0


def compute_delivery_ms(properties: str, store_ms: int, delays_ms: Sequence[int]) -> int | None:
    """Return when a record with these properties is delivered, in ms; None without a delay level."""
    text = properties_text.decode(properties).get(DELAY, "")
    if not text.isdecimal() or not int(text) or not delays_ms:
        return None
    return store_ms + delays_ms[min(int(text), len(delays_ms)) - 1]
