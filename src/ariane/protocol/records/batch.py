"""The body of SEND_BATCH_MESSAGE: a sequence of messages.

    size i32 | magic i32 0 | crc i32 0 | flag i32 | body i32+n | properties i16+n

Size, magic and CRC are written as Java writes them and ignored on reading. [MessageDecoder.encodeMessage]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import NamedTuple

from ariane.errors import ProtocolError

_START = Struct(">iiiii")
_I16 = Struct(">h")
OVERHEAD = _START.size + _I16.size

# Bytes of bodies and properties that the messages of a batch are stored with. Each repeats the properties of the request, so a
# frame of megabytes could otherwise fill the memory.
STORED_MAX = 64 * 1024 * 1024


class BatchEntry(NamedTuple):
    flag: int
    body: bytes
    properties: str


def encode(entries: Iterable[BatchEntry]) -> bytes:
    parts: list[bytes] = []
    for flag, body, properties in entries:
        text = properties.encode()
        parts += (
            _START.pack(OVERHEAD + len(body) + len(text), 0, 0, flag, len(body)),
            body,
            _I16.pack(len(text)),
            text,
        )
    return b"".join(parts)


def decode(data: bytes) -> list[BatchEntry]:
    """Return all entries. Raise ProtocolError if one of them exceeds the data."""
    entries: list[BatchEntry] = []
    position, end = 0, len(data)
    while position < end:
        if position + _START.size > end:
            raise ProtocolError(f"Batch entry {len(entries)} ends within its header")
        _, _, _, flag, body_size = _START.unpack_from(data, position)
        position += _START.size
        if body_size < 0 or position + body_size + 2 > end:
            raise ProtocolError(f"Batch entry {len(entries)}: invalid body length {body_size}")
        body = data[position : position + body_size]
        position += body_size
        (size,) = _I16.unpack_from(data, position)
        position += 2
        if size < 0 or position + size > end:
            raise ProtocolError(f"Batch entry {len(entries)}: invalid properties length {size}")
        try:
            properties = data[position : position + size].decode()
        except UnicodeDecodeError:
            raise ProtocolError(f"Batch entry {len(entries)}: properties are not UTF-8") from None
        entries.append(BatchEntry(flag, body, properties))
        position += size
    return entries


def exceeds_stored_max(entries: list[BatchEntry], common: Mapping[str, str]) -> bool:
    """Return whether the messages are stored with more than STORED_MAX bytes for the properties of the request alone."""
    return len(entries) * sum(len(name) + len(value) for name, value in common.items()) > STORED_MAX
