"""Selects the messages of one pull and gathers their bytes: pure functions over queue entries and a map of the log.

    entries ─ filter by tags code ─ limits of one response ─► Selection: offsets and sizes
                                                                │  one file, near each other, readable, each the record it should be
                                                                ├─ yes ─► body: the records one after another
                                                                └─ no ──► None: `queue_reader` reads record by record

`select_messages` is the whole work of a usual pull in one call. It decides nothing that its arguments do not say, so another
implementation can replace it: same arguments, same result, None wherever it prefers not to decide.
[DefaultMessageStore.getMessage, isTheBatchFull]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, repeat
from operator import add
from struct import Struct
from typing import NamedTuple, Protocol

from ariane.protocol.records.queue_entry import BLANK_SIZE, ENTRY, ENTRY_SIZE, LOST_CODE
from ariane.protocol.records.record import FIXED_SIZE, IDENTITY, MAGIC, SIZE_AND_MAGIC

EXT_ADDRESS_MAX = -(2**31) - 1  # a tags code up to here is an address in a file of Java's: the tag is unknown
# A map loads all bytes between the first record and the last. Beyond so many in all and for each record, single reads cost less;
# and the size in a damaged entry must not cause the load of a gigabyte.
SPAN_MIN, SPAN_PER_RECORD = 256 * 1024, 32 * 1024
COLUMNS_MAX = 256  # entries or records that are unpacked in one step
HEADS_MAX = 512  # formats of records of equal size that are retained; each takes 3 KB for 32 records

_identity = IDENTITY.unpack_from


class FileMap(Protocol):
    """The bytes of one file in memory. Used by one thread."""

    def load(self, start: int, stop: int) -> bool:
        """Return whether the bytes from `start` to `stop` are in memory.

        Slices within that range are safe until the thread does anything else: nothing else may happen between this call and them.
        """
        ...

    def __getitem__(self, part: slice, /) -> bytes:
        """Return bytes of the range that the last `load` returned True for."""
        ...

    def close(self) -> None: ...


class PullLimits(NamedTuple):
    """What one response may contain. The first record is always allowed, whatever its size."""

    log_start: int  # records below this log offset are removed
    recent_from: int  # records from this log offset on are assumed to be in memory; the others have limits of their own
    count_max: int  # records
    bytes_max: int  # of all records
    disk_count_max: int  # records before one below `recent_from`
    disk_bytes_max: int  # of all records, with one below `recent_from`


class Selection(NamedTuple):
    """Records that a response contains. `offsets` and `sizes` have one item for each."""

    offsets: tuple[int, ...]  # in the log
    sizes: tuple[int, ...]  # in bytes
    scanned: int  # entries that are done with: the next read continues after them
    last: int  # log offset of the last record that was examined, selected or not; 0 if none was
    is_removed: bool  # the last entry examined names a record that is removed or lost


class SelectedMessages(NamedTuple):
    """The bytes of a response."""

    body: bytes  # the records, one after another
    sizes: tuple[int, ...]  # of each record
    scanned: int  # as in Selection
    last: int  # as in Selection
    is_removed: bool  # as in Selection


def select_messages(
    entries: bytes, log_map: FileMap, base: int, size: int, codes: frozenset[int] | None, limits: PullLimits
) -> SelectedMessages | None:
    """Return the messages of one pull.

    Args:
        entries: Consume-queue entries from the requested offset on; at least one.
        log_map: Map of one file of the log.
        base: Log offset of its first byte.
        size: Length of that file in bytes.
        codes: Tags codes to return; None: all messages.
        limits: Limits of the response.

    Returns:
        The messages, possibly none; None if a record is not in this file, too far from the others, unreadable or corrupt.
    """
    offsets, sizes, scanned, last, is_removed = select_entries(entries, codes, limits)
    if not sizes:
        return SelectedMessages(b"", sizes, scanned, last, is_removed)
    body = gather_records(log_map, base, size, offsets, sizes)
    return None if body is None else SelectedMessages(body, sizes, scanned, last, is_removed)


def select_entries(entries: bytes, codes: frozenset[int] | None, limits: PullLimits) -> Selection:
    """Return which of `entries` a response contains."""
    return _select_first(entries, codes, limits) or select_candidates(ENTRY.iter_unpack(entries), codes, limits)


def _select_first(entries: bytes, codes: frozenset[int] | None, limits: PullLimits) -> Selection | None:
    """Return the selection if it is a run of the first entries, found by column; None if single entries have to be examined."""
    log_start, recent_from, count_max, bytes_max, _, _ = limits
    count = max(1, min(count_max, len(entries) // ENTRY_SIZE, COLUMNS_MAX))
    columns = _columns(count).unpack_from(entries)
    offsets, sizes, tags_codes = columns[0::3], columns[1::3], columns[2::3]
    first, largest = min(offsets), sizes[0]
    total = count * largest
    if sizes.count(largest) < count:
        largest, total = max(sizes), sum(sizes)
        if min(sizes) < FIXED_SIZE:
            return None
    if first < log_start or first < recent_from or not FIXED_SIZE <= largest < BLANK_SIZE:
        return None
    if LOST_CODE in tags_codes or (codes is not None and not codes.issuperset(tags_codes)):
        return None
    if total > bytes_max:
        count = max(1, bisect_right(list(accumulate(sizes)), bytes_max))
        offsets, sizes = offsets[:count], sizes[:count]
    elif count == COLUMNS_MAX:
        return None  # there may be more
    if count * ENTRY_SIZE < len(entries) and _is_removed(log_start, *ENTRY.unpack_from(entries, count * ENTRY_SIZE)):
        return None  # removed entries are passed over although the response is full
    return Selection(offsets, sizes, count, offsets[-1], False)


def _is_removed(log_start: int, offset: int, size: int, code: int) -> bool:
    return offset < log_start or size == BLANK_SIZE or code == LOST_CODE


@lru_cache(COLUMNS_MAX)
def _columns(count: int) -> Struct:
    return Struct(">" + ENTRY.format.lstrip(">") * count)


def select_candidates(
    candidates: Iterable[tuple[int, int, int]], codes: frozenset[int] | None, limits: PullLimits
) -> Selection:
    """Return which of `candidates` (log offset, size, tags code) a response contains; any entry is possible."""
    log_start, recent_from, count_max, bytes_max, disk_count_max, disk_bytes_max = limits
    offsets: list[int] = []
    sizes: list[int] = []
    total = scanned = last = 0
    is_removed = False
    for offset, size, code in candidates:
        if offset < log_start or size == BLANK_SIZE or code == LOST_CODE:
            is_removed = True
            scanned += 1
            continue
        if sizes:
            if len(sizes) >= count_max or total + size > bytes_max:
                break
            if offset < recent_from and (len(sizes) >= disk_count_max or total + size > disk_bytes_max):
                break
        last = offset
        scanned += 1
        if codes is not None and code not in codes and code > EXT_ADDRESS_MAX and low_32(code) not in codes:
            is_removed = False
            continue
        offsets.append(offset)
        sizes.append(size)
        total += size
    return Selection(tuple(offsets), tuple(sizes), scanned, last, is_removed)


def low_32(code: int) -> int:
    """Return the hash of a tag: the low half of its code, as a signed number."""
    return ((code + 0x8000_0000) & 0xFFFF_FFFF) - 0x8000_0000


def gather_records(
    log_map: FileMap, base: int, size: int, offsets: Sequence[int], sizes: Sequence[int]
) -> bytes | None:
    """Return the records at `offsets`, one after another; None unless all of them are near each other in this file and valid."""
    span = find_span(base, size, offsets, sizes)
    # Nothing between `load` and the slices may wait, write or call back.
    return None if span is None or not log_map.load(*span) else copy_records(log_map, base, offsets, sizes)


def find_span(base: int, size: int, offsets: Sequence[int], sizes: Sequence[int]) -> tuple[int, int] | None:
    """Return a range of a file that contains all records; None if one is elsewhere, too small, or far from the others."""
    largest = sizes[0]
    if sizes.count(largest) < len(sizes):
        largest = max(sizes)
        if min(sizes) < FIXED_SIZE:
            return None
    first = min(offsets) - base
    stop = max(offsets) - base + largest
    if stop > size:
        stop = max(map(add, offsets, sizes)) - base
    if first < 0 or stop > size or stop - first > SPAN_MIN + SPAN_PER_RECORD * len(sizes) or largest < FIXED_SIZE:
        return None
    return first, stop


def copy_records(log_map: FileMap, base: int, offsets: Sequence[int], sizes: Sequence[int]) -> bytes | None:
    """Return loaded records, one after another; None if one is not the record that it should be."""
    largest, count = sizes[0], len(sizes)
    if count <= COLUMNS_MAX and sizes.count(largest) == count:
        after = largest - base
        body = b"".join([log_map[offset - base : offset + after] for offset in offsets])
        return body if _are_equal_records(body, offsets, largest) else None
    records = [log_map[offset : offset + size] for offset, size in zip([o - base for o in offsets], sizes, strict=True)]
    return b"".join(records) if are_records(records, offsets, sizes) else None


def _are_equal_records(body: bytes, offsets: Sequence[int], size: int) -> bool:
    """Return whether `body` consists of the records at `offsets`, each of `size` bytes: one step for all of them."""
    heads = _heads(len(offsets), size).unpack_from(body)
    return heads[1::2] == tuple(offsets) and heads[0::2].count(SIZE_AND_MAGIC.pack(size, MAGIC)) == len(offsets)


@lru_cache(HEADS_MAX)
def _heads(count: int, size: int) -> Struct:
    """Return the format of `count` records of `size` bytes: size and magic number in one piece, offset in the log."""
    return Struct(">" + f"{SIZE_AND_MAGIC.size}s20xq{size - IDENTITY.size}x" * count)


def are_records(data: Sequence[bytes], offsets: Sequence[int], sizes: Sequence[int]) -> bool:
    """Return whether `data`, each of the length in `sizes`, are the records at `offsets`."""
    return list(map(_identity, data)) == list(zip(sizes, repeat(MAGIC), offsets, strict=False))
