"""Reads a queue: the records that a consumer gets, and the offset where it continues.

    entries ─► kernels: select_messages ─► body, from a map of the log
                       └ None ─► select_entries ─► records, one pread for each, or per span of neighbours

Entries are read first, from memory at the tail. Offsets and statuses are Java's. A filter that needs the record (SQL92) gets each
one before it counts; records are read ahead for it in spans, and one read examines a bounded number of bytes.
[DefaultMessageStore.getMessage, ConsumeQueue.getOffsetInQueueByTime]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from ariane.kernels.implementation import selected
from ariane.kernels.pulls.pull_selection import (
    EXT_ADDRESS_MAX,
    PullLimits,
    SelectedMessages,
    are_records,
    gather_records,
    low_32,
    select_candidates,
    select_entries,
)
from ariane.protocol.records.queue_entry import BLANK_SIZE, ENTRY, ENTRY_SIZE, LOST_CODE
from ariane.protocol.records.record import (
    FIXED_SIZE,
    I32,
    I64,
    IDENTITY,
    MAGIC,
    STORE_MS_AT,
    SYS_FLAG_AT,
    V6_EXTRA,
    store_ms_at,
)
from ariane.store.log.commit_log import CommitLog
from ariane.store.queues.consume_queue import ConsumeQueue
from ariane.store.types import GetResult, GetStatus, RecordFilter, StoreConfig

SCAN_ENTRIES = 800  # examined by one read of few records: a rare tag must not need a pull per entry
ENTRIES_MAX = 4_096  # examined by one read, whatever the requested count
SPAN_GAP = 4096  # unwanted bytes between two records that are still cheaper to read than to skip
SPAN_MAX = 1 << 20
SCAN_RECORD_BYTES = 4 << 20  # of records that a filter examines in one read, which blocks the event loop
AHEAD_COUNT, AHEAD_BYTES = 32, 256 * 1024  # records per read for a filter
_MATCHED, _REJECTED = 1, 0
_ACCEPTED = frozenset((_MATCHED,))
_STORE_MS_END = STORE_MS_AT + V6_EXTRA + I64.size  # bytes to read for the store time, whatever the born host


def read_messages(
    queue: ConsumeQueue,
    log: CommitLog,
    config: StoreConfig,
    offset: int,
    max_count: int,
    record_filter: RecordFilter,
) -> GetResult:
    """Return records of `queue` from entry `offset` on. The first match is always returned, whatever its size."""
    log_start, log_end = log.start, log.end
    low, high = queue.min_offset(log_start), queue.max
    if not low <= offset < high:
        return _outside(offset, low, high)
    entries = queue.entries(offset, entry_count(max_count, record_filter))
    if not entries:
        per_file = queue.segments.size // ENTRY_SIZE
        return _nothing(GetStatus.OFFSET_FOUND_NULL, offset - offset % per_file + per_file, low, high)

    limits = PullLimits(
        log_start,
        log_end - config.memory_bytes,
        min(max_count, config.transfer_count_in_memory),
        config.transfer_bytes_in_memory,
        config.transfer_count_on_disk,
        config.transfer_bytes_on_disk,
    )
    body, sizes, scanned, last, is_removed = _select(log, entries, limits, record_filter)
    bytes_behind = log_end - last
    is_old = bytes_behind > config.memory_bytes
    if sizes:
        return GetResult(GetStatus.FOUND, body, sizes, offset + scanned, low, high, is_old, bytes_behind)
    status = GetStatus.MESSAGE_WAS_REMOVING if is_removed else GetStatus.NO_MATCHED_MESSAGE
    return GetResult(status, body, sizes, offset + scanned, low, high, is_old, bytes_behind if last else None)


def _outside(offset: int, low: int, high: int) -> GetResult:
    """Return the result of a read at an offset without an entry."""
    if high == 0:
        return _nothing(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return _nothing(GetStatus.OFFSET_TOO_SMALL, low, low, high)
    status = GetStatus.OFFSET_OVERFLOW_ONE if offset == high else GetStatus.OFFSET_OVERFLOW_BADLY
    return _nothing(status, high, low, high)


def _select(log: CommitLog, entries: bytes, limits: PullLimits, record_filter: RecordFilter) -> SelectedMessages:
    """Return the messages of one response, from a map of the log where possible."""
    codes, accept = record_filter
    if accept is None:
        (offset,) = I64.unpack_from(entries)
        size = log.size
        base = offset - offset % size
        log_map = log.segments.map(base)
        if log_map is not None:
            messages = selected().select_messages(entries, log_map, base, size, codes, limits)
            if messages is not None:
                return messages
        selection = select_entries(entries, codes, limits)
    else:
        selection = select_candidates(_filter_records(log, entries, codes, accept), _ACCEPTED, limits)
    records = _read(log, selection.offsets, selection.sizes)
    body = b"".join(record for record in records if record is not None)
    sizes = tuple(len(record) for record in records if record is not None)
    # Consumers continue after corrupt records.
    is_removed = selection.is_removed or len(sizes) < len(selection.sizes)
    return SelectedMessages(body, sizes, selection.scanned, selection.last, is_removed)


def entry_count(max_count: int, record_filter: RecordFilter) -> int:
    """Return how many entries a read examines: it blocks the event loop, and the client chooses `max_count`."""
    if record_filter.accept is not None:
        return SCAN_ENTRIES  # records are read and filtered, which costs far more than an entry
    return max(1 if record_filter.codes is None else SCAN_ENTRIES, min(max_count, ENTRIES_MAX))


def _nothing(status: GetStatus, next_offset: int, low: int, high: int) -> GetResult:
    return GetResult(status, b"", (), next_offset, low, high, False)


def _filter_records(
    log: CommitLog, entries: bytes, codes: frozenset[int] | None, accept: Callable[[bytes], bool]
) -> Iterator[tuple[int, int, int]]:
    """Yield `entries` with the verdict of the filter instead of the tags code.

    Records are read a few at a time, up to SCAN_RECORD_BYTES in all (the entry that exceeds it is the last).
    """
    log_start, looked_at = log.start, 0
    all_entries = list(ENTRY.iter_unpack(entries))
    first = 0
    while first < len(all_entries) and looked_at < SCAN_RECORD_BYTES:
        offsets: list[int] = []
        sizes: list[int] = []
        total, after = 0, first
        while after < len(all_entries) and len(sizes) < AHEAD_COUNT:
            record_offset, size, code = all_entries[after]
            if record_offset >= log_start and size != BLANK_SIZE and code != LOST_CODE:
                if sizes and total + size > AHEAD_BYTES:
                    break
                offsets.append(record_offset)
                sizes.append(size)
                total += size
            after += 1
        records = iter(_read(log, offsets, sizes))
        for record_offset, size, code in all_entries[first:after]:
            verdict = _REJECTED
            if record_offset >= log_start and size != BLANK_SIZE and code != LOST_CODE:
                record = next(records)
                looked_at += size
                tag_fits = codes is None or code <= EXT_ADDRESS_MAX or low_32(code) in codes
                verdict = _MATCHED if tag_fits and record is not None and accept(record) else _REJECTED
            yield record_offset, size, verdict
        first = after


def _read(log: CommitLog, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes | None]:
    """Return the records at these offsets; None, and a report, for each corrupt one."""
    if not sizes:
        return []
    log_map, base = log.segments.map(offsets[0]), offsets[0] - offsets[0] % log.size
    data = None if log_map is None else gather_records(log_map, base, log.size, offsets, sizes)
    if data is None:
        return _read_each(log, base, offsets, sizes) or _read_spans(log, list(zip(offsets, sizes, strict=True)))
    return [data[stop - size : stop] for stop, size in zip(accumulate(sizes), sizes, strict=True)]


def _read_each(log: CommitLog, base: int, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes | None] | None:
    """Return records far from each other, read one by one; None unless all are in the file at `base`, and valid."""
    first, last = min(offsets), max(offsets)
    if (
        not base <= first <= last < base + log.size
        or last - first < SPAN_GAP * len(offsets)
        or not log.segments.has(base)
    ):
        return None
    if min(sizes) < FIXED_SIZE or max(sizes) > SPAN_MAX:
        return None
    records = log.segments.read_each(base, offsets, sizes)
    if sum(map(len, records)) < sum(sizes) or not are_records(records, offsets, sizes):
        return None
    return [*records]


def _read_spans(log: CommitLog, positions: list[tuple[int, int]]) -> list[bytes | None]:
    """Read records in as few spans as is worthwhile; None, and a report, for each corrupt one."""
    records: list[bytes | None] = []
    first, count, file_size = 0, len(positions), log.size
    while first < count:
        start, size = positions[first]
        if not FIXED_SIZE <= size <= SPAN_MAX and not _is_record(log, start, size):
            log.report_corrupt_record(start, size)  # a damaged entry must not cause a read of a gigabyte
            records.append(None)
            first += 1
            continue
        stop = start + size
        bound = min(start - start % file_size + file_size, start + SPAN_MAX)
        after = first + 1
        while after < count:
            record_offset, size = positions[after]
            if size < FIXED_SIZE or not 0 <= record_offset - stop <= SPAN_GAP or record_offset + size > bound:
                break
            stop = record_offset + size
            after += 1
        data = log.read(start, stop - start)
        for record_offset, size in positions[first:after]:
            position = record_offset - start
            if position + size > len(data) or IDENTITY.unpack_from(data, position) != (size, MAGIC, record_offset):
                log.report_corrupt_record(record_offset, size)
                records.append(None)
            else:
                records.append(data[position : position + size])
        first = after
    return records


def _is_record(log: CommitLog, offset: int, size: int) -> bool:
    data = log.read(offset, IDENTITY.size)
    return len(data) == IDENTITY.size and size >= FIXED_SIZE and IDENTITY.unpack(data) == (size, MAGIC, offset)


def read_store_ms(log: CommitLog, offset: int) -> int | None:
    """Return the store time of the record at `offset` in ms; None if no record begins there."""
    data = log.read(offset, _STORE_MS_END)
    if len(data) < _STORE_MS_END or IDENTITY.unpack_from(data)[1:] != (MAGIC, offset):
        return None
    (sys_flag,) = I32.unpack_from(data, SYS_FLAG_AT)
    value: int = I64.unpack_from(data, store_ms_at(sys_flag))[0]
    return value


def entry_store_ms(queue: ConsumeQueue, log: CommitLog, number: int) -> int | None:
    """Return the store time of entry `number` in ms; None if the entry does not exist, or its record is removed."""
    if not queue.min_offset(log.start) <= number < queue.max:
        return None
    offset, size, _ = ENTRY.unpack(queue.entries(number, 1))
    return None if size == BLANK_SIZE else read_store_ms(log, offset)


def find_by_time(queue: ConsumeQueue, log: CommitLog, ms: int) -> int:
    """Return the number of the entry whose store time is nearest to `ms`: the earlier of two, the first of equals, never `max`."""
    low, high = queue.min_offset(log.start), queue.max
    if low >= high:
        return low
    first = low
    while low < high:
        middle = (low + high) // 2
        number, stored = _last_with_record(queue, log, low, middle)
        if stored < ms:
            low = middle + 1
        else:
            high = number
    if low == queue.max:
        return low - 1
    if low == first:
        return low
    before, after = entry_store_ms(queue, log, low - 1), entry_store_ms(queue, log, low)
    if before is None or after is None:
        return low
    if after == ms or after - ms < ms - before:
        return low
    return low - 1


def _last_with_record(queue: ConsumeQueue, log: CommitLog, low: int, number: int) -> tuple[int, int]:
    """Return the last entry in [low, number] that has a record, and its store time; (number, -1) if none has."""
    index: int | None = number
    while index is not None and index >= low:
        index = queue.find_last_used(low, index + 1)
        if index is not None:
            stored = read_store_ms(log, ENTRY.unpack(queue.entries(index, 1))[0])
            if stored is not None:
                return index, stored
            index -= 1
    return number, -1
