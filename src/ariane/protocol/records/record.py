"""The stored record: one message as the same bytes in the commit log, in a pull response, and in a check or query body.

    offset  size  field               offset  size  field
         0     4  TOTALSIZE               48  8|20  BORNHOST
         4     4  MAGIC                  *56     8  STORETIMESTAMP
         8     4  BODYCRC                *64  8|20  STOREHOST
        12     4  QUEUEID                *72     4  RECONSUMETIMES
        16     4  FLAG                   *76     8  PREPAREDOFFSET
        20     8  QUEUEOFFSET            *84   4+n  BODY        (i32 length, bytes)
        28     8  PHYSICALOFFSET                1+n  TOPIC       (u8 length, UTF-8)
        36     4  SYSFLAG                       2+n  PROPERTIES  (i16 length, UTF-8)
        40     8  BORNTIMESTAMP

All integers are signed and big-endian. A host has 20 bytes if SYSFLAG says IPv6 (0x10 born, 0x20 store); each such host moves
the fields after it, marked *, by 12 bytes. A commit-log file ends with a filler: `remaining bytes i32 | FILLER_MAGIC i32`, then
bytes without a meaning. [MessageDecoder, CommitLog.checkMessageAndReturnSize]

This module is the only one that defines the layout: every other decoder (scanner, consume-queue reader, Arrow decoder) uses its
constants, bound at import so that hot paths pay nothing for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from zlib import crc32

import msgspec

from ariane.errors import ProtocolError
from ariane.model.host import PACKED_V4, PACKED_V6
from ariane.model.message import BORN_HOST_V6, STORE_HOST_V6
from ariane.protocol.records import properties as properties_text

MAGIC = -626843481  # 0xDAA320A7
FILLER_MAGIC = -875286124  # 0xCBD43194

# Offsets of the fields; from STORE_MS_AT on those of a record with two IPv4 hosts.
SIZE_AT = 0
MAGIC_AT = 4
BODY_CRC_AT = 8
QUEUE_ID_AT = 12
FLAG_AT = 16
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
BORN_MS_AT = 40
BORN_HOST_AT = 48
STORE_MS_AT = 56
STORE_HOST_AT = 64
RECONSUME_TIMES_AT = 72
PREPARED_OFFSET_AT = 76
BODY_SIZE_AT = 84
BODY_AT = 88

BODY_LENGTH_SIZE = BODY_AT - BODY_SIZE_AT  # bytes of the length in front of the body
TOPIC_LENGTH_SIZE = 1
PROPERTIES_LENGTH_SIZE = 2
TAIL_SIZE = TOPIC_LENGTH_SIZE + PROPERTIES_LENGTH_SIZE  # what follows the body at least: two lengths
FIXED_SIZE = BODY_AT + TAIL_SIZE  # 91: everything except body, topic and properties, with two IPv4 hosts
V6_EXTRA = PACKED_V6 - PACKED_V4  # 12: by how much an IPv6 host moves the fields after it
HEAD_MAX = BODY_AT + 2 * V6_EXTRA  # bytes in front of the body, with two IPv6 hosts
TOPIC_MAX = 127  # bytes
V6_HOSTS = BORN_HOST_V6 | STORE_HOST_V6

I16 = Struct(">h")
I32 = Struct(">i")
I64 = Struct(">q")
SIZE_AND_MAGIC = Struct(">ii")  # the start of a record, and a whole filler
IDENTITY = Struct(">ii20xq")  # TOTALSIZE, MAGIC, PHYSICALOFFSET: enough to recognise the record at an offset
HEAD = Struct(">iiiiiqqiq")  # TOTALSIZE to BORNTIMESTAMP: the fields in front of the hosts
FILLER_SIZE = SIZE_AND_MAGIC.size

_pack_v4 = Struct(">iiiiiqqiq8sq8siqi").pack  # TOTALSIZE to the length of the body, both hosts IPv4
_pack_i16 = I16.pack
_BYTE = [bytes((value,)) for value in range(256)]
_BEFORE_BODY = Struct(">iqi")  # RECONSUMETIMES, PREPAREDOFFSET, length of the body
# BORNHOST to the length of the body, by the bits of the SYSFLAG for IPv6 hosts.
_AFTER_HEAD = {
    0: Struct(">8sq8siqi"),
    BORN_HOST_V6: Struct(">20sq8siqi"),
    STORE_HOST_V6: Struct(">8sq20siqi"),
    V6_HOSTS: Struct(">20sq20siqi"),
}


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded record."""

    size: int  # of the whole record, in bytes
    body_crc: int  # as stored; compare with `crc_is_right`
    queue_id: int
    flag: int  # the application's, uninterpreted
    queue_offset: int  # number in the queue; in a half message, that in the queue of half messages
    offset: int  # in the commit log
    sys_flag: int  # compression, transaction state, host sizes (`model.message`)
    born_ms: int  # client's clock
    born_host: bytes  # packed (`model.host`)
    store_ms: int  # broker's clock
    store_host: bytes  # packed; part of the offset message id
    reconsume_times: int  # redeliveries so far
    prepared_offset: int  # of the half message, for the record of a decided transaction
    body: bytes  # as stored, possibly compressed
    topic: str  # where it is stored: for delayed and half messages not the target topic
    properties: str  # as stored; `property_map` decodes it

    def property_map(self) -> dict[str, str]:
        return properties_text.decode(self.properties)

    def crc_is_right(self) -> bool:
        """Return whether the body matches its stored CRC."""
        return self.body_crc == body_crc(self.body)


def body_crc(body: bytes) -> int:
    """Return the CRC-32 of `body` with the top bit cleared; 0 for an empty body."""
    return crc32(body) & 0x7FFFFFFF


def encode(
    topic: bytes,
    body: bytes,
    properties: bytes,
    *,
    queue_id: int,
    queue_offset: int,
    offset: int,
    born_ms: int,
    born_host: bytes,
    store_ms: int,
    store_host: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
) -> bytes:
    """Return the bytes of a record. The host bits of `sys_flag` are set from the lengths of the hosts.

    The caller checks that `topic` has at most 127 and `properties` at most 32,767 bytes: the protocol has a response code of
    its own for each.
    """
    if len(born_host) == PACKED_V4 and len(store_host) == PACKED_V4:
        return encode_v4(
            topic, body, properties, queue_id, queue_offset, offset, born_ms, born_host, store_ms, store_host, flag,
            sys_flag, reconsume_times, prepared_offset,
        )  # fmt: skip
    size = FIXED_SIZE - 2 * PACKED_V4 + len(born_host) + len(store_host) + len(body) + len(topic) + len(properties)
    sys_flag &= ~V6_HOSTS
    sys_flag |= (BORN_HOST_V6 if len(born_host) == PACKED_V6 else 0) | (
        STORE_HOST_V6 if len(store_host) == PACKED_V6 else 0
    )
    start = b"".join(
        (
            HEAD.pack(size, MAGIC, body_crc(body), queue_id, flag, queue_offset, offset, sys_flag, born_ms),
            born_host,
            I64.pack(store_ms),
            store_host,
            _BEFORE_BODY.pack(reconsume_times, prepared_offset, len(body)),
        )
    )
    return b"".join((start, body, bytes((len(topic),)), topic, I16.pack(len(properties)), properties))


def encode_v4(  # positional arguments and a single pack: called once for every stored message
    topic: bytes,
    body: bytes,
    properties: bytes,
    queue_id: int,
    queue_offset: int,
    offset: int,
    born_ms: int,
    born_host: bytes,
    store_ms: int,
    store_host: bytes,
    flag: int,
    sys_flag: int,
    reconsume_times: int,
    prepared_offset: int,
    /,
) -> bytes:
    """Return the bytes of a record with two IPv4 hosts, faster than `encode`."""
    topic_size, body_size, properties_size = len(topic), len(body), len(properties)
    start = _pack_v4(
        FIXED_SIZE + body_size + topic_size + properties_size, MAGIC, crc32(body) & 0x7FFFFFFF, queue_id, flag,
        queue_offset, offset, sys_flag & ~V6_HOSTS, born_ms, born_host, store_ms, store_host, reconsume_times,
        prepared_offset, body_size,
    )  # fmt: skip
    return b"".join((start, body, _BYTE[topic_size], topic, _pack_i16(properties_size), properties))


def decode(data: bytes | memoryview, position: int = 0) -> Record:
    """Decode the record at `position` of `data`. The body's CRC is not checked (`Record.crc_is_right`).

    Raises:
        ProtocolError: a field is wrong; the first such field is named. Every length is checked against TOTALSIZE and
            the data before it is used.
    """
    available = len(data) - position
    if available < FIXED_SIZE:
        raise ProtocolError(f"Truncated record: {available} bytes, expected at least {FIXED_SIZE}")
    size, magic, crc, queue_id, flag, queue_offset, offset, sys_flag, born_ms = HEAD.unpack_from(data, position)
    if magic != MAGIC:
        raise ProtocolError(f"No record at {position}: magic {magic & 0xFFFFFFFF:#x}, expected {MAGIC & 0xFFFFFFFF:#x}")
    if not FIXED_SIZE <= size <= available:
        raise ProtocolError(f"Invalid record size {size} at {position}: expected {FIXED_SIZE} to {available} bytes")
    end = position + size
    layout = _AFTER_HEAD[sys_flag & V6_HOSTS]
    pos = position + HEAD.size + layout.size
    if size < pos - position + TAIL_SIZE:
        raise ProtocolError(f"Invalid record size {size} at {position}: too short for its IPv6 hosts")
    born_host, store_ms, store_host, reconsume_times, prepared_offset, body_size = layout.unpack_from(
        data, position + HEAD.size
    )
    if body_size < 0 or pos + body_size + TAIL_SIZE > end:
        raise ProtocolError(f"Invalid body length {body_size} in a record of {size} bytes")
    body = bytes(data[pos : pos + body_size])
    pos += body_size
    topic_size = data[pos]
    pos += TOPIC_LENGTH_SIZE
    if pos + topic_size + PROPERTIES_LENGTH_SIZE > end:
        raise ProtocolError(f"Invalid topic length {topic_size} in a record of {size} bytes")
    topic = data[pos : pos + topic_size]
    pos += topic_size
    (properties_size,) = I16.unpack_from(data, pos)
    pos += PROPERTIES_LENGTH_SIZE
    if properties_size < 0 or pos + properties_size != end:
        raise ProtocolError(
            f"Invalid properties length {properties_size} in a record of {size} bytes: {end - pos} bytes remain"
        )
    try:
        topic_text, properties = str(topic, "utf-8"), str(data[pos:end], "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"Topic or properties of the record at {position} are not UTF-8: {error}") from None
    return Record(
        size=size,
        body_crc=crc,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        offset=offset,
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_host=born_host,
        store_ms=store_ms,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        body=body,
        topic=topic_text,
        properties=properties,
    )


def property_map(data: bytes) -> dict[str, str]:
    """Decode only the properties of a whole record.

    Raises:
        ProtocolError: the lengths of body, topic and properties do not add up to the record.
    """
    try:
        (sys_flag,) = I32.unpack_from(data, SYS_FLAG_AT)
        position = body_size_at(sys_flag)
        (body_size,) = I32.unpack_from(data, position)
        position += BODY_LENGTH_SIZE + body_size
        position += TOPIC_LENGTH_SIZE + data[position]
        (size,) = I16.unpack_from(data, position)
        position += PROPERTIES_LENGTH_SIZE
        if body_size < 0 or position + size != len(data):
            raise ProtocolError(f"Invalid properties length {size} in a record of {len(data)} bytes")
        return properties_text.decode(data[position:].decode())
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"Cannot read the properties of a record of {len(data)} bytes: {error}") from None


def body_size_at(sys_flag: int) -> int:
    """Return the offset of the length of the body in a record with this SYSFLAG."""
    position = BODY_SIZE_AT + V6_EXTRA if sys_flag & BORN_HOST_V6 else BODY_SIZE_AT
    return position + V6_EXTRA if sys_flag & STORE_HOST_V6 else position


def store_ms_at(sys_flag: int) -> int:
    """Return the offset of the store timestamp in a record with this SYSFLAG."""
    return STORE_MS_AT + V6_EXTRA if sys_flag & BORN_HOST_V6 else STORE_MS_AT


def queue_offset(data: bytes) -> int:
    """Decode only the queue offset of a record."""
    value: int = I64.unpack_from(data, QUEUE_OFFSET_AT)[0]
    return value


def with_more_reconsume_times(data: bytes, times: int) -> bytes:
    """Return a copy of a record with `times` redeliveries in addition."""
    (sys_flag,) = I32.unpack_from(data, SYS_FLAG_AT)
    position = body_size_at(sys_flag) - BODY_SIZE_AT + RECONSUME_TIMES_AT
    (before,) = I32.unpack_from(data, position)
    return data[:position] + I32.pack(before + times) + data[position + I32.size :]


def store_ms(data: bytes, position: int = 0) -> int:
    """Decode only the store timestamp of the record at `position`."""
    try:
        (sys_flag,) = I32.unpack_from(data, position + SYS_FLAG_AT)
        value: int = I64.unpack_from(data, position + store_ms_at(sys_flag))[0]
    except StructError as error:
        raise ProtocolError(f"Cannot read the store timestamp of a record of {len(data)} bytes: {error}") from None
    return value


def decode_all(data: bytes | memoryview) -> Iterator[Record]:
    """Yield the records of a pull response in order.

    Raises:
        ProtocolError: the next bytes are not a record; nothing is skipped.
    """
    position = 0
    while position < len(data):
        record = decode(data, position)
        yield record
        position += record.size


def filler(remaining: int) -> bytes:
    """Return the 8 bytes that close a commit-log file with `remaining` bytes left (at least 8)."""
    return SIZE_AND_MAGIC.pack(remaining, FILLER_MAGIC)
