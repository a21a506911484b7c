"""Locates the records of a buffer and their parts, vectorised over many records.

    find_candidates(data)   → positions 4 bytes before a magic
    RecordHeader            → fixed fields of the records, each gathered on first access
    find_parts(...)         → bounds of body, topic and properties

To read a field of all records, the buffer is viewed as overlapping values, one starting at every byte, and indexed once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ariane.model.message import BORN_HOST_V6, STORE_HOST_V6
from ariane.protocol.records import record

# field → type and offset in a record; those after `born_host` are valid only if neither host is an IPv6 address.
_FIELDS = {
    "size": (">i4", record.SIZE_AT),
    "crc": (">i4", record.BODY_CRC_AT),
    "queue_id": (">i4", record.QUEUE_ID_AT),
    "flag": (">i4", record.FLAG_AT),
    "queue_offset": (">i8", record.QUEUE_OFFSET_AT),
    "offset": (">i8", record.PHYSICAL_OFFSET_AT),
    "sys_flag": (">i4", record.SYS_FLAG_AT),
    "born_ms": (">i8", record.BORN_MS_AT),
    "born_host": ("V8", record.BORN_HOST_AT),
    "store_ms": (">i8", record.STORE_MS_AT),
    "store_host": ("V8", record.STORE_HOST_AT),
    "reconsume_times": (">i4", record.RECONSUME_TIMES_AT),
    "prepared": (">i8", record.PREPARED_OFFSET_AT),
    "body_size": (">i4", record.BODY_SIZE_AT),
}
_MAGIC = np.frombuffer(record.MAGIC.to_bytes(4, "big", signed=True), np.uint8)


class RecordHeader:
    """Fixed fields of the records at `starts` in `data`; at least FIXED_SIZE bytes follow each start."""

    __slots__ = ("_data", "_fields", "_starts")

    def __init__(self, data: bytes, starts: Any, fields: dict[str, Any] | None = None) -> None:
        self._data = data
        self._starts = starts
        self._fields = fields or {}

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, name: str) -> Any:
        """Return the field `name` of all records, integers in native byte order."""
        values = self._fields.get(name)
        if values is None:
            kind, position = _FIELDS[name]
            raw = gather(self._data, kind, position, self._starts)
            values = self._fields[name] = raw if kind == "V8" else raw.astype(raw.dtype.newbyteorder("="))
        return values

    def select(self, which: Any) -> RecordHeader:
        return RecordHeader(
            self._data, self._starts[which], {name: field[which] for name, field in self._fields.items()}
        )

    @property
    def has_ipv6(self) -> bool:
        """Whether one of the records has an IPv6 host."""
        return bool((self["sys_flag"] & record.V6_HOSTS).any())


def gather(data: bytes, kind: str, position: int, starts: Any) -> Any:
    """Return the values of type `kind` at `position` bytes after each of `starts`."""
    return np.ndarray((len(data) - position - np.dtype(kind).itemsize + 1,), kind, data, position, (1,))[starts]


def find_candidates(data: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the positions at which records may start: those followed by the magic after 4 bytes."""
    octets = np.frombuffer(data, np.uint8)
    hits = (
        np.flatnonzero(octets[record.MAGIC_AT : -3] == _MAGIC[0])
        if len(octets) >= record.FILLER_SIZE
        else np.zeros(0, np.int64)
    )
    for shift in (1, 2, 3):
        hits = hits[octets[hits + record.MAGIC_AT + shift] == _MAGIC[shift]]
    return hits


def find_parts(data: bytes, starts: Any, header: RecordHeader) -> tuple[Any, Any]:
    """Return the bounds of body, topic and properties in `data` (six columns), and which records have consistent lengths.

    Each record has to be within `data` according to its size. IPv6 hosts are supported.
    """
    octets = np.frombuffer(data, np.uint8)
    stops = starts + header["size"]
    body_start = starts + record.BODY_AT
    if header.has_ipv6:
        flags = header["sys_flag"]
        body_start += record.V6_EXTRA * (flags & BORN_HOST_V6 != 0) + record.V6_EXTRA * (flags & STORE_HOST_V6 != 0)
        fits = body_start + record.TAIL_SIZE <= stops
        body_start = np.where(fits, body_start, stops - record.TAIL_SIZE)
        body_size = gather(data, ">i4", 0, body_start - record.BODY_LENGTH_SIZE)
    else:
        fits = np.ones(len(starts), bool)
        body_size = header["body_size"]
    body_end = body_start + body_size
    fits &= (body_size >= 0) & (body_end + record.TAIL_SIZE <= stops)
    if not fits.all():
        body_end = np.where(fits, body_end, body_start)
    topic_start = body_end + record.TOPIC_LENGTH_SIZE
    topic_end = topic_start + octets[body_end]
    fits &= topic_end + record.PROPERTIES_LENGTH_SIZE <= stops
    if not fits.all():
        topic_end = np.where(fits, topic_end, body_start)
    # The length is signed. From 0x80 in the first byte on it is negative, so such a record fails the comparison.
    text_start = topic_end + record.PROPERTIES_LENGTH_SIZE
    fits &= text_start + gather(data, ">i2", 0, topic_end) == stops
    parts = np.empty((len(starts), 6), np.int32)
    for column, edge in enumerate((body_start, body_end, topic_start, topic_end, text_start, stops)):
        parts[:, column] = edge
    return parts, fits
