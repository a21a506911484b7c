"""The replication stream between a master and its slaves, without I/O. [HAService, HAConnection]

    slave → master   i64 end of the slave's commit log; the first report is the start offset, later ones acknowledge
    master → slave   i64 commit log offset | i32 size | size bytes of the log; size 0: heartbeat

The bytes are those of the log, split anywhere but never across the end of a file. A slave with an empty log reports 0.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from ariane.errors import ProtocolError

_REPORT = Struct(">q")
REPORT_SIZE = _REPORT.size
_HEAD = Struct(">qi")
SIZE_MAX = 4 << 20  # bytes of a frame including its header; the buffer of a Java slave has this size


class ReplicationChunk(NamedTuple):
    offset: int
    data: bytes


def report(offset: int) -> bytes:
    return _REPORT.pack(offset)


def frame_head(offset: int, size: int) -> bytes:
    return _HEAD.pack(offset, size)


class AckReader:
    """Decodes the reports of a slave; of all received ones only the last complete report counts."""

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> int | None:
        """Return the last complete report in the data received so far; None if there is none."""
        data = self._partial + data
        end = len(data) // _REPORT.size * _REPORT.size
        self._partial = data[end:]
        if not end:
            return None
        (offset,) = _REPORT.unpack_from(data, end - _REPORT.size)
        if offset < 0:
            raise ProtocolError(f"Invalid offset {offset} in the report of a slave")
        return int(offset)


class ReplicationChunkReader:
    """Decodes the chunks of a master."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[ReplicationChunk]:
        """Return the chunks that are complete now, including heartbeats (without data)."""
        buffer = self._buffer
        buffer += data
        chunks: list[ReplicationChunk] = []
        position = 0
        while len(buffer) - position >= _HEAD.size:
            offset, size = _HEAD.unpack_from(buffer, position)
            if offset < 0 or not 0 <= size <= SIZE_MAX - _HEAD.size:
                raise ProtocolError(f"Invalid chunk of a master: {size} bytes for offset {offset}")
            if len(buffer) - position < _HEAD.size + size:
                break
            position += _HEAD.size
            chunks.append(ReplicationChunk(offset, bytes(buffer[position : position + size])))
            position += size
        del buffer[:position]
        return chunks
