"""The responses to the pulls of a turn: pure functions over queue entries and a map of one file of the log.

    entries of each pull ─ select_entries ─► offsets, sizes ─ one load for neighbours ─► headers and records, one after another

As `select_messages`, it decides nothing that its arguments do not say, and ends before a pull that it prefers not to decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ariane.errors import ProtocolError
from ariane.kernels.pulls.pull_selection import (
    SPAN_MIN,
    FileMap,
    PullLimits,
    copy_records,
    find_span,
    select_entries,
)
from ariane.kernels.pulls.pull_turn import found_header
from ariane.protocol.frame import JSON_FORM
from ariane.protocol.records.record import store_ms

# What a pull with a JSON header reads: entries, most messages, tags codes, number of the first entry, start and end of the queue,
# brokers that are suggested while the group keeps up and while it does not, opaque. A plain tuple, because each pull needs one.
PullQuery = tuple[bytes, int, frozenset[int] | None, int, int, int, tuple[int, int], int]
# What a response contains: messages, their bytes, log offset of the last record examined, store time of the last message in ms.
AnsweredPull = tuple[int, int, int, int]


class PullSource(NamedTuple):
    """The file of the log that the pulls of a turn read, and what limits their responses."""

    base: int  # log offset of the first byte of the file
    size: int  # of the file
    log_start: int  # records below this log offset are removed
    recent_from: int  # records from this log offset on are assumed to be in memory
    count_max: int  # records of a response; the pull may want fewer
    bytes_max: int  # of all records of a response
    disk_count_max: int  # records of a response before one below `recent_from`
    disk_bytes_max: int  # of all records of a response with one below `recent_from`
    turn_bytes: int  # records of all responses; the one that reaches it is the last


class _Prepared(NamedTuple):
    header: bytes  # of the response, with its prefix
    offsets: Sequence[int]  # of the records, in the log
    sizes: Sequence[int]  # in bytes
    last: int  # log offset of the last record that was examined
    start: int  # of a range of the file that contains the records
    stop: int  # its end


def answer_pulls(queries: list[PullQuery], log_map: FileMap, source: PullSource) -> tuple[bytes, list[AnsweredPull]]:
    """Return the responses to the first of `queries`, one after another, and what each contains.

    They end before a pull without messages, and before one with a record that is not in this file, too far from the others,
    unreadable or corrupt.
    """
    base = source.base
    prepared = _prepare(queries, source)
    pieces: list[bytes] = []
    answers: list[AnsweredPull] = []
    loaded = 0  # of the prepared ones
    for index, (header, offsets, sizes, last, start, stop) in enumerate(prepared):
        if index == loaded:
            first, end, loaded = _neighbours(prepared, index)
            if not log_map.load(first, end):
                if loaded == index + 1 or not log_map.load(start, stop):
                    break
                loaded = index + 1
        # Nothing between `load` and the copies may wait, write or call back.
        body = copy_records(log_map, base, offsets, sizes)
        if body is None:
            break
        pieces += (header, body)
        size = len(body)
        answers.append((len(sizes), size, last, store_ms(body, size - sizes[-1])))
    return b"".join(pieces), answers


def _prepare(queries: list[PullQuery], source: PullSource) -> list[_Prepared]:
    base, file_size, log_start, recent_from, most, bytes_max, disk_count_max, disk_bytes_max, turn_bytes = source
    prepared: list[_Prepared] = []
    limits, limited, total = None, 0, 0
    for entries, count_max, codes, number, low, high, brokers, opaque in queries:
        if limits is None or limited != count_max:
            limited, count = count_max, min(count_max, most)
            limits = PullLimits(log_start, recent_from, count, bytes_max, disk_count_max, disk_bytes_max)
        offsets, sizes, scanned, last, _ = select_entries(entries, codes, limits)
        span = find_span(base, file_size, offsets, sizes) if sizes else None
        if span is None:
            break
        size = sum(sizes)
        try:
            header = found_header((high, low, number + scanned, brokers[last < recent_from], opaque), JSON_FORM, size)
        except ProtocolError:
            break  # the response is too large
        prepared.append(_Prepared(header, offsets, sizes, last, *span))
        total += size
        if total >= turn_bytes:
            break
    return prepared


def _neighbours(prepared: list[_Prepared], first: int) -> tuple[int, int, int]:
    """Return a range with the records of a response and of those after it that are near, and the index of the next one.

    A load of the range takes hardly more bytes than one for each response.
    """
    start, stop, index = prepared[first].start, prepared[first].stop, first + 1
    while index < len(prepared):
        other_start, other_stop = prepared[index].start, prepared[index].stop
        loaded = stop - start + other_stop - other_start
        both_start, both_stop = min(start, other_start), max(stop, other_stop)
        if both_stop - both_start > max(loaded, SPAN_MIN):
            break
        start, stop, index = both_start, both_stop, index + 1
    return start, stop, index
