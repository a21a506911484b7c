"""Records to Arrow: the columns of the source, decoded for many records at once.

Records with IPv4 hosts (nearly all) are read with numpy: one strided view over all positions of the buffer, one gather for
all fixed fields, and the variable parts as slices of the buffer itself; compressed bodies are then expanded one by one. A
chunk that holds an IPv6 host goes through `protocol.record`, one record after another; both give the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import unpack_from
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ariane.errors import ProtocolError
from ariane.model import host, ids
from ariane.model.message import BORN_HOST_V6, COMPRESSED, KEYS, STORE_HOST_V6, TAGS, UNIQ_KEY
from ariane.protocol import compression, properties, record
from ariane.protocol.record import Record

_TIME = pa.timestamp("us", tz="UTC")

# name → Arrow type, Spark DDL
COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "topic": (pa.string(), "STRING"),
    "broker": (pa.string(), "STRING"),
    "queue_id": (pa.int32(), "INT"),
    "queue_offset": (pa.int64(), "BIGINT"),
    "commit_log_offset": (pa.int64(), "BIGINT"),
    "message_id": (pa.string(), "STRING"),
    "offset_message_id": (pa.string(), "STRING"),
    "keys": (pa.string(), "STRING"),
    "tags": (pa.string(), "STRING"),
    "properties": (pa.map_(pa.string(), pa.string()), "MAP<STRING, STRING>"),
    "body": (pa.binary(), "BINARY"),
    "born_timestamp": (_TIME, "TIMESTAMP"),
    "store_timestamp": (_TIME, "TIMESTAMP"),
    "born_host": (pa.string(), "STRING"),
    "store_host": (pa.string(), "STRING"),
    "reconsume_times": (pa.int32(), "INT"),
    "sys_flag": (pa.int32(), "INT"),
    "flag": (pa.int32(), "INT"),
}

DDL = ", ".join(f"{name} {ddl}" for name, (_, ddl) in COLUMNS.items())

# The fixed part of a record with two IPv4 hosts, up to and including the body's length.
_FIXED = np.dtype(
    [
        ("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("queue_id", ">i4"), ("flag", ">i4"),
        ("queue_offset", ">i8"), ("offset", ">i8"), ("sys_flag", ">i4"), ("born_ms", ">i8"), ("born_host", "V8"),
        ("store_ms", ">i8"), ("store_host", "V8"), ("reconsume_times", ">i4"), ("prepared", ">i8"), ("body_size", ">i4"),
    ]
)  # fmt: skip
_ODD = BORN_HOST_V6 | STORE_HOST_V6

# A producer may claim any i64 as its time; what µs cannot say becomes NULL instead of another time.
_MS_MAX = (2**63 - 1) // 1000


class Scan(NamedTuple):
    """Records back to back: where they begin, and their queue offsets."""

    data: bytes
    starts: Any
    queue_offsets: Any


def scan(data: bytes) -> Scan:
    """The records of `data`, found but not yet decoded. ProtocolError when it holds anything else."""
    starts = positions(data)
    if not len(starts):
        return Scan(data, starts, starts)
    offsets = np.ndarray((len(data) - 7,), ">i8", data, 0, (1,))[starts + record.QUEUE_OFFSET_AT]
    return Scan(data, starts, offsets.astype(np.int64))


def batch(data: bytes, broker: str, columns: Sequence[str], end: int | None = None) -> pa.RecordBatch:
    """Records back to back as a batch with `columns`; those at queue offset `end` and beyond are left out.

    ProtocolError when the bytes are no records, or a compressed body is broken: nothing is skipped.
    """
    return columns_of(scan(data), broker, columns, end)


def columns_of(found: Scan, broker: str, columns: Sequence[str], end: int | None = None) -> pa.RecordBatch:
    """As `batch`, of records that were found."""
    data, starts, _ = found
    if end is not None:
        starts = starts[found.queue_offsets < end]
    if len(starts):
        header = _gather(data, starts)
        if not (header["sys_flag"] & _ODD).any():
            return _fast(data, starts, header, broker, columns)
    return _slow([record.decode(data, int(at)) for at in starts], broker, columns)


def positions(data: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where the records of `data` begin."""
    starts = []
    at, end = 0, len(data)
    while at < end:
        if end - at < record.FIXED_SIZE:
            raise ProtocolError(f"{end - at} bytes at {at} are no record")
        size, magic = unpack_from(">ii", data, at)
        if magic != record.MAGIC or not record.FIXED_SIZE <= size <= end - at:
            raise ProtocolError(f"no record at {at}: magic {magic & 0xFFFFFFFF:#x}, size {size}")
        starts.append(at)
        at += size
    return np.array(starts, dtype=np.int64)


def _gather(data: bytes, starts: Any) -> Any:
    """The fixed parts of all records: a view that begins anew at every byte, and one gather from it."""
    count = len(data) - _FIXED.itemsize + 1
    return np.ndarray((count,), _FIXED, data, 0, (1,))[starts]


def _fast(data: bytes, starts: Any, header: Any, broker: str, columns: Sequence[str]) -> pa.RecordBatch:
    """All records have IPv4 hosts."""
    octets = np.frombuffer(data, np.uint8)
    body_start = starts + _FIXED.itemsize
    body_end = body_start + header["body_size"].astype(np.int64)
    sizes = header["size"].astype(np.int64)
    if (header["body_size"] < 0).any() or (body_end + 3 > starts + sizes).any():
        raise ProtocolError("a body does not fit into its record")
    topic_start = body_end + 1
    topic_end = topic_start + octets[body_end]
    if (topic_end + 2 > starts + sizes).any():
        raise ProtocolError("a topic does not fit into its record")
    text_start = topic_end + 2
    # The length is signed: from 128 on, the first octet says a negative one, which ends no record.
    text_end = text_start + (octets[topic_end].astype(np.int8).astype(np.int64) << 8 | octets[topic_end + 1])
    if (text_end != starts + sizes).any():
        raise ProtocolError("properties do not end their record")
    # Every boundary in ascending order: all parts are slices of one buffer, and what lies between them is skipped by `take`.
    bounds = np.stack([body_start, body_end, topic_start, topic_end, text_start, text_end], 1).astype(np.int32).ravel()
    parts = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    every = np.arange(len(starts)) * 6

    made: dict[str, Callable[[], Any]] = {
        "topic": lambda: _texts(parts.take(pa.array(every + 2)), header),
        "body": lambda: _bodies(parts.take(pa.array(every)), header),
        "queue_id": lambda: _integers(header["queue_id"], np.int32),
        "queue_offset": lambda: _integers(header["queue_offset"], np.int64),
        "commit_log_offset": lambda: _integers(header["offset"], np.int64),
        "reconsume_times": lambda: _integers(header["reconsume_times"], np.int32),
        "sys_flag": lambda: _integers(header["sys_flag"], np.int32),
        "flag": lambda: _integers(header["flag"], np.int32),
        "born_timestamp": lambda: _times(header["born_ms"].astype(np.int64)),
        "store_timestamp": lambda: _times(header["store_ms"].astype(np.int64)),
        "born_host": lambda: _hosts(header["born_host"]),
        "store_host": lambda: _hosts(header["store_host"]),
        "broker": lambda: pa.array([broker] * len(starts), pa.string()),
    }
    maps: list[dict[str, str]] = []
    if _FROM_PROPERTIES & set(columns):
        maps = [properties.decode(text) for text in _texts(parts.take(pa.array(every + 4)), header).to_pylist()]
    offset_ids: list[str] = []
    if _WITH_OFFSET_ID & set(columns):
        hosts, at = header["store_host"].tobytes(), header["offset"].tolist()
        offset_ids = [ids.offset_message_id(hosts[8 * n : 8 * n + 8], at[n]) for n in range(len(at))]
    made |= _from_properties(maps, offset_ids)
    return pa.record_batch([made[name]() for name in columns], schema=_schema(columns))


def _slow(records: list[Record], broker: str, columns: Sequence[str]) -> pa.RecordBatch:
    maps = [one.property_map() for one in records] if _FROM_PROPERTIES & set(columns) else []
    offset_ids = [ids.offset_message_id(one.store_host, one.offset) for one in records]
    made: dict[str, Callable[[], Any]] = {
        "topic": lambda: [one.topic for one in records],
        "broker": lambda: [broker] * len(records),
        "queue_id": lambda: [one.queue_id for one in records],
        "queue_offset": lambda: [one.queue_offset for one in records],
        "commit_log_offset": lambda: [one.offset for one in records],
        "body": lambda: [_body(one) for one in records],
        "born_timestamp": lambda: _times(np.array([one.born_ms for one in records], np.int64)),
        "store_timestamp": lambda: _times(np.array([one.store_ms for one in records], np.int64)),
        "born_host": lambda: [host.text(one.born_host) for one in records],
        "store_host": lambda: [host.text(one.store_host) for one in records],
        "reconsume_times": lambda: [one.reconsume_times for one in records],
        "sys_flag": lambda: [one.sys_flag for one in records],
        "flag": lambda: [one.flag for one in records],
        **_from_properties(maps, offset_ids),
    }
    arrays = []
    for name in columns:
        values = made[name]()
        arrays.append(values if isinstance(values, pa.Array) else pa.array(values, COLUMNS[name][0]))
    return pa.record_batch(arrays, schema=_schema(columns))


_FROM_PROPERTIES = {"message_id", "keys", "tags", "properties"}
_WITH_OFFSET_ID = {"message_id", "offset_message_id"}


def _from_properties(maps: list[dict[str, str]], offset_ids: list[str]) -> dict[str, Callable[[], Any]]:
    """Columns that come from the properties' text."""
    string = pa.string()
    return {
        "offset_message_id": lambda: pa.array(offset_ids, string),
        "message_id": lambda: pa.array(
            [own.get(UNIQ_KEY, offset_id) for own, offset_id in zip(maps, offset_ids, strict=True)], string
        ),
        "keys": lambda: pa.array([own.get(KEYS) for own in maps], string),
        "tags": lambda: pa.array([own.get(TAGS) for own in maps], string),
        "properties": lambda: pa.array([list(own.items()) for own in maps], COLUMNS["properties"][0]),
    }


def _body(one: Record) -> bytes:
    return _expanded(one.body, one.sys_flag, one.queue_id, one.queue_offset)


def _expanded(body: bytes, sys_flag: int, queue_id: int, queue_offset: int) -> bytes:
    try:
        return compression.expand(body, sys_flag)
    except ProtocolError as error:
        raise ProtocolError(f"queue {queue_id} offset {queue_offset}: {error}") from None


def _bodies(stored: pa.Array, header: Any) -> pa.Array:
    """Bodies as producers gave them."""
    if not (header["sys_flag"] & COMPRESSED).any():
        return stored
    rows = zip(
        stored.to_pylist(), header["sys_flag"].tolist(), header["queue_id"].tolist(), header["queue_offset"].tolist(),
        strict=True,
    )  # fmt: skip
    return pa.array([_expanded(*row) for row in rows], pa.binary())


def _texts(packed: pa.Array, header: Any) -> pa.Array:
    """UTF-8 as strings; ProtocolError names the record whose text is none."""
    try:
        return packed.cast(pa.string())
    except pa.ArrowInvalid:
        for text, queue_id, offset in zip(packed.to_pylist(), header["queue_id"], header["queue_offset"], strict=True):
            try:
                text.decode()
            except UnicodeDecodeError as error:
                fault = f"queue {queue_id} offset {offset}: topic or properties are not UTF-8: {error}"
                raise ProtocolError(fault) from None
        raise


def _integers(values: Any, kind: type) -> pa.Array:
    return pa.array(values.astype(kind))


def _times(ms: Any) -> pa.Array:
    unsayable = np.abs(ms.astype(np.float64)) >= _MS_MAX
    return pa.array(np.where(unsayable, 0, ms) * 1000, pa.int64(), mask=unsayable).cast(_TIME)


def _hosts(packed: Any) -> pa.Array:
    """Few hosts send many messages: each is written once."""
    distinct, which = np.unique(packed.view(np.uint64), return_inverse=True)
    texts = pa.array([host.text(one.tobytes()) for one in distinct], pa.string())
    return texts.take(pa.array(which.ravel()))


def _schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, COLUMNS[name][0]) for name in columns])
