"""One stored message: the same bytes in the commit log, in a pull answer, and in the body of a check or a query.

    TOTALSIZE i32 | MAGIC i32 | BODYCRC i32 | QUEUEID i32 | FLAG i32 | QUEUEOFFSET i64 | PHYSICALOFFSET i64 | SYSFLAG i32
    | BORNTIMESTAMP i64 | BORNHOST 8|20 | STORETIMESTAMP i64 | STOREHOST 8|20 | RECONSUMETIMES i32 | PREPAREDOFFSET i64
    | BODY i32+n | TOPIC u8+n | PROPERTIES i16+n

All integers big-endian; hosts have 20 bytes when SYSFLAG says IPv6 (0x10 born, 0x20 store). A commit-log file ends with a
filler: `room left i32 | FILLER_MAGIC i32`, the rest as it was. [MessageDecoder, CommitLog.checkMessageAndReturnSize]
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from struct import error as StructError

import msgspec

from ariane.errors import ProtocolError
from ariane.model.message import BORN_HOST_V6, STORE_HOST_V6
from ariane.protocol import properties as properties_text

MAGIC = -626843481  # 0xDAA320A7
FILLER_MAGIC = -875286124  # 0xCBD43194
FILLER_SIZE = 8
FIXED_SIZE = 91  # all but body, topic and properties, with two IPv4 hosts
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
TOPIC_MAX = 127

_START = Struct(">iiiiiqqiq")  # up to BORNTIMESTAMP
_V4 = Struct(">iiiiiqqiq8sq8siqi")  # up to the body's length, both hosts IPv4
_V6_HOSTS = BORN_HOST_V6 | STORE_HOST_V6
_TIME = Struct(">q")
_END = Struct(">iqi")  # RECONSUMETIMES, PREPAREDOFFSET, body length
_I32 = Struct(">i")
_I16 = Struct(">h")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded record. `born_host` and `store_host` are packed (`model.host`), `properties` is the stored text."""

    size: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    offset: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    properties: str

    def property_map(self) -> dict[str, str]:
        return properties_text.decode(self.properties)

    def crc_is_right(self) -> bool:
        return self.body_crc == body_crc(self.body)


def body_crc(body: bytes) -> int:
    """CRC-32 with the top bit cleared; 0 for an empty body."""
    return zlib.crc32(body) & 0x7FFFFFFF


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
    """Bytes of a record. The host bits of `sys_flag` are set from the lengths of the hosts. `topic` ≤ 127 bytes and
    `properties` ≤ 32,767 bytes are the caller's to check (both have an answer of their own in the protocol)."""
    if len(born_host) == 8 and len(store_host) == 8:
        return encode_v4(
            topic, body, properties, queue_id, queue_offset, offset, born_ms, born_host, store_ms, store_host, flag,
            sys_flag, reconsume_times, prepared_offset,
        )  # fmt: skip
    size = FIXED_SIZE - 16 + len(born_host) + len(store_host) + len(body) + len(topic) + len(properties)
    sys_flag &= ~_V6_HOSTS
    sys_flag |= (BORN_HOST_V6 if len(born_host) == 20 else 0) | (STORE_HOST_V6 if len(store_host) == 20 else 0)
    start = b"".join(
        (
            _START.pack(size, MAGIC, body_crc(body), queue_id, flag, queue_offset, offset, sys_flag, born_ms),
            born_host,
            _TIME.pack(store_ms),
            store_host,
            _END.pack(reconsume_times, prepared_offset, len(body)),
        )
    )
    return b"".join((start, body, bytes((len(topic),)), topic, _I16.pack(len(properties)), properties))


def encode_v4(  # positional, and one pack: this is done once for every message that is stored
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
    """As `encode`, with two IPv4 hosts."""
    topic_size, body_size, properties_size = len(topic), len(body), len(properties)
    start = _V4.pack(
        FIXED_SIZE + body_size + topic_size + properties_size, MAGIC, zlib.crc32(body) & 0x7FFFFFFF, queue_id, flag,
        queue_offset, offset, sys_flag & ~_V6_HOSTS, born_ms, born_host, store_ms, store_host, reconsume_times,
        prepared_offset, body_size,
    )  # fmt: skip
    return b"".join((start, body, bytes((topic_size,)), topic, _I16.pack(properties_size), properties))


def decode(data: bytes | memoryview, at: int = 0) -> Record:
    """The record that begins at `at`. Every length is checked against TOTALSIZE and the data before it is believed.

    Raises ProtocolError naming the first field that is wrong. The CRC is not checked here (`Record.crc_is_right`).
    """
    room = len(data) - at
    if room < FIXED_SIZE:
        raise ProtocolError(f"a record has at least {FIXED_SIZE} bytes, {room} are there")
    size, magic, crc, queue_id, flag, queue_offset, offset, sys_flag, born_ms = _START.unpack_from(data, at)
    if magic != MAGIC:
        raise ProtocolError(f"no record at {at}: magic {magic & 0xFFFFFFFF:#x} instead of {MAGIC & 0xFFFFFFFF:#x}")
    if not FIXED_SIZE <= size <= room:
        raise ProtocolError(f"a record of {size} bytes cannot lie in the {room} bytes at {at}")
    end = at + size
    pos = at + _START.size
    born_size = 20 if sys_flag & BORN_HOST_V6 else 8
    store_size = 20 if sys_flag & STORE_HOST_V6 else 8
    if size < FIXED_SIZE - 16 + born_size + store_size:
        raise ProtocolError(f"a record of {size} bytes is too short for its IPv6 hosts")
    born_host = bytes(data[pos : pos + born_size])
    pos += born_size
    (store_ms,) = _TIME.unpack_from(data, pos)
    store_host = bytes(data[pos + 8 : pos + 8 + store_size])
    pos += 8 + store_size
    reconsume_times, prepared_offset, body_size = _END.unpack_from(data, pos)
    pos += _END.size
    if body_size < 0 or pos + body_size + 3 > end:
        raise ProtocolError(f"body length {body_size} does not fit into a record of {size} bytes")
    body = bytes(data[pos : pos + body_size])
    pos += body_size
    topic_size = data[pos]
    pos += 1
    if pos + topic_size + 2 > end:
        raise ProtocolError(f"topic length {topic_size} does not fit into a record of {size} bytes")
    topic = bytes(data[pos : pos + topic_size])
    pos += topic_size
    (properties_size,) = _I16.unpack_from(data, pos)
    pos += 2
    if properties_size < 0 or pos + properties_size != end:
        raise ProtocolError(f"properties length {properties_size} does not end a record of {size} bytes")
    try:
        topic_text, properties = topic.decode(), bytes(data[pos:end]).decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"topic or properties of the record at {at} are not UTF-8: {error}") from None
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
    """Properties of a whole record, the rest not looked at. ProtocolError when they do not lie where its lengths say."""
    try:
        (sys_flag,) = _I32.unpack_from(data, SYS_FLAG_AT)
        hosts = (20 if sys_flag & BORN_HOST_V6 else 8) + (20 if sys_flag & STORE_HOST_V6 else 8)
        at = _START.size + hosts + _TIME.size + _END.size
        (body_size,) = _I32.unpack_from(data, at - 4)
        at += body_size
        at += 1 + data[at]
        (size,) = _I16.unpack_from(data, at)
        if body_size < 0 or at + 2 + size != len(data):
            raise ProtocolError(f"properties of {size} bytes do not end a record of {len(data)} bytes")
        return properties_text.decode(data[at + 2 :].decode())
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"no properties in a record of {len(data)} bytes: {error}") from None


def store_ms(data: bytes) -> int:
    """Store time of a whole record, without decoding the rest."""
    try:
        (sys_flag,) = _I32.unpack_from(data, SYS_FLAG_AT)
        value: int = _TIME.unpack_from(data, SYS_FLAG_AT + 12 + (20 if sys_flag & BORN_HOST_V6 else 8))[0]
    except StructError as error:
        raise ProtocolError(f"no store time in a record of {len(data)} bytes: {error}") from None
    return value


def decode_all(data: bytes | memoryview) -> Iterator[Record]:
    """The records of a pull answer, one after another; ProtocolError at the first that is none (nothing is skipped)."""
    at = 0
    while at < len(data):
        record = decode(data, at)
        yield record
        at += record.size


def filler(room: int) -> bytes:
    """The 8 bytes that close a commit-log file with `room` bytes left (≥ 8)."""
    return _I32.pack(room) + _I32.pack(FILLER_MAGIC)
