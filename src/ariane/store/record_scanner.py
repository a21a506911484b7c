"""Records as they lie in the commit log: one looked at, and a walk over many that ends at, or passes over, what is none.

Used where the log itself is the source: recovery, and deriving queue entries again. Unlike `protocol.record.decode` it judges
bytes by the place they lie at (own offset, room left in the file) and keeps no body. [CommitLog.checkMessageAndReturnSize]
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

CHUNK_BYTES = 1 << 20  # bytes read at once by a walk
FIRST_SEARCH_BYTES = 4096  # bytes searched first: damage is mostly short, and there may be much of it
SMALL_READ_BYTES = 1024  # bytes read for one record: most are no longer
_BEFORE_BODY = BODY_SIZE_AT - PREPARED_OFFSET_AT  # by how much the prepared offset precedes the length of the body
_ANY_MAGIC = re.compile(b"|".join(re.escape(I32.pack(magic)) for magic in (MAGIC, FILLER_MAGIC)))
_SCHEDULE = SCHEDULE_TOPIC.encode()
_TIMER = TIMER_TOPIC.encode()
_TAGS = f"{TAGS}{properties_text.NAME_END}".encode()


class ScannedRecord(NamedTuple):
    """What a consume queue entry needs to know of a record, and where it lies."""

    offset: int
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_ms: int
    properties: bytes
    prepared_offset: int = 0

    @property
    def end(self) -> int:
        return self.offset + self.size


class NotARecord(Exception):
    """The bytes at a place are no record of that place; says why. Never leaves the store."""


def parse_record(data: bytes, at: int, offset: int, room: int, *, check_crc: bool) -> ScannedRecord:
    """The record at `data[at:]`, which lies at `offset` with `room` bytes left in its file. NotARecord when it is none."""
    if len(data) - at < FIXED_SIZE:
        raise NotARecord(f"{len(data) - at} bytes are left, a record has at least {FIXED_SIZE}")
    size, magic, crc, queue_id, _, queue_offset, own_offset, sys_flag, _ = HEAD.unpack_from(data, at)
    if magic != MAGIC:
        raise NotARecord(f"magic {magic & 0xFFFFFFFF:#x} instead of {MAGIC & 0xFFFFFFFF:#x}")
    if own_offset != offset:
        raise NotARecord(f"the record says it lies at {own_offset}")
    extra = V6_EXTRA if sys_flag & BORN_HOST_V6 else 0
    store_ms_at = STORE_MS_AT + extra
    size_at = BODY_SIZE_AT + extra + (V6_EXTRA if sys_flag & STORE_HOST_V6 else 0)  # length of the body
    body_at = size_at + BODY_LENGTH_SIZE
    if size < body_at + TAIL_SIZE or size + FILLER_SIZE > room or at + size > len(data):
        raise NotARecord(f"a size of {size} bytes does not fit")
    (store_ms,) = I64.unpack_from(data, at + store_ms_at)
    (body_size,) = I32.unpack_from(data, at + size_at)
    topic_at = body_at + body_size
    if body_size < 0 or topic_at + TAIL_SIZE > size:
        raise NotARecord(f"a body of {body_size} bytes does not fit into {size}")
    properties_at = topic_at + TOPIC_LENGTH_SIZE + data[at + topic_at]
    text_at = properties_at + PROPERTIES_LENGTH_SIZE
    if text_at > size:
        raise NotARecord("the topic does not fit")
    (properties_size,) = I16.unpack_from(data, at + properties_at)
    if properties_size < 0 or text_at + properties_size != size:
        raise NotARecord(f"properties of {properties_size} bytes do not end the record")
    if check_crc and body_size and crc != zlib.crc32(data[at + body_at : at + topic_at]) & 0x7FFFFFFF:
        raise NotARecord("the body's CRC is wrong")
    if check_crc and properties_size and not data[at + size - 1]:
        # No checksum covers them, and no text ends so: the write was torn in them, the file held zeros before.
        raise NotARecord("its properties end in zeros")
    topic = data[at + topic_at + TOPIC_LENGTH_SIZE : at + properties_at]
    properties = data[at + text_at : at + size]
    (prepared_offset,) = I64.unpack_from(data, at + size_at - _BEFORE_BODY)
    return ScannedRecord(offset, size, topic, queue_id, queue_offset, sys_flag, store_ms, properties, prepared_offset)


def read_record(segments: Segments, offset: int) -> tuple[ScannedRecord, bytes]:
    """The record at `offset` and its bytes; NotARecord when none lies there."""
    room = segments.size - offset % segments.size
    data = segments.read(offset, SMALL_READ_BYTES)
    size = _record_size(data, 0)
    if size > len(data) and size <= room:
        data = segments.read(offset, size)
    found = parse_record(data, 0, offset, room, check_crc=False)
    return found, data[: found.size]


class CorruptRange(NamedTuple):
    """Bytes between good records that are no record: damaged, or never written because power was lost."""

    offset: int
    size: int
    reason: str

    def __str__(self) -> str:
        return f"{self.size} bytes at {self.offset} are no record ({self.reason})"


class RecordScanner:
    """Iterate over the records from `start` on. Afterwards `end` is behind the last one, `why` says what ended it.

    `stop` bounds it: no record that ends behind it is looked at. `check_crc` reads every body. With `floor_ms` a place that holds
    no record does not end the walk when good records follow, none of them stored before `floor_ms` or before the last one seen:
    it is passed over and put into `holes`. (An older one is a leftover of a log that Java cut without clearing it.) With `sure`
    everything below `stop` is known to have been written: what is no record there is a hole up to `stop`, whatever follows.
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
        self.end = start
        self.stop_reason = ""
        self.corrupt_ranges: list[CorruptRange] = []
        self._segments = segments
        self._stop = stop
        self._check_crc = check_crc
        self._min_store_ms = min_store_ms
        self._all_written = all_written

    @property
    def min_store_ms(self) -> int:
        """A time before which no record behind the last but one was stored."""
        return self._min_store_ms or 0

    def __iter__(self) -> Iterator[ScannedRecord]:
        segments, size = self._segments, self._segments.size
        data, at = b"", 0
        place = self.end
        before_ms = 0
        passed: list[CorruptRange] = []  # counts once a record follows
        while place < self._stop:
            room = size - place % size
            if len(data) - at < FIXED_SIZE:
                data, at = segments.read(place, CHUNK_BYTES), 0
            wanted, magic = SIZE_AND_MAGIC.unpack_from(data, at) if len(data) - at >= FILLER_SIZE else (0, 0)
            if magic == FILLER_MAGIC and wanted == room:
                place += room
                data, at = b"", 0
                if not passed:
                    self.end = place
                if not segments.has(place):
                    self.stop_reason = self.stop_reason or "the last file is full"
                    return
                continue
            if wanted > len(data) - at and magic == MAGIC and wanted <= room:
                data, at = segments.read(place, max(wanted, CHUNK_BYTES)), 0
            try:
                found = parse_record(data, at, place, room, check_crc=self._check_crc or bool(passed))
                if passed and found.store_ms < (self._min_store_ms or 0):
                    raise NotARecord("it is older than the records before it")
            except NotARecord as fault:
                self.stop_reason = passed[0].reason if passed else str(fault)
                if self._min_store_ms is None:
                    return
                following = self._find_resume(place)
                if following is None:
                    return
                passed.append(CorruptRange(place, following - place, str(fault)))
                place = following
                data, at = b"", 0
                if place == self._stop:
                    self.corrupt_ranges += passed
                    self.end = place
                continue
            at += found.size
            place += found.size
            if self._min_store_ms is not None:
                # The lesser of two neighbours: nothing protects a store time, and a damaged one must not make the rest look old.
                self._min_store_ms = max(self._min_store_ms, min(before_ms, found.store_ms))
                before_ms = found.store_ms
            if passed:
                self.corrupt_ranges += passed
                passed.clear()
                self.stop_reason = ""
            self.end = place
            yield found

    def _find_resume(self, place: int) -> int | None:
        """Where the walk can go on behind the bad `place`: at a record, at a filler, at the next file, at a sure `stop`."""
        segments, size = self._segments, self._segments.size
        following = place - place % size + size
        bound = min(following, self._stop)
        found = find_valid_record(segments, place + 1, bound, self._min_store_ms or 0)
        if found is not None:
            return found
        if self._all_written and bound == self._stop:
            return bound
        return following if following < self._stop and segments.has(following) else None


def find_valid_record(segments: Segments, start: int, stop: int, floor_ms: int) -> int | None:
    """The first place in [start, stop), all of one file, with a record that is right in all its parts, or the file's filler.

    Found by its magic, which must stand at the place the record itself names; a body is checked by its CRC. What was never
    written is not read.
    """
    at, wanted = start, FIRST_SEARCH_BYTES
    while at < stop:
        reached = segments.find_data(at)
        if reached is None or reached >= stop:
            return None
        # The magic stands 4 bytes behind the beginning of a record: what was skipped as unwritten cannot hold one before.
        at = max(at, reached - MAGIC_AT)
        data = segments.read(at, wanted)
        for place in _magics(data):
            if at + place >= stop:
                return None
            if _is_good(segments, at + place, floor_ms):
                return at + place
        if len(data) < wanted:
            return None
        at += len(data) - FILLER_SIZE + 1  # a magic may lie across the border
        wanted = min(4 * wanted, CHUNK_BYTES)
    return None


def _magics(data: bytes) -> Iterator[int]:
    """Places in `data` whose bytes 4..7 are the magic of a record or of a filler."""
    for hit in _ANY_MAGIC.finditer(data, MAGIC_AT):
        yield hit.start() - MAGIC_AT


def _is_good(segments: Segments, offset: int, floor_ms: int) -> bool:
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
        return parse_record(segments.read(offset, size), 0, offset, room, check_crc=True).store_ms >= floor_ms
    except NotARecord:
        return False


def has_matching_lengths(segments: Segments, offset: int, size: int) -> bool:
    """Return whether the lengths of the record at `offset` lead to its end, by a few bytes where they are stored.

    Asked before a whole record is read: a broken size must not make a task read megabytes at each damaged place.
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
    """The records between two record boundaries, the bodies unchecked. Over one that cannot be read, it goes on with the next
    file (nothing else tells where the next record begins)."""
    at = start
    while at < stop:
        walk = RecordScanner(segments, at, stop, check_crc=False)
        yield from walk
        at = walk.end
        if at < stop:
            at = min(at - at % segments.size + segments.size, stop)


def _record_size(data: bytes, at: int) -> int:
    """TOTALSIZE if a record may begin at `at`, else 0: garbage must not make us read a gigabyte."""
    if len(data) - at < FILLER_SIZE:
        return 0
    size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
    return int(size) if magic == MAGIC else 0


def compute_tags_code(found: ScannedRecord, delays_ms: Sequence[int]) -> int:
    """The queue entry's tags code for a record: hash of its TAGS, or when it is due if it lies in the schedule topic."""
    if found.topic == _SCHEDULE:
        due = compute_delivery_ms(found.properties.decode("utf-8", "replace"), found.store_ms, delays_ms)
        if due is not None:
            return due
    if found.topic == _TIMER:
        return compute_timer_tags_code(found.properties.decode("utf-8", "replace"))
    if _TAGS not in found.properties:
        return 0
    tags = properties_text.decode(found.properties.decode("utf-8", "replace")).get(TAGS, "")
    return java_hash(tags) if tags else 0


def compute_timer_tags_code(properties: str) -> int:
    """The tags code of a record in the timer topic: when it is due, or which timer it cancels; 0 when it says neither."""
    own = properties_text.decode(properties)
    text = own.get(TIMER_OUT_MS) or own.get(TIMER_CANCELS, "")
    return int(text) if text.isdecimal() else 0


def compute_delivery_ms(properties: str, store_ms: int, delays_ms: Sequence[int]) -> int | None:
    """When a record with these properties leaves the schedule topic; None without a delay level."""
    text = properties_text.decode(properties).get(DELAY, "")
    if not text.isdecimal() or not int(text) or not delays_ms:
        return None
    return store_ms + delays_ms[min(int(text), len(delays_ms)) - 1]
