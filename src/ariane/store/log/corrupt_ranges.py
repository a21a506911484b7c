"""Overwrites corrupt ranges of the commit log with records that no consumer gets, so that a scan can pass over them.

    before   | good record | damaged ................ | good record |
    after    | good record | ROLLBACK record          | good record |      of PIECE_MAX bytes at most, else several
    or       | good record | filler                                |      if the range reaches the end of its file

A record of a rolled-back transaction gets no entry in any queue and none in an index, here and in Java, so both scan over it.
Its FLAG is `HOLE`, its topic `rmq_sys_DAMAGED` (cut short if the range is small), its property DAMAGED has the reason; the other
bytes stay as they were. All former bytes are first copied to ROOT/damaged/<20 digits: offset of the range>, for analysis.
If the disk refuses any of this, the range stays as it is and is skipped again.
"""

from __future__ import annotations

from ariane.kernels.scanned_record import ScannedRecord
from ariane.model.host import PACKED_V4
from ariane.model.message import TRANSACTION_ROLLBACK
from ariane.protocol.records.record import BODY_AT, FIXED_SIZE, encode, filler
from ariane.store.disk.files import OpenFiles
from ariane.store.disk.segments import NAME_DIGITS, Segments
from ariane.store.log.record_scanner import CHUNK_BYTES, CorruptRange

FLAG = int.from_bytes(b"HOLE", "big")
TOPIC = b"rmq_sys_DAMAGED"
REASON_MAX = 200  # bytes of the reason that are stored
PIECE_MAX = 1 << 20  # Java reads a record as a whole
DIRECTORY = "damaged"
_NO_HOST = bytes(PACKED_V4)


def backup_directory(root: str) -> str:
    return f"{root}/{DIRECTORY}"


def is_replacement(record: ScannedRecord) -> bool:
    """Return whether a record was written by this module in place of a corrupt range."""
    return record.sys_flag == TRANSACTION_ROLLBACK and record.queue_id == 0 and TOPIC.startswith(record.topic)


def overwrite(files: OpenFiles, log: Segments, corrupt: CorruptRange, store_ms: int, directory: str) -> str:
    """Overwrite a corrupt range, and return a line that says what was done; the caller fsyncs the file.

    Args:
        store_ms: store time of the record before the range.
        directory: receives a copy of the former bytes.
    """
    last = corrupt.offset % log.size + corrupt.size == log.size
    if not last and corrupt.size < FIXED_SIZE:
        return f"{corrupt}: skipped, too small to be overwritten"
    try:
        copied_to = _copy(files, log, corrupt, directory)
        if last:
            log.write(corrupt.offset, filler(corrupt.size))
        else:
            offset, stop = corrupt.offset, corrupt.offset + corrupt.size
            while offset < stop:
                remainder = stop - offset
                size = remainder if remainder <= PIECE_MAX else min(PIECE_MAX, remainder - FIXED_SIZE)
                log.write(offset, _record(log.read(offset, size), offset, corrupt.reason, store_ms))
                offset += size
    except OSError as error:
        return f"{corrupt}: skipped, could not be overwritten: {error}"
    return (
        f"{corrupt}: skipped; {'its bytes were copied to ' + copied_to if copied_to else 'nothing was written there'}"
    )


def _record(former: bytes, offset: int, reason: str, store_ms: int) -> bytes:
    """Return a record of exactly this size, whose body is the part of the former bytes that the record's fields do not cover."""
    room = len(former) - FIXED_SIZE
    topic = TOPIC[:room]
    properties = f"DAMAGED\x01{reason}".encode()[: min(REASON_MAX, room - len(topic))]
    if len(properties) < len(b"DAMAGED\x01magic"):
        properties = b""
    body_size = room - len(topic) - len(properties)
    return encode(
        topic,
        former[BODY_AT : BODY_AT + body_size],
        properties,
        queue_id=0,
        queue_offset=0,
        offset=offset,
        born_ms=store_ms,
        born_host=_NO_HOST,
        store_ms=store_ms,
        store_host=_NO_HOST,
        flag=FLAG,
        sys_flag=TRANSACTION_ROLLBACK,
    )


def _copy(files: OpenFiles, log: Segments, corrupt: CorruptRange, directory: str) -> str:
    """Copy the bytes of a corrupt range to a file of their own, durably; return its path, or "" if all bytes are zero."""
    disk = files.disk
    stop = corrupt.offset + corrupt.size
    if not any(
        log.read(offset, min(CHUNK_BYTES, stop - offset)).strip(b"\0")
        for offset in range(corrupt.offset, stop, CHUNK_BYTES)
    ):
        return ""
    path = f"{directory}/{corrupt.offset:0{NAME_DIGITS}d}"
    for parent in disk.make_dirs(directory):
        disk.fsync_dir(parent)
    if disk.size(path) is not None:
        return path  # written by a start that lost power later: it saw more of the range
    temporary = path + ".tmp"
    if disk.size(temporary) is not None:
        disk.remove(temporary)
    handle = disk.create(temporary, corrupt.size)
    try:
        for offset in range(corrupt.offset, stop, CHUNK_BYTES):
            disk.pwrite(handle, log.read(offset, min(CHUNK_BYTES, stop - offset)), offset - corrupt.offset)
        disk.fsync(handle)
    finally:
        disk.close(handle)
    disk.rename(temporary, path)
    disk.fsync_dir(directory)
    return path
