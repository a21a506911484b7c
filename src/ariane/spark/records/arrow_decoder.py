"""Decodes stored records to Arrow columns, vectorised over many records.

Records with IPv4 hosts (nearly all) are read with numpy (`layout`): one gather for each fixed field, and slices of the buffer
for the variable parts; compressed bodies are then expanded one by one. A buffer that contains an IPv6 host is decoded record by
record (`row_decoder`); both give the same table. Only requested columns are decoded: `DECODERS` maps each column to its
decoder, and the property texts are parsed once for all columns that need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ariane.errors import ProtocolError
from ariane.model import host
from ariane.model.message import (
    CHECK_TIMES,
    DELAY,
    KEYS,
    ORIGIN_MESSAGE_ID,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    RETRY_TOPIC,
    TAGS,
    TRAN_MSG,
    UNIQ_KEY,
)
from ariane.model.topic import HALF_TOPIC
from ariane.protocol.records import record
from ariane.protocol.records.record import Record
from ariane.spark.records import bodies, layout, native_columns, row_decoder
from ariane.spark.records.layout import RecordHeader
from ariane.spark.records.property_texts import PropertyTexts
from ariane.spark.records.record_columns import COLUMNS, DERIVED_COLUMNS, ERROR_COLUMN, LENGTH_COLUMN, TIME

_HEX = np.frombuffer("".join(f"{octet:02X}" for octet in range(256)).encode(), np.uint16)
_NOT_STORED = ("broker", *DERIVED_COLUMNS)  # columns that records do not contain
HEAP_RETAINED_BYTES = 60 * 1024 * 1024  # glibc's threshold is 64 MiB at most


class RecordScan(NamedTuple):
    """Concatenated records: their start positions and queue offsets."""

    data: bytes
    starts: Any
    queue_offsets: Any


def scan(data: bytes) -> RecordScan:
    """Find the records in `data` without decoding them; raise ProtocolError if it contains anything else."""
    retain_heap()
    starts = find_records(data)
    if not len(starts):
        return RecordScan(data, starts, starts)
    return RecordScan(data, starts, RecordHeader(data, starts)["queue_offset"])


def decode(data: bytes, broker: str | None, columns: Sequence[str], end: int | None = None) -> pa.RecordBatch:
    """Decode concatenated records to a batch with `columns`.

    Args:
        data: Stored records, without a gap between them.
        broker: Value of the column `broker`.
        columns: Names of the columns to decode.
        end: Omit records at this queue offset and beyond.

    Raises:
        ProtocolError: the bytes are not records, or a compressed body is corrupt; nothing is skipped.
    """
    return decode_scan(scan(data), broker, columns, end)


def decode_in_batches(
    scanned: RecordScan, broker: str | None, columns: Sequence[str], end: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Decode scanned records to several batches if their compressed bodies expand to more than one batch may hold."""
    with suppress(bodies.BatchTooLarge):
        yield decode_scan(scanned, broker, columns, end)
        return
    half = len(scanned.starts) // 2
    for some in (slice(0, half), slice(half, None)):
        part = RecordScan(scanned.data, scanned.starts[some], scanned.queue_offsets[some])
        yield from decode_in_batches(part, broker, columns, end)


def decode_scan(
    scanned: RecordScan, broker: str | None, columns: Sequence[str], end: int | None = None
) -> pa.RecordBatch:
    """Decode scanned records to one batch; raise BatchTooLarge if their expanded bodies exceed the limit of a batch."""
    data, starts, _ = scanned
    if end is not None:
        starts = starts[scanned.queue_offsets < end]
    if len(starts):
        if (decoded := decode_native(data, starts, broker, columns)) is not None:
            return decoded[0]
        header = RecordHeader(data, starts)
        bounds, fits = layout.find_parts(data, starts, header)
        if not fits.all():
            position = int(starts[np.argmin(fits)])
            record.decode(data, position)  # raises an error that names the faulty field
            raise ProtocolError(f"inconsistent lengths in the record at {position}")
        if not header.has_ipv6:
            records = RecordColumns(data, header, bounds, broker, tolerant=ERROR_COLUMN in columns)
            return records.batch(columns)
    return _decode_rows([record.decode(data, int(position)) for position in starts], broker, columns)


def decode_native(
    data: bytes, starts: Any, broker: str | None, columns: Sequence[str], *, check_crc: bool = False
) -> tuple[pa.RecordBatch, list[tuple[int, bool]]] | None:
    """Decode located records with the native core.

    Returns:
        The batch; the damaged rows and whether their properties end in zeros. None if a record is unusual, or if the Python
        implementation is used: then the caller decodes them.

    Raises:
        ProtocolError: a compressed body is corrupt, and `body_error` is not among the columns.
        BatchTooLarge: the expanded bodies exceed the limit of a batch.
    """
    header, has_errors = RecordHeader(data, starts), ERROR_COLUMN in columns
    if LENGTH_COLUMN in columns and header.has_ipv6:
        return None
    # Lengths of stored bodies are in the headers.
    is_expanded = not set(columns).isdisjoint(DERIVED_COLUMNS) and bodies.has_compressed(header)
    stored = dict.fromkeys([*columns, "body"] if is_expanded else columns)
    types = {name: COLUMNS[name][0] for name in stored if name not in _NOT_STORED}
    decoded = native_columns.decode(data, starts, types, checks_bodies=check_crc)
    if decoded is None:
        return None
    arrays = decoded.arrays
    if "broker" in columns:
        arrays["broker"] = pa.repeat(pa.scalar(broker, pa.string()), len(starts))
    if "body" in arrays and decoded.has_compressed:
        arrays["body"], arrays[ERROR_COLUMN] = bodies.expand_bodies(arrays["body"], header, tolerant=has_errors)
    elif has_errors:
        arrays[ERROR_COLUMN] = pa.nulls(len(starts), pa.string())
    if LENGTH_COLUMN in columns:
        arrays[LENGTH_COLUMN] = pc.binary_length(arrays["body"]) if is_expanded else pa.array(header["body_size"])
    return pa.record_batch([arrays[name] for name in columns], schema=_schema(columns)), decoded.faults


def find_records(data: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the positions of the records in `data`."""
    if (starts := native_columns.find_all(data)) is not None:
        return starts
    candidates = layout.find_candidates(data)
    if len(candidates) and not candidates[0]:
        ends = candidates + layout.gather(data, ">i4", record.SIZE_AT, candidates)
        if (
            (candidates[1:] == ends[:-1]).all()
            and ends[-1] == len(data)
            and (ends - candidates >= record.FIXED_SIZE).all()
        ):
            return candidates
    return _find_records_one_by_one(data)


def _find_records_one_by_one(data: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the positions of the records if the magic also occurs in a body; raise ProtocolError at the first non-record."""
    starts = []
    position, end = 0, len(data)
    while position < end:
        if end - position < record.FIXED_SIZE:
            raise ProtocolError(f"{end - position} bytes at {position} are not a record")
        size, magic = record.SIZE_AND_MAGIC.unpack_from(data, position)
        if magic != record.MAGIC or not record.FIXED_SIZE <= size <= end - position:
            raise ProtocolError(f"no record at {position}: magic {magic & 0xFFFFFFFF:#x}, size {size}")
        starts.append(position)
        position += size
    return np.array(starts, dtype=np.int64)


@cache
def retain_heap() -> None:
    """Make glibc retain freed memory of this process, up to twice the size freed here.

    By default it returns buffers of a chunk's size to the kernel and requests them again, with a page fault for every 4 KiB: a
    quarter of a task's time. Its threshold follows the largest block freed so far, so freeing one large block raises it.
    """
    np.empty(HEAP_RETAINED_BYTES // 2, np.uint8)


class RecordColumns:
    """Decodes located records (`layout.find_parts`) column by column, on demand.

    If one of them has an IPv6 host, only the variable parts are valid.
    """

    def __init__(self, data: bytes, header: RecordHeader, bounds: Any, broker: str | None, *, tolerant: bool) -> None:
        self.header = header
        self.broker = broker
        self.tolerant = tolerant
        # All boundaries in ascending order: every part is a slice of one buffer, and `take` skips the bytes between the parts.
        packed = pa.py_buffer(np.ascontiguousarray(bounds).ravel())
        self._parts = pa.Array.from_buffers(pa.binary(), max(bounds.size - 1, 0), [None, packed, pa.py_buffer(data)])
        self._rows = np.arange(0, bounds.size, 6)

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, columns: Sequence[str]) -> pa.RecordBatch:
        return pa.record_batch([DECODERS[name](self) for name in columns], schema=_schema(columns))

    @cached_property
    def topics(self) -> pa.Array:
        return _to_strings(self._parts.take(pa.array(self._rows + 2)), self.header)

    @cached_property
    def properties(self) -> PropertyTexts:
        return PropertyTexts(_to_strings(self._parts.take(pa.array(self._rows + 4)), self.header))

    @cached_property
    def stored_bodies(self) -> pa.Array:
        """The bodies as stored, which is what their CRCs cover."""
        return self._parts.take(pa.array(self._rows))

    @cached_property
    def bodies(self) -> tuple[pa.Array, pa.Array]:
        return bodies.expand_bodies(self.stored_bodies, self.header, tolerant=self.tolerant)

    @cached_property
    def unique_keys(self) -> pa.Array:
        return self.properties.values(UNIQ_KEY)


def _decode_rows(records: list[Record], broker: str | None, columns: Sequence[str]) -> pa.RecordBatch:
    return pa.record_batch(
        row_decoder.decode_columns(records, broker, {name: COLUMNS[name][0] for name in columns}), list(columns)
    )


def _header_field(name: str) -> Callable[[RecordColumns], pa.Array]:
    return lambda records: pa.array(records.header[name])


def _property(name: str) -> Callable[[RecordColumns], pa.Array]:
    return lambda records: records.properties.values(name)


def _integer_property(name: str) -> Callable[[RecordColumns], pa.Array]:
    """Return a decoder for an integer property; null if the property is missing or not an integer."""

    def decode(records: RecordColumns) -> pa.Array:
        texts = records.properties.values(name)
        if texts.null_count == len(texts):
            return pa.nulls(len(texts), pa.int32())
        return pa.array([row_decoder.parse_integer(text) for text in texts.to_pylist()], pa.int32())

    return decode


def _broker(records: RecordColumns) -> pa.Array:
    return pa.repeat(pa.scalar(records.broker, pa.string()), len(records))


def _offset_ids(records: RecordColumns) -> pa.Array:
    """Format offset message ids: the hexadecimal digits of address and offset, whose bytes are stored in this order."""
    header = records.header
    raw = np.empty((len(header), 16), np.uint8)
    raw[:, :8] = header["store_host"].view(np.uint8).reshape(-1, 8)
    raw[:, 8:] = header["offset"].astype(">i8").view(np.uint8).reshape(-1, 8)
    edges = np.arange(0, 32 * len(header) + 1, 32, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(header), [None, pa.py_buffer(edges), pa.py_buffer(_HEX[raw].ravel())])


def _message_ids(records: RecordColumns) -> pa.Array:
    keys = records.unique_keys
    return pc.coalesce(keys, _offset_ids(records)) if keys.null_count else keys


def _deliver_at(records: RecordColumns) -> pa.Array:
    texts_by_name = {name: records.properties.values(name) for name in row_decoder.DELIVERY_PROPERTIES}
    rows = {name: texts.to_pylist() for name, texts in texts_by_name.items() if texts.null_count < len(texts)}
    if not rows:
        return pa.nulls(len(records), TIME)
    stored = records.header["store_ms"].tolist()
    return row_decoder.timestamps(
        [
            row_decoder.delivery_time_ms({name: rows[name][index] for name in rows}, ms)
            for index, ms in enumerate(stored)
        ]
    )


def _transaction_states(records: RecordColumns) -> pa.Array:
    states = (records.header["sys_flag"] >> 2) & 3
    states[(states == 0) & pc.equal(records.topics, HALF_TOPIC).to_numpy(zero_copy_only=False)] = row_decoder.PREPARED
    return _state_names().take(pa.array(states.astype(np.int32)))


@cache
def _state_names() -> pa.Array:
    # pyarrow imports pandas for its first array, which costs the process of each stream 0.8 CPU-s; that one makes no other array
    return pa.array(row_decoder.TRANSACTION_STATES, pa.string())


def _transaction_ids(records: RecordColumns) -> pa.Array:
    is_one = pc.equal(records.properties.values(TRAN_MSG), "true")
    return pc.if_else(is_one, records.unique_keys, pa.scalar(None, pa.string()))


# column → decoder
DECODERS: dict[str, Callable[[RecordColumns], pa.Array]] = {
    "topic": lambda records: records.topics,
    "broker": _broker,
    "queue_id": _header_field("queue_id"),
    "queue_offset": _header_field("queue_offset"),
    "commit_log_offset": _header_field("offset"),
    "message_id": _message_ids,
    "offset_message_id": _offset_ids,
    "keys": _property(KEYS),
    "tags": _property(TAGS),
    "properties": lambda records: records.properties.maps(),
    "body": lambda records: records.bodies[0],
    "born_timestamp": lambda records: _timestamps(records.header["born_ms"]),
    "store_timestamp": lambda records: _timestamps(records.header["store_ms"]),
    "born_host": lambda records: _hosts(records.header["born_host"]),
    "store_host": lambda records: _hosts(records.header["store_host"]),
    "reconsume_times": _header_field("reconsume_times"),
    "sys_flag": _header_field("sys_flag"),
    "flag": _header_field("flag"),
    "unique_key": lambda records: records.unique_keys,
    "store_size": _header_field("size"),
    "delay_level": _integer_property(DELAY),
    "deliver_at": _deliver_at,
    "real_topic": _property(REAL_TOPIC),
    "real_queue_id": _integer_property(REAL_QID),
    "transaction_state": _transaction_states,
    "transaction_id": _transaction_ids,
    "prepared_transaction_offset": _header_field("prepared"),
    "check_times": _integer_property(CHECK_TIMES),
    "producer_group": _property(PGROUP),
    "retry_topic": _property(RETRY_TOPIC),
    "origin_message_id": _property(ORIGIN_MESSAGE_ID),
    ERROR_COLUMN: lambda records: records.bodies[1],
    LENGTH_COLUMN: lambda records: (
        pc.binary_length(records.bodies[0])
        if bodies.has_compressed(records.header)
        else pa.array(records.header["body_size"])
    ),
}


def _to_strings(packed: pa.Array, header: RecordHeader) -> pa.Array:
    """Cast UTF-8 to strings; raise ProtocolError naming the first record with invalid text."""
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


def _timestamps(ms: Any) -> pa.Array:
    unsayable = np.abs(ms.astype(np.float64)) >= row_decoder.MS_MAX
    if not unsayable.any():
        return pa.array(ms * 1000).view(TIME)
    return pa.array(np.where(unsayable, 0, ms) * 1000, pa.int64(), mask=unsayable).cast(TIME)


def _hosts(packed: Any) -> pa.Array:
    """Format hosts. Few hosts send many messages, so each distinct host is formatted once."""
    distinct, which = np.unique(packed.view(np.uint64), return_inverse=True)
    texts = pa.array([host.text(address.tobytes()) for address in distinct], pa.string())
    return texts.take(pa.array(which.ravel()))


def _schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, COLUMNS[name][0]) for name in columns])
