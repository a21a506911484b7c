"""Locates a commit log in a directory, and scans it for records, vectorised and from any offset.

    find_log(path)     → StoredLog: files, and the end of the log (after the last complete record, not below the checkpoint)
    scan_range(...)    → RecordRun | LogDamage, in order, for everything that starts between two offsets
    next_boundary(...) → the first offset at or after another at which a record starts

A record is recognised by its magic, by the log offset stored in it, and by consistent lengths, and it has to follow its
predecessor. Otherwise the next record that is valid in all parts (including the CRC) is searched for, and everything before it is
damage (docs/decisions/0005). A scan from the middle of a file starts earlier by the maximum length of a record, so that a record
copied into the body of another is not mistaken for one: the chain of records started before any body that reaches the offset.

Read-only, by pread in chunks of `chunk` bytes: a file may grow in the meantime.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ariane.errors import StoreError
from ariane.kernels import implementation
from ariane.kernels.scanned_record import NotARecord, parse_record
from ariane.protocol.records import record
from ariane.spark.records import layout
from ariane.spark.records.layout import RecordHeader
from ariane.store.check.check_report import inspect_files
from ariane.store.disk.files import OpenFiles, ReadOnlyDisk, read_whole
from ariane.store.disk.segments import NAME_DIGITS, Segments
from ariane.store.log import checkpoint as checkpoints
from ariane.store.log.record_scanner import SMALL_READ_BYTES, find_valid_record, has_matching_lengths

log = logging.getLogger("ariane.spark")

COMMITLOG = "commitlog"
CHUNK_BYTES = 1536 * 1024  # bytes per read: the columns decoded from them fit into the processor's cache
LOOK_BACK_BYTES = 8 * 1024 * 1024  # no record is longer: maxMessageSize is 4 MiB
RECORD_BYTES_MAX = 64 * 1024 * 1024  # a larger size is damage: it must not make a task read a whole file
_CUT_OFF = "the file is truncated here"


class StoredLog(NamedTuple):
    """Commit-log files of `file_size` bytes that start at `bases`; the last record ends at `end`.

    `floor_ms` is a lower bound for the store time of records after `end`.
    """

    directory: str
    file_size: int
    bases: tuple[int, ...]
    end: int
    floor_ms: int = 0

    @property
    def start(self) -> int:
        return self.bases[0]


class LogDamage(NamedTuple):
    """A range of the log that is not a record, and the reason."""

    offset: int
    size: int
    reason: str


class RecordRun:
    """Adjacent records in `data`, whose first byte is at log offset `offset`.

    Args:
        data: Bytes of the log.
        offset: Of the first of them.
        starts: Positions of the records in `data`.
        header: Fixed fields of the records; default: read from `data` when they are needed.
        bounds: Bounds of their parts (`layout.find_parts`); default: as for `header`.
        may_have_replacement: Whether a record may replace a corrupt range.
    """

    def __init__(
        self,
        data: bytes,
        offset: int,
        starts: Any,
        header: RecordHeader | None = None,
        bounds: Any = None,
        *,
        may_have_replacement: bool = True,
    ) -> None:
        self.data = data
        self.offset = offset
        self.starts = starts
        self.header = header or RecordHeader(data, starts)
        self.may_have_replacement = may_have_replacement
        self._bounds = bounds

    @property
    def bounds(self) -> Any:
        if self._bounds is None:
            self._bounds, _ = layout.find_parts(self.data, self.starts, self.header)
        return self._bounds

    def select(self, which: Any) -> RecordRun:
        bounds = None if self._bounds is None else self._bounds[which]
        header = self.header.select(which)
        return RecordRun(
            self.data,
            self.offset,
            self.starts[which],
            header,
            bounds,
            may_have_replacement=self.may_have_replacement,
        )


def find_log(path: str, previous: StoredLog | None = None, chunk: int = CHUNK_BYTES) -> StoredLog:
    """Locate the commit log in the store directory `path`, or in `path` itself, and find its end.

    Args:
        path: Store directory, or its commitlog directory.
        previous: Result of an earlier call; only what was appended since is scanned.
        chunk: Bytes per read.

    Raises:
        StoreError: no commit log exists, or it cannot be read.
    """
    directory, root = _locate(path)
    files = OpenFiles(ReadOnlyDisk())
    try:
        segments, problems = inspect_files(files, directory, "mappedFileSizeCommitLog")
        for name in files.disk.listdir(directory):
            if len(name) == NAME_DIGITS and name.isdigit() and int(name) % segments.size:
                fault = f"{name} does not begin at a multiple of {segments.size}, the length of most files"
                raise StoreError(f"{directory}: {fault}: copy the files again, completely")
        for problem in problems:
            log.warning("%s %s", problem.file, problem.message)
        if not segments.bases:
            raise StoreError(f"{directory} contains no commit-log file: no broker has stored a message there")
        checkpoint = f"{root}/checkpoint"
        safe = 0
        if Path(checkpoint).is_file():  # a directory named checkpoint is Spark's, next to a copied commit log
            safe = checkpoints.decode(read_whole(files.disk, checkpoint) or b"").safe_offset or 0
        end, floor_ms = _find_end(segments, safe, previous, chunk)
        return StoredLog(directory, segments.size, tuple(segments.bases), end, floor_ms)
    except OSError as error:
        raise StoreError(f"cannot read {error.filename or path}: {error.strerror or error}") from error
    finally:
        files.close()


def scan_range(
    segments: Segments, begin: int, end: int, limit: int, chunk: int = CHUNK_BYTES, *, exact: bool = False
) -> Iterator[RecordRun | LogDamage]:
    """Yield the records and damage that start in [begin, end).

    The range is part of one file, whose records end at `limit`. `exact`: a record starts at `begin`, so no search is needed.
    """
    offset = begin if exact else _chain_start(segments, begin, limit)
    read_size = window = chunk
    while offset < end:
        data = segments.read(offset, min(read_size, limit - offset))
        run, length = read_chain(data, offset, segments.size)
        if length:
            if length > window // 2:
                window = min(2 * window, chunk)
            inside = slice(*np.searchsorted(run.starts, (begin - offset, end - offset)))
            if inside.start < inside.stop:
                yield run.select(inside)
            offset, read_size = offset + length, window
            continue
        size, is_filler = _claimed_size(data, offset, segments.size)
        if is_filler:
            return
        is_cut = len(data) < size <= min(limit - offset, RECORD_BYTES_MAX) and len(data) == min(
            read_size, limit - offset
        )
        if is_cut and has_matching_lengths(segments, offset, size):
            read_size = size
            continue
        following = find_valid_record(segments, offset + 1, limit, 0)
        if following is None:
            following = limit
        if offset >= begin:
            if is_cut:  # determine the reason from all bytes that are present
                data = segments.read(offset, min(following - offset, chunk))
            yield LogDamage(offset, following - offset, _damage_reason(data, following - offset, offset, segments.size))
        # Damage is often followed by more damage, so the next reads stay small until records follow.
        window = min(SMALL_READ_BYTES, chunk)
        offset, read_size = following, window


def next_boundary(segments: Segments, offset: int, limit: int, chunk: int = CHUNK_BYTES) -> int:
    """Return the first offset at or after `offset` at which a record starts, or `limit` if none does."""
    for piece in scan_range(segments, offset, limit, limit, chunk):
        return piece.offset if isinstance(piece, LogDamage) else piece.offset + int(piece.starts[0])
    return limit


def read_chain(data: bytes, offset: int, file_size: int) -> tuple[RecordRun, int]:
    """Return the chain of adjacent records at the start of `data`, and its length in bytes."""
    room = file_size - offset % file_size - record.FILLER_SIZE
    records = implementation.native_records()
    if records is not None and (chain := records.find_chain(data, offset, room)) is not None:
        starts = np.frombuffer(chain.starts, np.int64)
        return RecordRun(data, offset, starts, may_have_replacement=chain.may_have_replacement), chain.size
    starts = layout.find_candidates(data)
    starts = starts[starts + record.FIXED_SIZE <= len(data)]
    if not len(starts) or starts[0]:
        none = np.zeros(0, np.int64)
        return RecordRun(data, offset, none, RecordHeader(data, none), np.zeros((0, 6), np.int32)), 0
    header = RecordHeader(data, starts)
    sizes = header["size"]
    stops = starts + sizes
    right = (header["offset"] == starts + offset) & (sizes >= record.FIXED_SIZE) & (stops <= min(len(data), room))
    if not right.all():
        starts, header, stops = starts[right], header.select(right), stops[right]
    bounds, fits = layout.find_parts(data, starts, header)
    count = len(starts)
    if not (fits.all() and count and not starts[0] and (starts[1:] == stops[:-1]).all()):
        keep = _linked(starts, stops, fits)
        starts, header, bounds, stops = starts[keep], header.select(keep), bounds[keep], stops[keep]
    return RecordRun(data, offset, starts, header, bounds), int(stops[-1]) if len(stops) else 0


def _linked(starts: Any, stops: Any, fits: Any) -> list[int]:
    """Return the indexes of the candidates that form a chain from 0 on; candidates inside another record belong to its body."""
    keep = []
    number = 0
    for index, (start, stop, is_right) in enumerate(zip(starts.tolist(), stops.tolist(), fits.tolist(), strict=True)):
        if start > number:
            break
        if start == number and is_right:
            keep.append(index)
            number = stop
    return keep


def _chain_start(segments: Segments, begin: int, limit: int) -> int:
    """Return an offset from which a chain of records leads to `begin`.

    That is the start of the file, or the first valid record within LOOK_BACK_BYTES, which is after `begin` if no record
    reaches it.
    """
    base = begin - begin % segments.size
    position = max(base, begin - LOOK_BACK_BYTES)
    if position == base:
        return base
    start = find_valid_record(segments, position, limit, 0)
    return limit if start is None else start


def _claimed_size(data: bytes, position: int, file_size: int) -> tuple[int, bool]:
    """Return the size in the header of a record at the start of `data` (0 without magic), and whether it is the filler record."""
    size, magic = record.SIZE_AND_MAGIC.unpack_from(data) if len(data) >= record.SIZE_AND_MAGIC.size else (0, 0)
    return (
        size if magic == record.MAGIC else 0,
        magic == record.FILLER_MAGIC and size == file_size - position % file_size,
    )


def _damage_reason(data: bytes, size: int, position: int, file_size: int) -> str:
    """Return why the `size` bytes at `position`, starting with `data`, are not a record."""
    if not data:
        return _CUT_OFF
    if not data[:size].strip(b"\0"):
        return "nothing was written here"
    try:
        parse_record(data, 0, position, file_size - position % file_size, check_crc=False)
    except NotARecord as fault:
        return str(fault)
    # Both parsers apply the same rules, so the bytes must have changed between the two reads, which damage does not do.
    raise StoreError(f"the record at {position} changed during the read: read again")


def _find_end(segments: Segments, safe_offset: int, previous: StoredLog | None, chunk: int) -> tuple[int, int]:
    """Return the end of the log, and a lower bound for the store time of records after it."""
    floor_ms = 0
    if previous is None and safe_offset and segments.has(safe_offset):
        # Ariane's store flushed everything below the checkpoint and clears what it truncates, so a record or zeros there prove that
        # nothing before it has to be scanned.
        base, data = safe_offset - safe_offset % segments.size, segments.read(safe_offset, SMALL_READ_BYTES)
        if safe_offset > base and (not data.strip(b"\0") or read_chain(data, safe_offset, segments.size)[1]):
            previous = StoredLog("", segments.size, (), safe_offset)
    for base in reversed(segments.bases):
        if previous is not None and previous.end == base + segments.size:
            return previous.end, previous.floor_ms
        position = base
        if previous is not None and base <= previous.end < base + segments.size:
            position, floor_ms = previous.end, previous.floor_ms
        end, floor_ms = _find_end_in_file(segments, position, floor_ms, chunk)
        end = max(end, min(safe_offset, base + segments.size))
        # Files are created in advance: an empty one does not prove that the previous one is full.
        if end > base or position > base or base == segments.bases[0] or not segments.has(base - 1):
            return end, floor_ms
    return segments.start, floor_ms


def _find_end_in_file(segments: Segments, position: int, floor_ms: int, chunk: int) -> tuple[int, int]:
    """Find the end within one file; `position` is an offset at which a record starts or may start."""
    stop = position - position % segments.size + segments.size
    read_size = window = chunk
    last = candidate = -1
    while position < stop:
        data = segments.read(position, read_size)
        run, length = read_chain(data, position, segments.size)
        if length:
            floor_ms = max(floor_ms, min(_store_ms(run, -1), _store_ms(run, -2 if len(run.starts) > 1 else -1)))
            last = position + int(run.starts[-1])
            if length > window // 2:
                window = min(2 * window, chunk)
            position, read_size = position + length, window
            continue
        size, is_filler = _claimed_size(data, position, segments.size)
        if is_filler:
            return stop, floor_ms
        if len(data) < size <= min(stop - position, RECORD_BYTES_MAX) and has_matching_lengths(
            segments, position, size
        ):
            read_size = size
            if len(segments.read(position, size)) == size:
                continue
        following = find_valid_record(segments, position + 1, stop, floor_ms)
        if following is None:
            break
        if candidate != position:
            candidate = position  # try once more: the broker may have written it, and what follows, since the read
            continue
        window = min(SMALL_READ_BYTES, chunk)
        position, last, read_size = following, -1, window
    if last >= 0 and not _is_complete(segments, last, position):
        position = last
    return position, floor_ms


def _is_complete(segments: Segments, position: int, stop: int) -> bool:
    """Return whether the last record is complete. Only its CRC can show that, as the lengths are written first."""
    try:
        parse_record(
            segments.read(position, stop - position),
            0,
            position,
            segments.size - position % segments.size,
            check_crc=True,
        )
    except NotARecord:
        return False
    return True


def _store_ms(run: RecordRun, index: int) -> int:
    start = int(run.starts[index])
    return record.store_ms(run.data[start : start + record.FIXED_SIZE])


def _locate(path: str) -> tuple[str, str]:
    """Return the commit-log directory for `path`, and its store directory."""
    directory = Path(path)
    if (directory / COMMITLOG).is_dir():
        return str(directory / COMMITLOG), str(directory)
    if not directory.is_dir():
        raise StoreError(
            f"{path} is not a directory: expected the directory that contains {COMMITLOG}, visible to the driver and all executors"
        )
    if directory.name == COMMITLOG or any(
        len(entry.name) == NAME_DIGITS and entry.name.isdigit() for entry in directory.iterdir()
    ):
        return str(directory), str(directory.absolute().parent)
    raise StoreError(f"{path} is not a store directory: it contains no {COMMITLOG}")
