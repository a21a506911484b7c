"""Reads the messages of a store directory without opening it as a store: nothing is locked, repaired or written.

Iterators yield a record for each message, and a line of text for each range that cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator

from ariane.errors import ProtocolError, StoreError
from ariane.kernels.scanned_record import NotARecord
from ariane.protocol.records.queue_entry import BLANK_SIZE, ENTRY, ENTRY_SIZE, LOST_CODE
from ariane.protocol.records.record import FILLER_MAGIC, SIZE_AND_MAGIC, Record, decode
from ariane.store.check.check_report import inspect_files
from ariane.store.disk.files import Disk, OpenFiles, ReadOnlyDisk
from ariane.store.disk.segments import NAME_DIGITS, Segments
from ariane.store.log import corrupt_ranges
from ariane.store.log.record_scanner import RecordScanner, read_record

FOREVER = (1 << 63) - 1


def read_log(
    root: str, start: int = 0, disk: Disk | None = None, *, commit_log: str | None = None
) -> Iterator[Record | str]:
    """Yield all messages from log offset `start` on, or from the first record after it."""
    files = OpenFiles(disk or ReadOnlyDisk())
    try:
        log = _log(files, root, commit_log)
        offset = max(start, log.start)
        while log.has(offset):
            scanner = RecordScanner(log, offset, FOREVER, check_crc=False, min_store_ms=0)
            reported = 0
            for record in scanner:
                yield from (str(corrupt) for corrupt in scanner.corrupt_ranges[reported:])
                reported = len(scanner.corrupt_ranges)
                if not corrupt_ranges.is_replacement(record):
                    yield _decode(log.read(record.offset, record.size), record.offset)
            later = [base for base in log.bases if base > scanner.end]
            if log.has(scanner.end) or not later:
                break
            yield f"{log.path(scanner.end)} is missing"
            offset = later[0]
    except OSError as error:
        raise StoreError(f"Cannot read {error.filename or root}: {error.strerror or error}") from error
    finally:
        files.close()


def read_cut(path: str, start: int = 0) -> Iterator[Record | str]:
    """Yield the messages of a file with what was cut off a log (`recovery.log_cut`), from log offset `start` on."""
    name = path.rpartition("/")[2].partition("-")[0]
    if not (len(name) == NAME_DIGITS and name.isdecimal()):
        raise StoreError(f"{path} is not a file of a store's cut directory: its name begins with {NAME_DIGITS} digits")
    disk = ReadOnlyDisk()
    handle = disk.open(path)
    try:
        position, base, size = 0, int(name), disk.size(path) or 0
        while position < size:
            length, magic = SIZE_AND_MAGIC.unpack(disk.pread(handle, SIZE_AND_MAGIC.size, position).ljust(8, b"\0"))
            if not 0 < length <= size - position:
                yield f"{size - position} bytes at {base + position} are not a record"
                return
            if magic != FILLER_MAGIC and base + position >= start:
                yield _decode(disk.pread(handle, length, position), base + position)
            position += length
    finally:
        disk.close(handle)


def read_queue(
    root: str,
    topic: str,
    queue_id: int,
    start: int = 0,
    disk: Disk | None = None,
    *,
    commit_log: str | None = None,
) -> Iterator[Record | str]:
    """Yield the messages of a queue from entry `start` on."""
    files = OpenFiles(disk or ReadOnlyDisk())
    try:
        log = _log(files, root, commit_log)
        directory = f"{root}/consumequeue/{topic}/{queue_id}"
        if files.disk.size(directory) is None:
            raise StoreError(f"Queue {queue_id} of topic {topic} not found in {root}")
        queue, _ = inspect_files(files, directory, "mappedFileSizeConsumeQueue")
        for position in range(max(start * ENTRY_SIZE, queue.start), queue.stop, ENTRY_SIZE):
            data = queue.read(position, ENTRY_SIZE)
            offset, size, code = ENTRY.unpack(data) if len(data) == ENTRY_SIZE else (0, 0, 0)
            if size == 0:
                break
            if size == BLANK_SIZE or code == LOST_CODE or offset < log.start:
                continue
            try:
                yield _decode(read_record(log, offset)[1], offset)
            except NotARecord as fault:
                yield f"entry {position // ENTRY_SIZE}: {size} bytes at {offset} are not a record ({fault})"
    except OSError as error:
        raise StoreError(f"Cannot read {error.filename or root}: {error.strerror or error}") from error
    finally:
        files.close()


def _log(files: OpenFiles, root: str, commit_log: str | None) -> Segments:
    directory = commit_log or f"{root}/commitlog"
    if files.disk.size(directory) is None:
        raise StoreError(f"{root} is not a store directory: {directory} is missing (see --commit-log)")
    return inspect_files(files, directory, "mappedFileSizeCommitLog")[0]


def _decode(data: bytes, offset: int) -> Record | str:
    try:
        return decode(data)
    except ProtocolError as error:
        return f"the record at {offset} cannot be decoded: {error}"
