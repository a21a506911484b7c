"""Checks every invariant of a store directory without changing anything.

    check(root) ->  files       names, lengths, files that do not belong there
                    commitlog   each record in full (CRC too), corrupt ranges, bytes after the end
                    queues      each record has its entry (offset, size, tags code) at its number; each entry has its record
                    index       names, headers, chains and slots of the files; of a sample of entries, the keys of their records
                    checkpoint, abort, config/*.json

A broker (ours or Java's) may be writing to the directory: data after the checkpoint may then be incomplete. The log is read once,
in order. Memory holds a window of entries per queue and the slots of one index file, so it depends on the number of queues, not
of messages. [no counterpart in Java]
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ariane.errors import ProtocolError, StoreError
from ariane.kernels.scanned_record import ScannedRecord
from ariane.protocol import fastjson
from ariane.store.check.check_index import check_index, index_files_of
from ariane.store.check.check_queues import QueueChecks
from ariane.store.check.check_report import ERROR, NOTE, WARNING, CheckFinding, inspect_files
from ariane.store.disk.files import Disk, OpenFiles, ReadOnlyDisk, read_whole
from ariane.store.disk.segments import Segments
from ariane.store.index.index_file import IndexSizes
from ariane.store.log import checkpoint as checkpoints
from ariane.store.log import corrupt_ranges
from ariane.store.log.checkpoint import Checkpoint
from ariane.store.log.record_scanner import CHUNK_BYTES, RecordScanner
from ariane.store.types import StoreConfig

__all__ = ["ERROR", "NOTE", "WARNING", "CheckFinding", "CheckSummary", "check"]

NOTHING = (1 << 63) - 1
_DEFAULTS = StoreConfig(root="")
DEFAULT_SIZES = IndexSizes(_DEFAULTS.index_slots, _DEFAULTS.index_entries)


class CheckSummary(msgspec.Struct):
    """Numbers of checked items; complete once `check` has ended."""

    files: int = 0
    records: int = 0
    bytes: int = 0
    queues: int = 0
    entries: int = 0


def check(
    root: str,
    disk: Disk | None = None,
    summary: CheckSummary | None = None,
    index_sizes: IndexSizes = DEFAULT_SIZES,
    commit_log: str | None = None,
) -> Iterator[CheckFinding]:
    """Yield the findings of a store directory.

    Args:
        index_sizes: layout of the key index files; files of another length are checked in part.
        commit_log: directory of the log if it is not `root`/commitlog.

    Raises:
        StoreError: `root` is not a store directory, or cannot be read.
    """
    commit_log = commit_log or f"{root}/commitlog"
    disk = disk or ReadOnlyDisk()
    summary = summary or CheckSummary()
    files = OpenFiles(disk)
    try:
        if disk.size(root) is None or disk.size(commit_log) is None:
            raise StoreError(f"{root} is not a store directory: {commit_log} is missing (see --commit-log)")
        is_running = disk.size(f"{root}/abort") is not None
        if is_running:
            yield CheckFinding(
                NOTE, f"{root}/abort", 0, "a broker is running, or the last one did not stop in order", ""
            )
        checkpoint, findings = _checkpoint(disk, root)
        yield from findings
        log, findings = inspect_files(files, commit_log, "mappedFileSizeCommitLog")
        yield from findings
        queues = QueueChecks(files, f"{root}/consumequeue")
        yield from queues.load()
        yield from _log(root, log, queues, checkpoint, summary, is_running=is_running)
        yield from queues.finish()
        log_end = log.start + summary.bytes
        yield from check_index(files, root, log, log_end, index_sizes, is_running=is_running)
        yield from _config(disk, root)
        summary.files += len(log.bases) + queues.files + index_files_of(disk, root)
        summary.queues, summary.entries = queues.count, queues.entries
    except OSError as error:
        raise StoreError(f"Cannot read {error.filename or root}: {error.strerror or error}") from error
    finally:
        files.close()


def _checkpoint(disk: Disk, root: str) -> tuple[Checkpoint, list[CheckFinding]]:
    path = f"{root}/checkpoint"
    data = read_whole(disk, path)
    if data is None:
        return Checkpoint(), [
            CheckFinding(WARNING, path, 0, "is missing", "start a broker: it scans the log and writes a new one")
        ]
    findings = []
    if len(data) != checkpoints.SIZE:
        findings.append(
            CheckFinding(
                WARNING,
                path,
                0,
                f"has {len(data)} bytes, not {checkpoints.SIZE}",
                "start a broker: it writes a new one",
            )
        )
    checkpoint = checkpoints.decode(data)
    if checkpoint.safe_offset is None and any(data):
        findings.append(
            CheckFinding(NOTE, path, 0, "Java wrote it last, or a write of it was torn: the safe offset is unknown", "")
        )
    return checkpoint, findings


def _log(
    root: str, log: Segments, queues: QueueChecks, checkpoint: Checkpoint, summary: CheckSummary, *, is_running: bool
) -> Iterator[CheckFinding]:
    """Check all records, file by file, and files that are missing between others."""
    safe = checkpoint.safe_offset
    # A running broker may not have dispatched its newest records yet; below the safe offset every record has its entry.
    complete_to = (safe or 0) if is_running else NOTHING
    end = log.start
    last_ms = 0
    times_back = 0
    while True:
        # Up to the safe offset everything was written, so that invalid bytes are damage; after it they may be a torn
        # write. The scan changes its rule there.
        is_sure = safe is not None and end < safe <= log.stop
        stop = safe if is_sure and safe is not None else NOTHING
        walk = RecordScanner(log, end, stop, check_crc=True, min_store_ms=0, all_written=is_sure)
        reported = 0
        for run in walk.runs():
            for corrupt in walk.corrupt_ranges[reported:]:
                yield _corrupt_range(log, corrupt.offset, corrupt.size, corrupt.reason)
            reported = len(walk.corrupt_ranges)
            times = run.scanned.times
            summary.records += run.scanned.records
            times_back += times.decreases + (times.first_ms < last_ms)
            last_ms = times.last_ms
            for offset in run.scanned.rollbacks:
                record = run.record_at(offset)
                if corrupt_ranges.is_replacement(record):
                    yield _closed(log, record, root)
            yield from queues.check_run(run, complete_to)
        for corrupt in walk.corrupt_ranges[reported:]:
            yield _corrupt_range(log, corrupt.offset, corrupt.size, corrupt.reason)
        end = walk.end
        later = [base for base in log.bases if base >= end]
        if is_sure and end == safe:
            continue
        # The scan ended within an existing file, or at the last one: this is the end of the log.
        if log.has(end) or not later:
            break
        yield CheckFinding(
            ERROR, log.path(end), 0, "this file is missing between others", "put it back, or move the later ones away"
        )
        end = later[0]
    summary.bytes = end - log.start
    if times_back:
        yield CheckFinding(NOTE, log.directory, 0, f"{times_back} records are older than the one before them", "")
    if safe is not None and end < safe:
        problem = f"the log ends at {end}, but everything below {safe} was on the disk"
        yield CheckFinding(
            ERROR, log.path(end - end % log.size), end % log.size, problem, "restore the files from a copy"
        )
    yield from _trailing_bytes(log, end, walk.stop_reason, is_running=is_running)


def _corrupt_range(log: Segments, offset: int, size: int, reason: str) -> CheckFinding:
    problem = f"{size} bytes at {offset} are not a record: {reason}"
    fix = "consumers get the valid records after it; a start that scans this range overwrites it (Java would cut the log here)"
    return CheckFinding(ERROR, log.path(offset - offset % log.size), offset % log.size, problem, fix)


def _closed(log: Segments, record: ScannedRecord, root: str) -> CheckFinding:
    reason = record.properties.decode("utf-8", "replace").partition("\x01")[2] or "unknown"
    problem = f"{record.size} bytes at {record.offset} were not a record and were overwritten by a start: {reason}"
    fix = f"the former bytes, if there were any, are below {corrupt_ranges.backup_directory(root)}"
    return CheckFinding(
        WARNING, log.path(record.offset - record.offset % log.size), record.offset % log.size, problem, fix
    )


def _trailing_bytes(log: Segments, end: int, reason: str, *, is_running: bool) -> Iterator[CheckFinding]:
    """Check the bytes after the last record: left by a crash, or just being written by a broker."""
    position: int | None = end
    remainder = 0
    while position is not None and log.has(position):
        following = position - position % log.size + log.size
        position = log.find_data(position)
        if position is None:
            position = following
            continue
        # Files are sparse: only their written parts are read.
        data = log.read(position, CHUNK_BYTES)
        remainder += len(data) - data.count(0)
        position += len(data)
    if remainder:
        problem = f"{remainder} bytes after the last record at {end} are not zero: {reason}"
        fix = "a start removes them"
        yield CheckFinding(
            NOTE if is_running else WARNING, log.path(end - end % log.size), end % log.size, problem, fix
        )


def _config(disk: Disk, root: str) -> Iterator[CheckFinding]:
    directory = f"{root}/config"
    if disk.size(directory) is None:
        return
    for name in disk.listdir(directory):
        path = f"{directory}/{name}"
        if not name.endswith((".json", ".json.bak")):
            continue
        try:
            fastjson.read(read_whole(disk, path) or b"")
        except ProtocolError as error:
            spare = name.endswith(".bak") or disk.size(f"{path}.bak") is None
            fix = (
                "restore it from a copy, or remove it to start without"
                if spare
                else f"a broker uses {name}.bak instead"
            )
            yield CheckFinding(ERROR, path, 0, f"cannot be parsed: {error}", fix)
        except OSError as error:
            fix = (
                "move it away: no broker starts with it"
                if isinstance(error, IsADirectoryError)
                else "give read access to it"
            )
            yield CheckFinding(ERROR, path, 0, f"cannot be read: {error.strerror or error}", fix)
