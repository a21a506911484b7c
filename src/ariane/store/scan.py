"""Records as they lie in the commit log: one looked at, and a walk over many that stops at the first that is none.

Used where the log itself is the source: recovery, and deriving queue entries again. Unlike `protocol.record.decode` it judges
bytes by the place they lie at (own offset, room left in the file) and keeps no body. [CommitLog.checkMessageAndReturnSize]
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from ariane.model.hashes import java_hash
from ariane.model.message import BORN_HOST_V6, DELAY, STORE_HOST_V6, TAGS, TIMER_CANCELS, TIMER_OUT_MS
from ariane.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC
from ariane.protocol import properties as properties_text
from ariane.protocol.record import FILLER_MAGIC, FILLER_SIZE, FIXED_SIZE, MAGIC
from ariane.store.segments import Segments

CHUNK = 1 << 20  # bytes read at once by a walk
SMALL = 1024  # bytes read for one record: most are no longer
_HEAD = Struct(">iiiiiqqiq")
_FILLER = Struct(">ii")
_I64 = Struct(">q")
_I32 = Struct(">i")
_I16 = Struct(">h")
_SCHEDULE = SCHEDULE_TOPIC.encode()
_TIMER = TIMER_TOPIC.encode()
_TAGS = f"{TAGS}{properties_text.NAME_END}".encode()


class Found(NamedTuple):
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


def look(data: bytes, at: int, offset: int, room: int, *, check_crc: bool) -> Found:
    """The record at `data[at:]`, which lies at `offset` with `room` bytes left in its file. NotARecord when it is none."""
    if len(data) - at < FIXED_SIZE:
        raise NotARecord(f"{len(data) - at} bytes are left, a record has at least {FIXED_SIZE}")
    size, magic, crc, queue_id, _, queue_offset, own_offset, sys_flag, _ = _HEAD.unpack_from(data, at)
    if magic != MAGIC:
        raise NotARecord(f"magic {magic & 0xFFFFFFFF:#x} instead of {MAGIC & 0xFFFFFFFF:#x}")
    if own_offset != offset:
        raise NotARecord(f"the record says it lies at {own_offset}")
    pos = _HEAD.size + (20 if sys_flag & BORN_HOST_V6 else 8)
    body_at = pos + 8 + (20 if sys_flag & STORE_HOST_V6 else 8) + 4 + 8
    if size < body_at + 7 or size + FILLER_SIZE > room or at + size > len(data):
        raise NotARecord(f"a size of {size} bytes does not fit")
    (store_ms,) = _I64.unpack_from(data, at + pos)
    (body_size,) = _I32.unpack_from(data, at + body_at)
    topic_at = body_at + 4 + body_size
    if body_size < 0 or topic_at + 3 > size:
        raise NotARecord(f"a body of {body_size} bytes does not fit into {size}")
    properties_at = topic_at + 1 + data[at + topic_at]
    if properties_at + 2 > size:
        raise NotARecord("the topic does not fit")
    (properties_size,) = _I16.unpack_from(data, at + properties_at)
    if properties_size < 0 or properties_at + 2 + properties_size != size:
        raise NotARecord(f"properties of {properties_size} bytes do not end the record")
    if check_crc and body_size and crc != zlib.crc32(data[at + body_at + 4 : at + topic_at]) & 0x7FFFFFFF:
        raise NotARecord("the body's CRC is wrong")
    topic = data[at + topic_at + 1 : at + properties_at]
    properties = data[at + properties_at + 2 : at + size]
    (prepared_offset,) = _I64.unpack_from(data, at + body_at - 8)
    return Found(offset, size, topic, queue_id, queue_offset, sys_flag, store_ms, properties, prepared_offset)


def record_at(segments: Segments, offset: int) -> tuple[Found, bytes]:
    """The record at `offset` and its bytes; NotARecord when none lies there."""
    room = segments.size - offset % segments.size
    data = segments.read(offset, SMALL)
    size = _record_size(data, 0)
    if size > len(data) and size <= room:
        data = segments.read(offset, size)
    found = look(data, 0, offset, room, check_crc=False)
    return found, data[: found.size]


class Walk:
    """Iterate over the records from `start` on. Afterwards `end` is where it stopped, `why` says what stopped it.

    `stop` bounds it: no record that ends behind it is looked at. `check_crc` reads every body.
    """

    def __init__(self, segments: Segments, start: int, stop: int, *, check_crc: bool) -> None:
        self.end = start
        self.why = ""
        self._segments = segments
        self._stop = stop
        self._check_crc = check_crc

    def __iter__(self) -> Iterator[Found]:
        segments, size = self._segments, self._segments.size
        data, at = b"", 0
        while self.end < self._stop:
            room = size - self.end % size
            if len(data) - at < FIXED_SIZE:
                data, at = segments.read(self.end, CHUNK), 0
            if self._is_filler(data, at, room):
                self.end += room
                data, at = b"", 0
                if not segments.has(self.end):
                    self.why = "the last file is full"
                    return
                continue
            wanted = _record_size(data, at)
            if FIXED_SIZE <= wanted <= room and wanted > len(data) - at:
                data, at = segments.read(self.end, max(wanted, CHUNK)), 0
            try:
                found = look(data, at, self.end, room, check_crc=self._check_crc)
            except NotARecord as fault:
                self.why = str(fault)
                return
            at += found.size
            self.end += found.size
            yield found

    @staticmethod
    def _is_filler(data: bytes, at: int, room: int) -> bool:
        return len(data) - at >= FILLER_SIZE and _FILLER.unpack_from(data, at) == (room, FILLER_MAGIC)


def _record_size(data: bytes, at: int) -> int:
    """TOTALSIZE if a record may begin at `at`, else 0: garbage must not make us read a gigabyte."""
    if len(data) - at < FILLER_SIZE:
        return 0
    size, magic = _FILLER.unpack_from(data, at)
    return int(size) if magic == MAGIC else 0


def tags_code(found: Found, delays_ms: Sequence[int]) -> int:
    """The queue entry's tags code for a record: hash of its TAGS, or when it is due if it lies in the schedule topic."""
    if found.topic == _SCHEDULE:
        due = due_ms(found.properties.decode("utf-8", "replace"), found.store_ms, delays_ms)
        if due is not None:
            return due
    if found.topic == _TIMER:
        return timer_code(found.properties.decode("utf-8", "replace"))
    if _TAGS not in found.properties:
        return 0
    tags = properties_text.decode(found.properties.decode("utf-8", "replace")).get(TAGS, "")
    return java_hash(tags) if tags else 0


def timer_code(properties: str) -> int:
    """The tags code of a record in the timer topic: when it is due, or which timer it cancels; 0 when it says neither."""
    own = properties_text.decode(properties)
    text = own.get(TIMER_OUT_MS) or own.get(TIMER_CANCELS, "")
    return int(text) if text.isdecimal() else 0


def due_ms(properties: str, store_ms: int, delays_ms: Sequence[int]) -> int | None:
    """When a record with these properties leaves the schedule topic; None without a delay level."""
    text = properties_text.decode(properties).get(DELAY, "")
    if not text.isdecimal() or not int(text) or not delays_ms:
        return None
    return store_ms + delays_ms[min(int(text), len(delays_ms)) - 1]
