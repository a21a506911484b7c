"""Where the records of a buffer and their parts lie, found for many records at once.

    candidates(data)   → where a magic stands
    Header             → the fixed fields of records, each gathered from the buffer when it is asked for
    edges(...)         → where body, topic and properties begin and end

A field of all records is one strided view that begins anew at every byte of the buffer, and one gather from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ariane.model.message import BORN_HOST_V6, STORE_HOST_V6
from ariane.protocol import record

# name → type and place within a record; behind `born_host` only when no host is an IPv6 address
_FIELDS = {
    "size": (">i4", 0),
    "crc": (">i4", 8),
    "queue_id": (">i4", 12),
    "flag": (">i4", 16),
    "queue_offset": (">i8", record.QUEUE_OFFSET_AT),
    "offset": (">i8", record.PHYSICAL_OFFSET_AT),
    "sys_flag": (">i4", record.SYS_FLAG_AT),
    "born_ms": (">i8", 40),
    "born_host": ("V8", 48),
    "store_ms": (">i8", 56),
    "store_host": ("V8", 64),
    "reconsume_times": (">i4", 72),
    "prepared": (">i8", 76),
    "body_size": (">i4", 84),
}
_BODY_AT = 88
_ODD = BORN_HOST_V6 | STORE_HOST_V6
_MAGIC = np.frombuffer(record.MAGIC.to_bytes(4, "big", signed=True), np.uint8)


class RecordHeader:
    """Fixed fields of the records of `data` that begin at `starts`, each of which has at least FIXED_SIZE bytes there."""

    __slots__ = ("_data", "_found", "_starts")

    def __init__(self, data: bytes, starts: Any, found: dict[str, Any] | None = None) -> None:
        self._data = data
        self._starts = starts
        self._found = found or {}

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, name: str) -> Any:
        """The field `name` of all, integers in the machine's order of bytes."""
        found = self._found.get(name)
        if found is None:
            kind, at = _FIELDS[name]
            places = gathered(self._data, kind, at, self._starts)
            found = self._found[name] = places if kind == "V8" else places.astype(places.dtype.newbyteorder("="))
        return found

    def part(self, which: Any) -> RecordHeader:
        return RecordHeader(
            self._data, self._starts[which], {name: field[which] for name, field in self._found.items()}
        )

    @property
    def is_odd(self) -> bool:
        """Whether a record among them has an IPv6 host."""
        return bool((self["sys_flag"] & _ODD).any())


def gathered(data: bytes, kind: str, at: int, starts: Any) -> Any:
    """What lies `at` bytes behind each of `starts`."""
    return np.ndarray((len(data) - at - np.dtype(kind).itemsize + 1,), kind, data, at, (1,))[starts]


def candidates(data: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where records may begin: the magic stands 4 bytes behind each of these places."""
    octets = np.frombuffer(data, np.uint8)
    hits = np.flatnonzero(octets[4:-3] == _MAGIC[0]) if len(octets) >= 8 else np.zeros(0, np.int64)
    for at in (1, 2, 3):
        hits = hits[octets[hits + 4 + at] == _MAGIC[at]]
    return hits


def edges(data: bytes, starts: Any, header: RecordHeader) -> tuple[Any, Any]:
    """Where body, topic and properties begin and end in `data`: six columns; and which records these lengths fit.

    Each record has to lie within `data` by its size. IPv6 hosts are reckoned with.
    """
    octets = np.frombuffer(data, np.uint8)
    stops = starts + header["size"]
    body_start = starts + _BODY_AT
    if header.is_odd:
        flags = header["sys_flag"]
        body_start += 12 * (flags & BORN_HOST_V6 != 0) + 12 * (flags & STORE_HOST_V6 != 0)
        fits = body_start + 3 <= stops
        body_start = np.where(fits, body_start, stops - 3)
        body_size = gathered(data, ">i4", 0, body_start - 4)
    else:
        fits = np.ones(len(starts), bool)
        body_size = header["body_size"]
    body_end = body_start + body_size
    fits &= (body_size >= 0) & (body_end + 3 <= stops)
    if not fits.all():
        body_end = np.where(fits, body_end, body_start)
    topic_start = body_end + 1
    topic_end = topic_start + octets[body_end]
    fits &= topic_end + 2 <= stops
    if not fits.all():
        topic_end = np.where(fits, topic_end, body_start)
    # The length is signed: from 128 on, the first octet says a negative one, which ends no record.
    text_start = topic_end + 2
    fits &= text_start + gathered(data, ">i2", 0, topic_end) == stops
    found = np.empty((len(starts), 6), np.int32)
    for column, edge in enumerate((body_start, body_end, topic_start, topic_end, text_start, stops)):
        found[:, column] = edge
    return found, fits
