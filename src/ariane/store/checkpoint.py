"""The checkpoint: how far the log and what is derived from it had reached the disk when it was last written.

    0   i64  physic msg timestamp    store time of the last flushed record
    8   i64  logics msg timestamp    store time of the last record whose consume queue entry is flushed
    16  i64  index msg timestamp     kept as it was found: this store builds no index files
    24  8 B  b"ariane01"             from here on our own; Java reads 24 bytes and leaves the rest alone
    32  i64  safe offset             a record boundary; all below is flushed, in the log and in the queues
    40  i64  queue files             how many files all consume queues had together: with fewer, some were lost
    48  u32  CRC-32 of bytes 0..47   covers Java's part too: when Java has moved a timestamp on, ours no longer counts
    52..4095 zeros

With the safe offset a start reads the log from there on, and not from the beginning of a file. Without it (a directory that
Java wrote last, a torn write) Java's own rules for the start position apply, see `recovery`. [StoreCheckpoint]
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import NamedTuple

SIZE = 4096
MARGIN_MS = 3000  # Java's: entries with close store times may have been flushed in another order
_MARK = b"ariane01"
_TIMES = Struct(">qqq")
_LAYOUT = Struct(">qqq8sqq")
_CRC = Struct(">I")


class Checkpoint(NamedTuple):
    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0
    safe_offset: int | None = None  # None: not written by this store, or torn
    queue_files: int = 0

    def min_ms(self) -> int:
        """Records stored up to here were flushed in both forms, by Java's rule."""
        return max(0, min(self.physic_ms, self.logics_ms) - MARGIN_MS)


def encode(checkpoint: Checkpoint) -> bytes:
    safe_offset = checkpoint.safe_offset
    if safe_offset is None:
        return _TIMES.pack(*checkpoint[:3]).ljust(SIZE, b"\0")
    data = _LAYOUT.pack(*checkpoint[:3], _MARK, safe_offset, checkpoint.queue_files)
    return (data + _CRC.pack(zlib.crc32(data))).ljust(SIZE, b"\0")


def decode(data: bytes) -> Checkpoint:
    """Any content is accepted: a checkpoint can only save time, never be the reason not to start."""
    if len(data) < _TIMES.size:
        return Checkpoint()
    physic_ms, logics_ms, index_ms = _TIMES.unpack_from(data)
    if len(data) >= _LAYOUT.size + _CRC.size:
        *_, mark, safe_offset, queue_files = _LAYOUT.unpack_from(data)
        (crc,) = _CRC.unpack_from(data, _LAYOUT.size)
        if mark == _MARK and crc == zlib.crc32(data[: _LAYOUT.size]) and safe_offset >= 0 and queue_files >= 0:
            return Checkpoint(physic_ms, logics_ms, index_ms, safe_offset, queue_files)
    return Checkpoint(physic_ms, logics_ms, index_ms)
