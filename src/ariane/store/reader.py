"""The messages in a store directory, read without opening it as a store: nothing is locked, mended or written.

Iterators give a record for each message and a line of text for what could not be read.
"""

from __future__ import annotations

from collections.abc import Iterator

from ariane.errors import ProtocolError, StoreError
from ariane.protocol.record import Record, decode
from ariane.store import corrupt_ranges
from ariane.store.check_report import inspect_files
from ariane.store.consume_queue import BLANK_SIZE, ENTRY, ENTRY_SIZE, LOST_CODE
from ariane.store.files import Disk, OpenFiles, ReadOnlyDisk
from ariane.store.record_scanner import NotARecord, RecordScanner, read_record
from ariane.store.segments import Segments

FOREVER = (1 << 63) - 1


def read_log(
    root: str, start: int = 0, disk: Disk | None = None, *, commit_log: str | None = None
) -> Iterator[Record | str]:
    """All messages from log offset `start` on, or from the first record behind it when none begins there."""
    files = OpenFiles(disk or ReadOnlyDisk())
    try:
        log = _log(files, root, commit_log)
        at = max(start, log.start)
        while log.has(at):
            walk = RecordScanner(log, at, FOREVER, check_crc=False, min_store_ms=0)
            told = 0
            for found in walk:
                yield from (str(hole) for hole in walk.corrupt_ranges[told:])
                told = len(walk.corrupt_ranges)
                if not corrupt_ranges.is_replacement(found):
                    yield _decoded(log.read(found.offset, found.size), found.offset)
            later = [base for base in log.bases if base > walk.end]
            if log.has(walk.end) or not later:
                break
            yield f"{log.path(walk.end)} is missing"
            at = later[0]
    except OSError as error:
        raise StoreError(f"cannot read {error.filename or root}: {error.strerror or error}") from error
    finally:
        files.close()


def read_queue(
    root: str,
    topic: str,
    queue_id: int,
    start: int = 0,
    disk: Disk | None = None,
    *,
    commit_log: str | None = None,
) -> Iterator[Record | str]:
    """The messages of a queue from number `start` on."""
    files = OpenFiles(disk or ReadOnlyDisk())
    try:
        log = _log(files, root, commit_log)
        directory = f"{root}/consumequeue/{topic}/{queue_id}"
        if files.disk.size(directory) is None:
            raise StoreError(f"{root} has no queue {queue_id} of topic {topic}")
        queue, _ = inspect_files(files, directory, "mappedFileSizeConsumeQueue")
        for at in range(max(start * ENTRY_SIZE, queue.start), queue.stop, ENTRY_SIZE):
            data = queue.read(at, ENTRY_SIZE)
            offset, size, code = ENTRY.unpack(data) if len(data) == ENTRY_SIZE else (0, 0, 0)
            if size == 0:
                break
            if size == BLANK_SIZE or code == LOST_CODE or offset < log.start:
                continue
            try:
                yield _decoded(read_record(log, offset)[1], offset)
            except NotARecord as fault:
                yield f"entry {at // ENTRY_SIZE}: {size} bytes at {offset} are no record ({fault})"
    except OSError as error:
        raise StoreError(f"cannot read {error.filename or root}: {error.strerror or error}") from error
    finally:
        files.close()


def _log(files: OpenFiles, root: str, commit_log: str | None) -> Segments:
    directory = commit_log or f"{root}/commitlog"
    if files.disk.size(directory) is None:
        raise StoreError(f"{root} is not a store directory: {directory} is missing (see --commit-log)")
    return inspect_files(files, directory, "mappedFileSizeCommitLog")[0]


def _decoded(data: bytes, offset: int) -> Record | str:
    try:
        return decode(data)
    except ProtocolError as error:
        return f"the record at {offset} cannot be decoded: {error}"
