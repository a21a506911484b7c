"""The checkpoint: up to where the log and the derived files are durable.

    0   i64  physic msg timestamp    store time of the last flushed record
    8   i64  logics msg timestamp    store time of the last record whose consume queue entry is flushed
    16  i64  index msg timestamp     store time of the last record in the newest full index file that is flushed
    24  8 B  b"ariane01"             our own part from here on; Java reads 24 bytes and leaves the rest as it is
    32  i64  safe offset             a record boundary; everything below is flushed, in the log and in the queues
    40  i64  queue files             number of files of all consume queues: with fewer, some were lost
    48  u32  CRC-32 of bytes 0..47   covers Java's part too: once Java has changed a timestamp, our part does not count
    52  4 B  b"aix1"                 with a key index only:
    56  i64  indexed offset          a record boundary; the keys of all records below are flushed
    64  i64  index files             number of index files: with fewer, some were lost
    72  u32  CRC-32 of bytes 0..71
    76  4 B  b"alog"             start of the log; missing in checkpoints of earlier versions
    80  i64  log start           offset of the first commit log file; a later one than this was not removed by the broker
    88  u32  CRC-32 of bytes 0..87
    92..4095 zeros

With the safe offset a start scans the log from there on, and not from the beginning of a file. Without it (a directory that
Java wrote last, a torn write) Java's own rules for the start of the scan apply, see `recovery`. [StoreCheckpoint]
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import NamedTuple

from ariane.store.disk.files import Disk, OpenFiles, read_whole

SIZE = 4096
REBUILDING = 1 << 62  # number of queue files while all queues are rebuilt: a start that finds it rebuilds them again
REBUILDING_JAVA = REBUILDING + 1  # the same, of a log that Java wrote last
MARGIN_MS = 3000  # Java's: entries with close store times may have been flushed in another order
_MARK = b"ariane01"
_TIMES = Struct(">qqq")
_LAYOUT = Struct(">qqq8sqq")
_CRC = Struct(">I")
_INDEX_MARK = b"aix1"
_INDEX = Struct(">4sqq")
_INDEX_AT = _LAYOUT.size + _CRC.size
_LOG_MARK = b"alog"
_LOG = Struct(">4sq")
_LOG_AT = _INDEX_AT + _INDEX.size + _CRC.size


class Checkpoint(NamedTuple):
    physic_ms: int = 0  # store time of the last flushed record of the log. The three times are Java's
    logics_ms: int = 0  # the same of the consume queues
    index_ms: int = 0  # the same of the key index
    safe_offset: int | None = None  # None: not written by this store, or torn
    queue_files: int = 0  # number of consume queue files: a start that finds fewer rebuilds the queues
    indexed_offset: int | None = None  # None: there was no key index
    index_files: int = 0  # number of index files, for the same reason
    log_start: int | None = None  # None: not recorded

    def min_ms(self) -> int:
        """Return the store time up to which records are flushed in the log and in the queues, by Java's rule."""
        return max(0, min(self.physic_ms, self.logics_ms) - MARGIN_MS)

    @property
    def is_of_java(self) -> bool:
        """Whether a Java broker wrote it last, also if a rebuild after that has not ended; True without a checkpoint, too."""
        return self.safe_offset is None or self.queue_files == REBUILDING_JAVA


def encode(checkpoint: Checkpoint) -> bytes:
    safe_offset = checkpoint.safe_offset
    if safe_offset is None:
        return _TIMES.pack(*checkpoint[:3]).ljust(SIZE, b"\0")
    data = _LAYOUT.pack(*checkpoint[:3], _MARK, safe_offset, checkpoint.queue_files)
    data += _CRC.pack(zlib.crc32(data))
    if checkpoint.indexed_offset is not None:
        data += _INDEX.pack(_INDEX_MARK, checkpoint.indexed_offset, checkpoint.index_files)
        data += _CRC.pack(zlib.crc32(data))
    if checkpoint.log_start is not None:
        data = data.ljust(_LOG_AT, b"\0") + _LOG.pack(_LOG_MARK, checkpoint.log_start)
        data += _CRC.pack(zlib.crc32(data))
    return data.ljust(SIZE, b"\0")


def decode(data: bytes) -> Checkpoint:
    """Decode a checkpoint. Any content is accepted: a checkpoint can only save time, never prevent a start."""
    if len(data) < _TIMES.size:
        return Checkpoint()
    physic_ms, logics_ms, index_ms = _TIMES.unpack_from(data)
    if len(data) >= _LAYOUT.size + _CRC.size:
        *_, mark, safe_offset, queue_files = _LAYOUT.unpack_from(data)
        (crc,) = _CRC.unpack_from(data, _LAYOUT.size)
        if mark == _MARK and crc == zlib.crc32(data[: _LAYOUT.size]) and safe_offset >= 0 and queue_files >= 0:
            checkpoint = Checkpoint(physic_ms, logics_ms, index_ms, safe_offset, queue_files)
            return _with_log(_with_index(checkpoint, data), data)
    return Checkpoint(physic_ms, logics_ms, index_ms)


def _with_index(checkpoint: Checkpoint, data: bytes) -> Checkpoint:
    end = _INDEX_AT + _INDEX.size
    if len(data) >= end + _CRC.size:
        mark, indexed_offset, index_files = _INDEX.unpack_from(data, _INDEX_AT)
        (crc,) = _CRC.unpack_from(data, end)
        if mark == _INDEX_MARK and crc == zlib.crc32(data[:end]) and indexed_offset >= 0 and index_files >= 0:
            return checkpoint._replace(indexed_offset=indexed_offset, index_files=index_files)
    return checkpoint


def _with_log(checkpoint: Checkpoint, data: bytes) -> Checkpoint:
    end = _LOG_AT + _LOG.size
    if len(data) >= end + _CRC.size:
        mark, log_start = _LOG.unpack_from(data, _LOG_AT)
        (crc,) = _CRC.unpack_from(data, end)
        if mark == _LOG_MARK and crc == zlib.crc32(data[:end]) and log_start >= 0:
            return checkpoint._replace(log_start=log_start)
    return checkpoint


def read_checkpoint(disk: Disk, path: str) -> Checkpoint:
    """Return the checkpoint at `path`; a missing or damaged one counts as empty."""
    return decode(read_whole(disk, path) or b"")


def reserve(files: OpenFiles, path: str) -> None:
    """Create the file at its full size, so that a checkpoint can be written on a full disk."""
    size = files.disk.size(path)
    if size is None:
        files.disk.close(files.disk.create(path, SIZE))
    elif size < SIZE:
        files.disk.truncate(files.get(path), SIZE)


class CheckpointFile:
    """The checkpoint of an open store: what is on the disk, and what the next flush will have written."""

    def __init__(self, files: OpenFiles, path: str) -> None:
        self.path = path
        self._files = files
        # Passed to the last flush, or read at start: a flush that would write the same again is not needed.
        self.latest = read_checkpoint(files.disk, path)
        # On the disk for certain: only this one allows files to be removed.
        self.durable = self.latest

    def lower(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint that covers less, durably, before what it no longer covers is changed."""
        handle = self._files.get(self.path)
        self._files.disk.pwrite(handle, encode(checkpoint), 0)
        self._files.disk.fsync(handle)
        self.latest = self.durable = checkpoint
