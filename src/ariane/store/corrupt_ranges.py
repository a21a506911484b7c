"""A hole in the commit log is made walkable: what is no record is overwritten by records that nobody is given.

    before   | good record | damaged ................ | good record |
    after    | good record | ROLLBACK record          | good record |      of PIECE_MAX bytes at most, else several
    or       | good record | filler                                |      when it reaches to the end of its file

A record of a rolled-back transaction gets no entry in any queue and none in an index, here and in Java, so both walk over it.
Its FLAG is `HOLE`, its topic `rmq_sys_DAMAGED` (cut short when there is no room), its property DAMAGED says why; in between the
bytes stay as they were. All bytes that were there are first copied to ROOT/damaged/<20 digits: offset of the hole>, for whoever
can make sense of them. Everything here is tried; a disk that refuses leaves the hole as it is, to be passed over again.
"""

from __future__ import annotations

from ariane.model.host import PACKED_V4
from ariane.model.message import TRANSACTION_ROLLBACK
from ariane.protocol.record import BODY_AT, FIXED_SIZE, encode, filler
from ariane.store.files import OpenFiles
from ariane.store.record_scanner import CHUNK_BYTES, CorruptRange, ScannedRecord
from ariane.store.segments import NAME_DIGITS, Segments

FLAG = int.from_bytes(b"HOLE", "big")
TOPIC = b"rmq_sys_DAMAGED"
WHY_MAX = 200  # bytes of the reason that are kept
PIECE_MAX = 1 << 20  # Java reads a record whole
DIRECTORY = "damaged"
_NOWHERE = bytes(PACKED_V4)


def backup_directory(root: str) -> str:
    return f"{root}/{DIRECTORY}"


def is_replacement(found: ScannedRecord) -> bool:
    """Whether a record was written here to close a hole."""
    return found.sys_flag == TRANSACTION_ROLLBACK and found.queue_id == 0 and TOPIC.startswith(found.topic)


def overwrite(files: OpenFiles, log: Segments, hole: CorruptRange, store_ms: int, directory: str) -> str:
    """Overwrite `hole`; the caller fsyncs the file. Return what was done, in words.

    `store_ms` is that of the record before; the former bytes are copied to `directory`.
    """
    last = hole.offset % log.size + hole.size == log.size
    if not last and hole.size < FIXED_SIZE:
        return f"{hole}: passed over, too small to be overwritten"
    try:
        kept = _copy(files, log, hole, directory)
        if last:
            log.write(hole.offset, filler(hole.size))
        else:
            at, stop = hole.offset, hole.offset + hole.size
            while at < stop:
                rest = stop - at
                size = rest if rest <= PIECE_MAX else min(PIECE_MAX, rest - FIXED_SIZE)
                log.write(at, _record(log.read(at, size), at, hole.reason, store_ms))
                at += size
    except OSError as error:
        return f"{hole}: passed over, could not be overwritten: {error}"
    return f"{hole}: passed over; {'what was there is kept in ' + kept if kept else 'nothing was written there'}"


def _record(there: bytes, offset: int, why: str, store_ms: int) -> bytes:
    """A record of just this size; the bytes that are not its head, topic or properties are its body."""
    room = len(there) - FIXED_SIZE
    topic = TOPIC[:room]
    properties = f"DAMAGED\x01{why}".encode()[: min(WHY_MAX, room - len(topic))]
    if len(properties) < len(b"DAMAGED\x01magic"):
        properties = b""
    body_size = room - len(topic) - len(properties)
    return encode(
        topic,
        there[BODY_AT : BODY_AT + body_size],
        properties,
        queue_id=0,
        queue_offset=0,
        offset=offset,
        born_ms=store_ms,
        born_host=_NOWHERE,
        store_ms=store_ms,
        store_host=_NOWHERE,
        flag=FLAG,
        sys_flag=TRANSACTION_ROLLBACK,
    )


def _copy(files: OpenFiles, log: Segments, hole: CorruptRange, directory: str) -> str:
    """Copy the bytes of `hole` to a file of their own, durably; its path, or "" when there are only zeros."""
    disk = files.disk
    stop = hole.offset + hole.size
    if not any(log.read(at, min(CHUNK_BYTES, stop - at)).strip(b"\0") for at in range(hole.offset, stop, CHUNK_BYTES)):
        return ""
    path = f"{directory}/{hole.offset:0{NAME_DIGITS}d}"
    for parent in disk.make_dirs(directory):
        disk.fsync_dir(parent)
    if disk.size(path) is not None:
        return path  # of a start that lost power meanwhile: it saw more of it
    beside = path + ".tmp"
    if disk.size(beside) is not None:
        disk.remove(beside)
    handle = disk.create(beside, hole.size)
    try:
        for at in range(hole.offset, stop, CHUNK_BYTES):
            disk.pwrite(handle, log.read(at, min(CHUNK_BYTES, stop - at)), at - hole.offset)
        disk.fsync(handle)
    finally:
        disk.close(handle)
    disk.rename(beside, path)
    disk.fsync_dir(directory)
    return path
