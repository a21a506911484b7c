"""Cuts the end of a closed store's log, which another member's log does not have, and puts what it cut off aside.

    log    |---- same as the leader's ----|---- only here ----|
                                         end
    1  copy from `end` on to root/cut/<20 digits>-<number>, durably      readable by `ariane store cat FILE`
    2  mark the store as crashed, lower its checkpoint to `end`          queues, index and delays are derived again
    3  zero the log from `end` on

A cut is a loss of power that is known exactly: the next start recovers as after one. A crash between the steps leaves a store that
starts with its whole log, and is cut again.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable

from ariane.errors import StoreError
from ariane.kernels.scanned_record import NotARecord
from ariane.protocol.records.record import FILLER_MAGIC, SIZE_AND_MAGIC
from ariane.store.disk.file_loading import load_log
from ariane.store.disk.files import Disk, OpenFiles, write_error
from ariane.store.disk.segments import NAME_DIGITS, Segments
from ariane.store.log.checkpoint import REBUILDING, CheckpointFile, read_checkpoint
from ariane.store.log.record_scanner import CHUNK_BYTES, RecordScanner, read_record
from ariane.store.recovery.store_directory import claim, is_running_or_crashed, mark_running, release
from ariane.store.types import StoreConfig

CUT_DIRECTORY = "cut"


def cut_log(config: StoreConfig, disk: Disk, end: int, log_end: int) -> str:
    """Cut the log of a closed store and return the file with what was cut off; "" if nothing was.

    Args:
        end: Start of a record; the log ends there afterwards.
        log_end: Where the log ends now.

    Raises:
        StoreLocked: the store is open.
        StoreError: no record begins at `end`, or the disk fails. The log is as it was then.
    """
    if end >= log_end:
        return ""
    locks = claim(config, disk)
    files = OpenFiles(disk, config.open_files_max)
    try:
        checkpoint = CheckpointFile(files, f"{config.root}/checkpoint")
        flushed = checkpoint.latest.safe_offset
        log = load_log(files, config.log_directory, config.commit_log_size, clean=True, flushed=flushed).segments
        _check_boundary(log, end)
        path = _copy_aside(disk, config.root, log, end, log_end)
        mark_running(files, config.root)
        if flushed is not None:
            keys = checkpoint.latest.indexed_offset
            lowered = checkpoint.latest._replace(
                safe_offset=min(flushed, end), indexed_offset=None if keys is None else min(keys, end)
            )
            checkpoint.lower(lowered)
        # Its marks may cover deliveries that are cut off; without it they are read from the log.
        if disk.size(state := f"{config.root}/timers/state") is not None:
            disk.remove(state)
            disk.fsync_dir(f"{config.root}/timers")
        log.truncate(end)
        if log.has(end):
            disk.fsync(files.get(log.path(end - end % log.size)))
        disk.fsync_dir(config.log_directory)
        return path
    except OSError as error:
        raise write_error(error, error.filename or config.root) from error
    finally:
        files.close()
        release(disk, locks)


def last_readable(config: StoreConfig, disk: Disk) -> tuple[int, int] | None:
    """Read a closed log below its checkpoint, which a damaged file system may lack in part.

    Returns:
        Start of the last record before the loss (or of the log), and the end of the log's files; None if nothing is lost.

    Raises:
        OSError, StoreError: the log cannot be read.
    """
    files = OpenFiles(disk, config.open_files_max)
    try:
        flushed = read_checkpoint(disk, f"{config.root}/checkpoint").safe_offset
        if flushed is None or disk.size(config.log_directory) is None:
            return None
        clean = not is_running_or_crashed(disk, config.root)
        log = load_log(files, config.log_directory, config.commit_log_size, clean=clean, flushed=flushed).segments
        if not log.bases:
            return None  # the log is elsewhere, and the start is refused
        scanner, last = RecordScanner(log, log.start, min(flushed, log.stop), check_crc=True), log.start
        for run in scanner.runs():
            last = run.offset
        if scanner.end >= flushed:
            return None
        return max(
            (record.offset for record in RecordScanner(log, last, scanner.end, check_crc=False)), default=last
        ), log.stop
    finally:
        files.close()


def distrust_queues(config: StoreConfig, disk: Disk) -> None:
    """Make the next start of a closed store rebuild its queues: a damaged file system may lack entries below the checkpoint.

    Raises:
        StoreLocked: the store is open.
        OSError: the checkpoint cannot be written.
    """
    if disk.size(config.root) is None:
        return
    locks = claim(config, disk)
    files = OpenFiles(disk, config.open_files_max)
    try:
        checkpoint = CheckpointFile(files, f"{config.root}/checkpoint")
        if checkpoint.latest.safe_offset is not None:  # otherwise they are compared with the log, as those of Java
            checkpoint.lower(checkpoint.latest._replace(logics_ms=0, queue_files=REBUILDING))
    finally:
        files.close()
        release(disk, locks)


def _check_boundary(log: Segments, end: int) -> None:
    if not log.start <= end < log.stop:
        raise StoreError(f"The log in {log.directory} cannot be cut at {end}: it has {log.start} to {log.stop}")
    if SIZE_AND_MAGIC.unpack(log.read(end, SIZE_AND_MAGIC.size).ljust(SIZE_AND_MAGIC.size, b"\0"))[1] == FILLER_MAGIC:
        return
    try:
        read_record(log, end)
    except NotARecord as fault:
        raise StoreError(
            f"The log in {log.directory} cannot be cut at {end}, where no record begins: {fault}"
        ) from fault


def move_aside(disk: Disk, root: str, base: int, source: str) -> None:
    """Move a whole file of a closed log, which begins at `base`, to the directory `cut`.

    Raises:
        OSError: it cannot be moved.
    """
    path = _free_path(disk, root, base)
    try:
        disk.rename(source, path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # storePathCommitLog may be on another disk.
        size = disk.size(source) or 0
        origin = disk.open(source)
        try:
            _write_aside(disk, path, size, lambda offset, length: disk.pread(origin, length, offset))
        finally:
            disk.close(origin)
        disk.fsync_dir(path.rpartition("/")[0])
        disk.remove(source)
    else:
        disk.fsync_dir(path.rpartition("/")[0])
        handle = disk.open(path)
        try:
            disk.pwrite(handle, disk.pread(handle, 1, 0), 0)  # its age counts from now on, as that of a copy
        finally:
            disk.close(handle)


def _free_path(disk: Disk, root: str, start: int) -> str:
    directory = f"{root}/{CUT_DIRECTORY}"
    for parent in disk.make_dirs(directory):
        disk.fsync_dir(parent)
    number = 1
    while disk.size(path := f"{directory}/{start:0{NAME_DIGITS}d}-{number}") is not None:
        number += 1
    return path


def _copy_aside(disk: Disk, root: str, log: Segments, start: int, end: int) -> str:
    def read(offset: int, length: int) -> bytes:
        at = start + offset
        if log.has(at) or at >= log.stop:
            return log.read(at, length)
        return bytes(min(length, log.size - at % log.size))  # a file system that failed lacks this file

    path = _free_path(disk, root, start)
    _write_aside(disk, path, end - start, read)
    disk.fsync_dir(path.rpartition("/")[0])
    return path


def _write_aside(disk: Disk, path: str, size: int, read: Callable[[int, int], bytes]) -> None:
    handle = disk.create(path, size)
    try:
        offset = 0
        while offset < size:
            data = read(offset, min(CHUNK_BYTES, size - offset))
            if not data:
                raise StoreError(f"The log ends before {path} has {size} bytes of it: nothing was cut")
            disk.pwrite(handle, data, offset)
            offset += len(data)
        disk.fsync(handle)
    except BaseException:
        disk.close(handle)
        with contextlib.suppress(OSError):  # each attempt would leave another part on a full disk
            disk.remove(path)
        raise
    disk.close(handle)
