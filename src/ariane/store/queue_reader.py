"""Reading a queue: which records a consumer gets, and where it reads on.

Entries are read first (from memory at the tail), filtered by tags code, and counted against the limits of one answer; the records
of those taken are then read in spans, one pread for neighbours. Positions and statuses are those of Java.

A filter that has to see the record (SQL92) is given each one before it counts; records are read ahead for it in spans, and one read
looks at a bounded number of bytes.
[DefaultMessageStore.getMessage, ConsumeQueue.getOffsetInQueueByTime]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ariane.protocol.record import (
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
from ariane.store.commit_log import CommitLog
from ariane.store.consume_queue import BLANK_SIZE, ENTRY, ENTRY_SIZE, LOST_CODE, ConsumeQueue
from ariane.store.types import GetResult, GetStatus, StoreConfig

SCAN_BYTES = (
    16_000  # of entries looked at in one read when few are asked for: a rare tag must not need a pull per entry
)
ENTRIES_MAX = 4_096  # looked at in one read, however many are asked for
SPAN_GAP = 4096  # unwanted bytes between two records that are still cheaper to read than to skip
SPAN_MAX = 1 << 20
SCAN_RECORD_BYTES = 4 << 20  # of records that a filter looks at in one read: the event loop waits meanwhile
AHEAD_COUNT, AHEAD_BYTES = 32, 256 * 1024  # records read at once for a filter
EXT_ADDRESS_MAX = -(2**31) - 1  # a tags code up to here is an address in a file of Java's: the tag is not known
_TAKEN, _REFUSED = 1, 0
_ACCEPTED = frozenset((_TAKEN,))
_STORE_MS_END = STORE_MS_AT + V6_EXTRA + I64.size  # bytes to read for the store time, whatever the born host


def read_messages(
    queue: ConsumeQueue,
    log: CommitLog,
    config: StoreConfig,
    offset: int,
    max_count: int,
    codes: frozenset[int] | None,
    max_bytes: int | None,
    accept: Callable[[bytes], bool] | None = None,
) -> GetResult:
    """Records of `queue` from entry `offset` on. The first match is always taken, whatever its size. `accept` is asked about
    each record that `codes` lets pass."""
    low, high = queue.min_offset(log.start), queue.max
    if high == 0:
        return _nothing(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return _nothing(GetStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset >= high:
        status = GetStatus.OFFSET_OVERFLOW_ONE if offset == high else GetStatus.OFFSET_OVERFLOW_BADLY
        return _nothing(status, high, low, high)
    entries = queue.entries(offset, _entry_count(max_count, codes, accept))
    if not entries:
        per_file = queue.segments.size // ENTRY_SIZE
        return _nothing(GetStatus.OFFSET_FOUND_NULL, offset - offset % per_file + per_file, low, high)

    log_start, recent_from = log.start, log.end - config.memory_bytes
    bytes_max, count_max = config.transfer_bytes_in_memory, min(max_count, config.transfer_count_in_memory)
    if max_bytes is not None:
        bytes_max = min(bytes_max, max_bytes)
    taken: list[tuple[int, int]] = []
    total = scanned = last = 0
    status = GetStatus.NO_MATCHED_MESSAGE
    candidates = ENTRY.iter_unpack(entries)
    if accept is not None:
        candidates, codes = _judged(log, entries, codes, accept), _ACCEPTED
    for at, size, code in candidates:
        if at < log_start or size == BLANK_SIZE or code == LOST_CODE:
            status = GetStatus.MESSAGE_WAS_REMOVING
            scanned += 1
            continue
        if taken:
            if len(taken) >= count_max or total + size > bytes_max:
                break
            if at < recent_from and (
                len(taken) >= config.transfer_count_on_disk or total + size > config.transfer_bytes_on_disk
            ):
                break
        last = at
        scanned += 1
        if codes is not None and code not in codes and code > EXT_ADDRESS_MAX and _low_32(code) not in codes:
            status = GetStatus.NO_MATCHED_MESSAGE
            continue
        taken.append((at, size))
        total += size
    records = _records(log, taken)
    if records:
        status = GetStatus.FOUND
    elif taken:
        status = GetStatus.MESSAGE_WAS_REMOVING  # all were damaged: the consumer goes on behind them
    suggest_slave = log.end - last > config.memory_bytes
    behind = log.end - last if last or taken else None
    return GetResult(status, records, offset + scanned, low, high, suggest_slave, behind)


def _entry_count(max_count: int, codes: frozenset[int] | None, accept: Callable[[bytes], bool] | None) -> int:
    """How many entries a read looks at: the event loop waits meanwhile, and `max_count` is the client's."""
    scanned = SCAN_BYTES // ENTRY_SIZE
    if accept is not None:
        return scanned  # records are read and judged, which costs far more than an entry
    return max(1, min(max_count, ENTRIES_MAX) if codes is None else max(scanned, min(max_count, ENTRIES_MAX)))


def _nothing(status: GetStatus, next_offset: int, low: int, high: int) -> GetResult:
    return GetResult(status, [], next_offset, low, high, False)


def _low_32(code: int) -> int:
    return ((code + 0x8000_0000) & 0xFFFF_FFFF) - 0x8000_0000


def _judged(
    log: CommitLog, entries: bytes, codes: frozenset[int] | None, accept: Callable[[bytes], bool]
) -> Iterator[tuple[int, int, int]]:
    """`entries` with a verdict in the place of the tags code; records are read some at a time, up to SCAN_RECORD_BYTES in all
    (the entry that passes it is the last)."""
    log_start, looked_at = log.start, 0
    every = list(ENTRY.iter_unpack(entries))
    first = 0
    while first < len(every) and looked_at < SCAN_RECORD_BYTES:
        chunk: list[tuple[int, int]] = []
        total, after = 0, first
        while after < len(every) and len(chunk) < AHEAD_COUNT:
            at, size, code = every[after]
            if at >= log_start and size != BLANK_SIZE and code != LOST_CODE:
                if chunk and total + size > AHEAD_BYTES:
                    break
                chunk.append((at, size))
                total += size
            after += 1
        records = iter(_read(log, chunk))
        for at, size, code in every[first:after]:
            verdict = _REFUSED
            if at >= log_start and size != BLANK_SIZE and code != LOST_CODE:
                record = next(records)
                looked_at += size
                tag_fits = codes is None or code <= EXT_ADDRESS_MAX or _low_32(code) in codes
                verdict = _TAKEN if tag_fits and record is not None and accept(record) else _REFUSED
            yield at, size, verdict
        first = after


def _records(log: CommitLog, taken: list[tuple[int, int]]) -> list[bytes]:
    """The records at these places; what is no record there is passed over and reported."""
    return [record for record in _read(log, taken) if record is not None]


def _read(log: CommitLog, taken: list[tuple[int, int]]) -> list[bytes | None]:
    """The records at these places, read in as few spans as pays off; None, and a report, for what is no record there."""
    records: list[bytes | None] = []
    first, count, file_size = 0, len(taken), log.size
    while first < count:
        start, size = taken[first]
        if not FIXED_SIZE <= size <= SPAN_MAX and not _is_there(log, start, size):
            log.report_corrupt_record(start, size)  # a damaged entry must not make us read a gigabyte
            records.append(None)
            first += 1
            continue
        stop = start + size
        bound = min(start - start % file_size + file_size, start + SPAN_MAX)
        after = first + 1
        while after < count:
            at, size = taken[after]
            if size < FIXED_SIZE or not 0 <= at - stop <= SPAN_GAP or at + size > bound:
                break
            stop = at + size
            after += 1
        data = log.read(start, stop - start)
        for at, size in taken[first:after]:
            within = at - start
            if within + size > len(data) or IDENTITY.unpack_from(data, within) != (size, MAGIC, at):
                log.report_corrupt_record(at, size)
                records.append(None)
            else:
                records.append(data[within : within + size])
        first = after
    return records


def _is_there(log: CommitLog, offset: int, size: int) -> bool:
    data = log.read(offset, IDENTITY.size)
    return len(data) == IDENTITY.size and size >= FIXED_SIZE and IDENTITY.unpack(data) == (size, MAGIC, offset)


def read_store_ms(log: CommitLog, offset: int) -> int | None:
    """Store time of the record at `offset`; None when no record lies there."""
    data = log.read(offset, _STORE_MS_END)
    if len(data) < _STORE_MS_END or IDENTITY.unpack_from(data)[1:] != (MAGIC, offset):
        return None
    (sys_flag,) = I32.unpack_from(data, SYS_FLAG_AT)
    value: int = I64.unpack_from(data, store_ms_at(sys_flag))[0]
    return value


def entry_store_ms(queue: ConsumeQueue, log: CommitLog, number: int) -> int | None:
    """Store time of entry `number`; None when there is no such entry, or its record is gone."""
    if not queue.min_offset(log.start) <= number < queue.max:
        return None
    offset, size, _ = ENTRY.unpack(queue.entries(number, 1))
    return None if size == BLANK_SIZE else read_store_ms(log, offset)


def find_by_time(queue: ConsumeQueue, log: CommitLog, ms: int) -> int:
    """Number of the entry whose store time is nearest to `ms`, the earlier of two; of equals the first. Never `max`."""
    low, high = queue.min_offset(log.start), queue.max
    if low >= high:
        return low
    first = low
    while low < high:
        middle = (low + high) // 2
        known, stored = _known_ms(queue, log, low, middle)
        if stored < ms:
            low = middle + 1
        else:
            high = known
    if low == queue.max:
        return low - 1
    if low == first:
        return low
    before, behind = entry_store_ms(queue, log, low - 1), entry_store_ms(queue, log, low)
    if before is None or behind is None:
        return low
    if behind == ms or behind - ms < ms - before:
        return low
    return low - 1


def _known_ms(queue: ConsumeQueue, log: CommitLog, low: int, number: int) -> tuple[int, int]:
    """The last entry in [low, number] that has a record, and its store time; (number, -1) when none has."""
    at: int | None = number
    while at is not None and at >= low:
        at = queue.find_last_used(low, at + 1)
        if at is not None:
            stored = read_store_ms(log, ENTRY.unpack(queue.entries(at, 1))[0])
            if stored is not None:
                return at, stored
            at -= 1
    return number, -1
