"""Encodes rows as messages: the properties and the batch entry of every row, column by column.

    UNIQ_KEY 1 id 2 WAIT 1 true 2 ARIANE_DEDUP 1 run/batch/partition/sequence [2 TAGS …] [2 KEYS …] [2 DELAY …]
    [2 __STARTDELIVERTIME … 2 TIMER_DELIVER_MS …] [2 name 1 value]…              (1 and 2: U+0001, U+0002)

The bytes are those of `protocol.properties` and `protocol.batch`; a test compares them. Each piece of an entry is an Arrow array,
and a single join builds all entries: about 20 times as fast as a loop over rows. Everything up to the sequence has the same size in
all rows of a partition, so it is one piece, in which only the digits of the id differ.

A unique id has the format of Java's, and is the same if a row is written again on the same day:

    hash of run, batch and partition (10 bytes) | ms from the start of the month to that of the day, plus sequence (6 bytes)

Consumers that identify messages by unique id therefore recognise a copy, and a look-up by id starts at the right day.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ariane.errors import MessageRefused
from ariane.model import dedup, ids
from ariane.model import message as names
from ariane.protocol.records import batch as batch_form
from ariane.protocol.records.properties import SIZE_MAX
from ariane.spark.write.sink_options import SinkOptions

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Piece: TypeAlias = pa.BinaryArray | bytes  # a value for each row, or one for all of them

DAY_MS = 86_400_000
DELIVER_AT_MIN_US = 10**13  # 1970-04-26: today's time in seconds, interpreted as ms, is earlier
ENCODE_BYTES_MAX = (
    32 * 1024 * 1024
)  # of a record batch that is encoded in one step; encoding needs several times as much memory

# Properties that applications must not set: columns, the client or the broker set them.
RESERVED_PROPERTIES = names.RESERVED | {
    dedup.DEDUP, names.START_DELIVER_TIME, names.TIMER_DELIVER_MS, names.TIMER_DELAY_MS, names.TIMER_DELAY_SEC,
    names.TIMER_DEL_UNIQKEY, names.TIMER_OUT_MS, names.TIMER_CANCELS, names.PREPARED_QUEUE_OFFSET, names.CHECK_TIMES,
    names.CHECK_IMMUNITY_TIME,
}  # fmt: skip

ENTRY_START = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")])
TEXT_SIZE = np.dtype(">i2")
HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
SHIFTS = np.arange(44, -1, -4, dtype=np.int64)  # bit positions of the twelve hex digits that differ within a partition


class RowIds(NamedTuple):
    """Identifiers of the rows of a partition: the dedup property without its sequence, and the parts of unique ids."""

    prefix: str
    id_prefix: str
    id_base: int

    def dedup_id(self, sequence: int) -> str:
        return f"{self.prefix}{sequence}"


@dataclass(frozen=True)
class EncodedMessages:
    """The rows of a record batch as messages."""

    bodies: pa.BinaryArray  # bodies as sent, one per row
    starts: npt.NDArray[np.uint8]  # of each row: the size of its properties (2 bytes), and their first bytes
    pieces: list[Piece]  # the rest of the properties; null values are absent
    flags: Ints  # the application's flag of each message, uninterpreted
    sizes: Ints
    """Size of each batch entry in bytes."""
    single: Bools  # delayed rows and bodies to compress: a batch can hold neither
    timed: Bools  # rows with a delivery time, which the broker has to support
    first_sequence: int
    """Sequence number of the first row in its partition."""

    @cached_property
    def properties(self) -> pa.BinaryArray:
        """The encoded property texts, one per row. Only requests for single rows need them."""
        starts = np.ascontiguousarray(self.starts[:, TEXT_SIZE.itemsize :])
        return _join(_fixed_width(starts, starts.shape[1]), *self.pieces)


def row_ids(run: str, batch: int, partition: int, now_ms: int) -> RowIds:
    prefix = dedup.prefix(run, batch, partition)
    day_ms = now_ms - now_ms % DAY_MS
    elapsed_ms = max(day_ms - ids.month_start_ms(day_ms), 0)
    return RowIds(prefix, hashlib.blake2b(prefix.encode(), digest_size=10).hexdigest().upper(), elapsed_ms << 16)


def split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split `batch` into parts of at most ENCODE_BYTES_MAX, as far as row boundaries allow."""
    if batch.num_rows > 1 and batch.nbytes > ENCODE_BYTES_MAX:
        half = batch.num_rows // 2
        yield from split_batch(batch.slice(0, half))
        yield from split_batch(batch.slice(half))
    elif batch.num_rows:
        yield batch


def encode(batch: pa.RecordBatch, ids: RowIds, first_sequence: int, options: SinkOptions) -> EncodedMessages:
    """Encode the rows of `batch`.

    Args:
        first_sequence: Sequence number of the first row.

    Raises:
        MessageRefused: a row cannot be sent; the message names the row and what to change.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    count = batch.num_rows

    def reject(bad: Any, reason: str) -> None:
        rows = np.flatnonzero(bools(bad))
        if len(rows):
            more = f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
            raise MessageRefused(f"row {ids.dedup_id(first_sequence + int(rows[0]))}{more}: {reason}")

    bodies = columns["body"].cast(pa.binary())
    body_sizes = ints(pc.binary_length(bodies), 0)
    reject(body_sizes == 0, "the body is null or empty, which brokers reject")
    reject(
        body_sizes > options.max_message_size,
        f"the body is larger than maxMessageSize, {options.max_message_size} bytes",
    )
    pieces, delayed, timed = _delay_pieces(columns, count, reject)
    application_pieces = _application_pieces(columns.get("properties"), count, reject, options)
    encoded: list[Piece] = [
        _decimals(first_sequence + np.arange(count)),
        *_property_piece(names.TAGS, columns.get("tags"), reject), *_property_piece(names.KEYS, columns.get("keys"), reject),
        *pieces, *application_pieces,
    ]  # fmt: skip
    starts = _text_starts(ids, first_sequence, count)
    text_sizes = np.full(count, starts.shape[1] - TEXT_SIZE.itemsize, np.int64)
    for piece in encoded:
        text_sizes += len(piece) if isinstance(piece, bytes) else ints(pc.binary_length(piece), 0)
    reject(text_sizes > SIZE_MAX, f"the properties are larger than {SIZE_MAX} bytes")
    starts[:, : TEXT_SIZE.itemsize] = text_sizes.astype(TEXT_SIZE)[:, None].view(np.uint8)
    sizes = body_sizes + text_sizes + batch_form.OVERHEAD
    is_alone = delayed | (body_sizes >= options.compression_threshold)
    flags = ints(columns["flag"], 0) if "flag" in columns else np.zeros(count, np.int64)
    return EncodedMessages(bodies, starts, encoded, flags, sizes, is_alone, timed, first_sequence)


def batch_entries(messages: EncodedMessages, order: Ints) -> pa.BinaryArray:
    """Return the batch entries of the rows in `order`, adjacent in one buffer."""
    bodies, starts, pieces, sizes, flags = (
        messages.bodies,
        messages.starts,
        messages.pieces,
        messages.sizes,
        messages.flags,
    )
    if not np.array_equal(order, np.arange(len(sizes))):
        rows = pa.array(order)
        bodies, starts, sizes, flags = bodies.take(rows), starts[order], sizes[order], flags[order]
        pieces = [piece if isinstance(piece, bytes) else piece.take(rows) for piece in pieces]
    heads = np.zeros(len(order), ENTRY_START)
    heads["size"], heads["flag"] = sizes, flags
    heads["body"] = ints(pc.binary_length(bodies), 0)
    return _join(_fixed_width(heads, ENTRY_START.itemsize), bodies, _fixed_width(starts, starts.shape[1]), *pieces)


Reject = Callable[[Any, str], None]


def _text_starts(ids: RowIds, first: int, count: int) -> npt.NDArray[np.uint8]:
    """Return the properties of each row up to its sequence, preceded by room for their size.

    The unique id has twenty hex digits for the partition and twelve for the row. After 65,536 rows the digits of the ms change.
    """
    before = b"\0" * TEXT_SIZE.itemsize + b"UNIQ_KEY\x01" + ids.id_prefix.encode()
    after = f"\x02{names.WAIT}\x01true\x02{dedup.DEDUP}\x01{ids.prefix}".encode()
    starts = np.tile(np.frombuffer(before + b"\0" * len(SHIFTS) + after, np.uint8), (count, 1))
    numbers = ids.id_base + first + np.arange(count, dtype=np.int64)
    starts[:, len(before) : len(before) + len(SHIFTS)] = HEX[(numbers[:, None] >> SHIFTS) & 15]
    return starts


def _property_piece(name: str, column: pa.Array | None, refuse: Reject) -> list[Piece]:
    """Return the encoded property that a column sets; empty for rows without a value."""
    if column is None:
        return []
    _reject_separators(column, name.lower(), refuse)
    values = column.cast(pa.binary())
    prefix = f"\x02{name}\x01".encode()
    has = pc.fill_null(pc.greater(pc.binary_length(values), 0), False)
    if has.true_count == len(has):
        return [prefix, values]
    return [_or_empty(has, _join(prefix, pc.fill_null(values, b"")))]


def _delay_pieces(columns: dict[str, pa.Array], count: int, refuse: Reject) -> tuple[list[pa.Array], Bools, Bools]:
    """Return the encoded delay properties, which rows are delayed, and which of them until a time."""
    pieces: list[pa.Array] = []
    levels, due_ms = np.zeros(count, np.int64), np.zeros(count, np.int64)
    if "delay_level" in columns:
        levels = ints(columns["delay_level"], 0)
        refuse(levels < 0, "delay_level is negative: expected 0 or null (no delay), or a level of the broker, from 1")
        text = _join(f"\x02{names.DELAY}\x01".encode(), _decimals(levels))
        pieces.append(_or_empty(pa.array(levels > 0), text))
    if "deliver_at" in columns:
        column = columns["deliver_at"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        due_ms = ints(column, 0) // 1000
        too_early = "deliver_at is before 1970-04-26: check the unit, a time in seconds was probably interpreted as ms"
        refuse(bools(pc.fill_null(pc.less(column, DELIVER_AT_MIN_US), False)), too_early)
        refuse((levels > 0) & (due_ms > 0), "delay_level and deliver_at are both set: keep one of them")
        due_digits = _decimals(due_ms)
        first, second = f"\x02{names.START_DELIVER_TIME}\x01", f"\x02{names.TIMER_DELIVER_MS}\x01"
        pieces.append(_or_empty(pa.array(due_ms > 0), _join(first.encode(), due_digits, second.encode(), due_digits)))
    return pieces, (levels > 0) | (due_ms > 0), due_ms > 0


def _application_pieces(column: pa.MapArray | None, count: int, refuse: Reject, options: SinkOptions) -> list[pa.Array]:
    """Return the encoded application properties: pairs with a value, in the order of the map."""
    if column is None:
        return []
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    start, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys, values = column.keys.slice(start, size), column.items.slice(start, size)
    row = np.repeat(np.arange(count), np.diff(offsets))
    keep = bools(column.is_valid())[row] & bools(values.is_valid())
    reserved = bools(pc.is_in(keys, value_set=pa.array(sorted(RESERVED_PROPERTIES), keys.type)))
    if options.drop_reserved_properties:
        keep &= ~reserved
    elif (reserved & keep).any():
        bad = int(np.flatnonzero(reserved & keep)[0])
        fix = "reserved by the protocol; use the column for it, or drop such properties with dropReservedProperties = true"
        refuse(_mask(count, row[bad]), f"the property {keys[bad].as_py()}: {fix}")
    keys, values, row = keys.filter(pa.array(keep)), values.filter(pa.array(keep)), row[keep]
    for kind, texts in (("name", keys), ("value", values)):
        empty = bools(pc.equal(pc.binary_length(texts), 0))
        refuse(_mask(count, row[empty]), f"a property has an empty {kind}, which would be lost: remove the property")
        refuse(_mask(count, row[_separators(texts)]), f"the {kind} of a property {SEPARATED}")
    pairs = _join(b"\x02", keys.cast(pa.binary()), b"\x01", values.cast(pa.binary()))
    bounds = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=count))]).astype(np.int32)
    return [pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds), pairs), b"")]


SEPARATED = "contains U+0001 or U+0002, which separate properties in the protocol: remove them"


def _reject_separators(column: pa.Array, name: str, refuse: Reject) -> None:
    refuse(_separators(column), f"{name} {SEPARATED}")


def _separators(texts: pa.Array) -> Bools:
    """Return which texts contain a separator."""
    if not _has_separators(texts.cast(pa.binary())):
        return np.zeros(len(texts), np.bool_)
    return bools(pc.fill_null(pc.match_substring_regex(texts, "[\x01\x02]"), False))


def _has_separators(values: pa.BinaryArray) -> bool:
    """Return whether a value contains a separator. A comparison of all bytes costs less than the expression for each value."""
    _, ends, data = values.buffers()
    if data is None or not len(values):
        return False
    edges = np.frombuffer(ends, np.int32)[values.offset : values.offset + len(values) + 1]
    return bool((np.frombuffer(data, np.uint8)[edges[0] : edges[-1]] - 1 < 2).any())


def _mask(count: int, rows: Ints) -> Bools:
    marked = np.zeros(count, np.bool_)
    marked[rows] = True
    return marked


def _join(*pieces: Piece) -> pa.BinaryArray:
    """Concatenate the pieces of each row."""
    arrays = [pa.scalar(piece, pa.binary()) if isinstance(piece, bytes) else piece for piece in pieces]
    return pc.binary_join_element_wise(*arrays, pa.scalar(b"", pa.binary()))


def _or_empty(has: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(has, values, pa.scalar(b"", pa.binary()))


def _decimals(numbers: Ints) -> pa.Array:
    return pa.array(numbers).cast(pa.string()).cast(pa.binary())


def _fixed_width(data: npt.NDArray[Any], size: int) -> pa.BinaryArray:
    """Return adjacent values of `size` bytes as an array, without a copy."""
    count = data.nbytes // size
    ends = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def ints(column: pa.Array, missing: int) -> Ints:
    numbers: Ints = pc.fill_null(column.cast(pa.int64()), missing).to_numpy(zero_copy_only=False)
    return numbers


def bools(column: Any) -> Bools:
    flags: Bools = column if isinstance(column, np.ndarray) else column.to_numpy(zero_copy_only=False).astype(np.bool_)
    return flags
