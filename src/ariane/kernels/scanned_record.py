"""A record where it is stored in the commit log: its position and the fields that everything derived from it needs.

    | record | record | corrupt ...
             ^ offset, with the record's own offset in it, and room: the bytes that are left in the log file

Unlike `protocol.record.decode` this module also checks the position, and does not copy the body.
[CommitLog.checkMessageAndReturnSize]
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import NamedTuple

from ariane.model.hashes import java_hash
from ariane.model.message import BORN_HOST_V6, STORE_HOST_V6, TAGS
from ariane.protocol.records import properties as properties_text
from ariane.protocol.records.record import (
    BODY_AT,
    BODY_LENGTH_SIZE,
    FILLER_SIZE,
    FIXED_SIZE,
    I16,
    I32,
    I64,
    MAGIC,
    PREPARED_OFFSET_AT,
    PROPERTIES_LENGTH_SIZE,
    STORE_MS_AT,
    TAIL_SIZE,
    TOPIC_LENGTH_SIZE,
    V6_EXTRA,
    V6_HOSTS,
)

# TOTALSIZE, MAGIC, BODYCRC, QUEUEID, QUEUEOFFSET, PHYSICALOFFSET, SYSFLAG, STORETIMESTAMP, PREPAREDOFFSET, length of the body:
# the fields in front of the body in one call. Those from STORETIMESTAMP on have other places if a host is IPv6.
_FIELDS = Struct(">iiii4xqqi16xq12xqi")
_AFTER_PREPARED = BODY_AT - PREPARED_OFFSET_AT  # bytes from the prepared offset to the body
_TAGS = f"{TAGS}{properties_text.NAME_END}".encode()
_PAIR_END = properties_text.PAIR_END.encode()


class ScannedRecord(NamedTuple):
    """A record's position and the fields that its consume queue entry needs."""

    offset: int  # in the commit log
    size: int  # bytes of the whole record
    topic: bytes  # undecoded: most scans only compare it
    queue_id: int
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
    """Return the record at `data[position:]`.

    Args:
        offset: commit log offset of `data[position]`.
        room: bytes left in the log file from `offset` on.
        check_crc: verify the body's checksum, and that the properties were written completely.

    Raises:
        NotARecord: the bytes are not a record of this offset.
    """
    if len(data) - position < FIXED_SIZE:
        raise NotARecord(f"{len(data) - position} bytes are left, a record has at least {FIXED_SIZE}")
    fields = _FIELDS.unpack_from(data, position)
    size, magic, crc, queue_id, queue_offset, own_offset, sys_flag, store_ms, prepared_offset, body_size = fields
    if magic != MAGIC:
        raise NotARecord(f"magic {magic & 0xFFFFFFFF:#x} instead of {MAGIC & 0xFFFFFFFF:#x}")
    if own_offset != offset:
        raise NotARecord(f"the record names offset {own_offset}")
    body_at = BODY_AT
    if sys_flag & V6_HOSTS:
        born_extra = V6_EXTRA if sys_flag & BORN_HOST_V6 else 0
        body_at += born_extra + (V6_EXTRA if sys_flag & STORE_HOST_V6 else 0)
    if size < body_at + TAIL_SIZE or size + FILLER_SIZE > room or position + size > len(data):
        raise NotARecord(f"a size of {size} bytes does not fit")
    if body_at != BODY_AT:
        (store_ms,) = I64.unpack_from(data, position + STORE_MS_AT + born_extra)
        (prepared_offset,) = I64.unpack_from(data, position + body_at - _AFTER_PREPARED)
        (body_size,) = I32.unpack_from(data, position + body_at - BODY_LENGTH_SIZE)
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
    return ScannedRecord(offset, size, topic, queue_id, queue_offset, sys_flag, store_ms, properties, prepared_offset)


def hash_tags(properties: bytes) -> int:
    """Return the hash of the TAGS in a record's properties, the tags code of most queue entries; 0 without them."""
    position = properties.rfind(_TAGS)
    if position < 0:
        return 0
    tags, _, _ = properties[position + len(_TAGS) :].partition(_PAIR_END)
    if tags and (not position or properties[position - 1] == _PAIR_END[0]):
        return java_hash(tags.decode("utf-8", "replace"))
    # The end of another name, part of a value, or without a value: an earlier one counts.
    text = properties_text.decode(properties.decode("utf-8", "replace")).get(TAGS, "")
    return java_hash(text) if text else 0
