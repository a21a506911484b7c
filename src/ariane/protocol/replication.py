"""The replication stream between a master and its slaves, sans I/O. [HAService, HAConnection]

    slave → master   i64 how far the slave's commit log reaches; the first says where to begin, the later ones acknowledge
    master → slave   i64 commit log offset | i32 size | size bytes of the log; size 0: nothing new, and still there

The bytes are the log's own, cut anywhere but never across the end of a file. A slave whose log is empty reports 0.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from ariane.errors import ProtocolError

_REPORT = Struct(">q")
_HEAD = Struct(">qi")
SIZE_MAX = 4 << 20  # of a frame with its header; a Java slave's buffer is as large


class ReplicationChunk(NamedTuple):
    offset: int
    data: bytes


def report(offset: int) -> bytes:
    return _REPORT.pack(offset)


def frame_head(offset: int, size: int) -> bytes:
    return _HEAD.pack(offset, size)


class AckReader:
    """What a slave sends: of all that has come in, only the last whole report counts."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """The last report in what has come so far; None when none is complete."""
        data = self._rest + data
        whole = len(data) // _REPORT.size * _REPORT.size
        self._rest = data[whole:]
        if not whole:
            return None
        (offset,) = _REPORT.unpack_from(data, whole - _REPORT.size)
        if offset < 0:
            raise ProtocolError(f"a slave reports the offset {offset}")
        return int(offset)


class ReplicationChunkReader:
    """What a master sends."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[ReplicationChunk]:
        """The chunks that are complete now, heartbeats (no data) among them."""
        buffer = self._buffer
        buffer += data
        found: list[ReplicationChunk] = []
        at = 0
        while len(buffer) - at >= _HEAD.size:
            offset, size = _HEAD.unpack_from(buffer, at)
            if offset < 0 or not 0 <= size <= SIZE_MAX - _HEAD.size:
                raise ProtocolError(f"a master sends {size} bytes for the offset {offset}")
            if len(buffer) - at < _HEAD.size + size:
                break
            at += _HEAD.size
            found.append(ReplicationChunk(offset, bytes(buffer[at : at + size])))
            at += size
        del buffer[:at]
        return found
