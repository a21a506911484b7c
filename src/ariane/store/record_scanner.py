"""Reads records where they are stored in the commit log: one at an offset, or a scan that can skip corrupt ranges.

    | record | record | corrupt ... | record | filler |  next file: | record | zeros ...
    ^ start                                                                  ^ end: no valid record follows

For recovery and rebuilds. Unlike `protocol.record.decode` this module also checks the record's position (own offset, room left in
the file) and does not copy the body. [CommitLog.checkMessageAndReturnSize]
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ariane.model.hashes import java_hash
from ariane.model.message import BORN_HOST_V6, DELAY, STORE_HOST_V6, TAGS, TIMER_CANCELS, TIMER_OUT_MS
from ariane.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC
from ariane.protocol import properties as properties_text
from ariane.protocol.record import (
    BODY_LENGTH_SIZE,
    BODY_SIZE_AT,
    FILLER_MAGIC,
    FILLER_SIZE,
    FIXED_SIZE,
    HEAD,
    HEAD_MAX,
    I16,
    I32,
    I64,
    MAGIC,
    MAGIC_AT,
    PREPARED_OFFSET_AT,
    PROPERTIES_LENGTH_SIZE,
    SIZE_AND_MAGIC,
    STORE_MS_AT,
    TAIL_SIZE,
    TOPIC_LENGTH_SIZE,
    V6_EXTRA,
    body_size_at,
)  # fmt: skip
from ariane.store.segments import Segments

CHUNK_BYTES = 1 << 20  # bytes per read of a scan
FIRST_SEARCH_BYTES = (
    4096  # bytes per read of a search, at first: corrupt ranges are mostly short, and there may be many
)
SMALL_READ_BYTES = 1024  # bytes read for a single record: most records are not longer
_BEFORE_BODY = BODY_SIZE_AT - PREPARED_OFFSET_AT  # distance from the prepared offset to the length of the body
_ANY_MAGIC = re.compile(b"|".join(re.escape(I32.pack(magic)) for magic in (MAGIC, FILLER_MAGIC)))
_SCHEDULE = SCHEDULE_TOPIC.encode()
_TIMER = TIMER_TOPIC.encode()
_TAGS = f"{TAGS}{properties_text.NAME_END}".encode()


class ScannedRecord(NamedTuple):
    """A record's position and the fields that its consume queue entry needs."""

    offset: int  # in the commit log
    size: int  # bytes of the whole record
    topic: bytes  # undecoded: most scans only compare it
    queue_id: int  # within the topic
    queue_offset: int  # number of its entry
    sys_flag: int  # transaction bits decide whether it gets an entry
    store_ms: int  # by the broker's clock
    properties: bytes  # undecoded
    prepared_offset: int = 0  # of the half message, for the record of a decided transaction

    @property
    def end(self) -> int:
        return self.offset + self.size


class NotARecord(Exception):
    """The bytes at an offset are not a record; the message says why. Stays inside the store."""


def parse_record(data: bytes, position: int, offset: int, room: int, *, check_crc: bool) -> ScannedRecord:
    """Return the record at `data[at:]`.

    Args:
        offset: commit log offset of `data[at]`.
        room: bytes left in the log file from `offset` on.
        check_crc: verify the body's checksum, and that the properties were written completely.

    Raises:
        NotARecord: the bytes are not a record of this offset.
    """
    if len(data) - position < FIXED_SIZE:
        raise NotARecord(f"{len(data) - position} bytes are left, a record has at least {FIXED_SIZE}")
    size, magic, crc, queue_id, _, queue_offset, own_offset, sys_flag, _ = HEAD.unpack_from(data, position)
    if magic != MAGIC:
        raise NotARecord(f"magic {magic & 0xFFFFFFFF:#x} instead of {MAGIC & 0xFFFFFFFF:#x}")
    if own_offset != offset:
        raise NotARecord(f"the record names offset {own_offset}")
    extra = V6_EXTRA if sys_flag & BORN_HOST_V6 else 0
    store_ms_at = STORE_MS_AT + extra
    size_at = BODY_SIZE_AT + extra + (V6_EXTRA if sys_flag & STORE_HOST_V6 else 0)  # length of the body
    body_at = size_at + BODY_LENGTH_SIZE
    if size < body_at + TAIL_SIZE or size + FILLER_SIZE > room or position + size > len(data):
        raise NotARecord(f"a size of {size} bytes does not fit")
    (store_ms,) = I64.unpack_from(data, position + store_ms_at)
    (body_size,) = I32.unpack_from(data, position + size_at)
    topic_at = body_at + body_size
    if body_size < 0 or topic_at + TAIL_SIZE > size:
        raise NotARecord(f"a body of {body_size} bytes does not fit into {size}")
    properties_at = topic_at + TOPIC_LENGTH_SIZE + data[position + topic_at]
    text_at = properties_at + PROPERTIES_LENGTH_SIZE
    if text_at > size:
        raise NotARecord("the topic does not fit")
    (properties_size,) = I16.unpack_from(data, position + properties_at)
    if properties_size < 0 or text_at + properties_size != size:
        raise NotARecord(f"properties of {properties_size} bytes do not end the record")
    if check_crc and body_size and crc != zlib.crc32(data[position + body_at : position + topic_at]) & 0x7FFFFFFF:
        raise NotARecord("the body's CRC is wrong")
    if check_crc and properties_size and not data[position + size - 1]:
        # No checksum covers the properties, and their text never ends with a zero: the write was torn in them.
        raise NotARecord("its properties end with zeros")
    topic = data[position + topic_at + TOPIC_LENGTH_SIZE : position + properties_at]
    properties = data[position + text_at : position + size]
    (prepared_offset,) = I64.unpack_from(data, position + size_at - _BEFORE_BODY)
    return ScannedRecord(offset, size, topic, queue_id, queue_offset, sys_flag, store_ms, properties, prepared_offset)


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
    ) -> None:
        # Results: where the scan ended and why, and what it skipped.
        self.end = start
        self.stop_reason = ""
        self.corrupt_ranges: list[CorruptRange] = []
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
        segments, size = self._segments, self._segments.size
        data, position = b"", 0
        offset = self.end
        before_ms = 0
        skipped: list[CorruptRange] = []  # corrupt ranges that count once a record follows
        while offset < self._stop:
            room = size - offset % size
            if len(data) - position < FIXED_SIZE:
                data, position = segments.read(offset, CHUNK_BYTES), 0
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
                data, position = segments.read(offset, max(record_size, CHUNK_BYTES)), 0
            try:
                record = parse_record(data, position, offset, room, check_crc=self._check_crc or bool(skipped))
                if skipped and record.store_ms < (self._min_store_ms or 0):
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
            position += record.size
            offset += record.size
            if self._min_store_ms is not None:
                # The earlier of two neighbours: nothing protects store times, and one damaged time must not age all later records.
                self._min_store_ms = max(self._min_store_ms, min(before_ms, record.store_ms))
                before_ms = record.store_ms
            if skipped:
                self.corrupt_ranges += skipped
                skipped.clear()
                self.stop_reason = ""
            self.end = offset
            yield record

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


def iter_readable_records(segments: Segments, start: int, stop: int) -> Iterator[ScannedRecord]:
    """Yield the records between two record boundaries, without checking bodies.

    After a record that cannot be read, continue with the next file: only there the next boundary is known.
    """
    offset = start
    while offset < stop:
        walk = RecordScanner(segments, offset, stop, check_crc=False)
        yield from walk
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
    if _TAGS not in record.properties:
        return 0
    tags = properties_text.decode(record.properties.decode("utf-8", "replace")).get(TAGS, "")
    return java_hash(tags) if tags else 0


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
