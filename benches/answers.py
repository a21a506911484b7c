"""Answers as a loader reads them: whole frames, and by a look at the header's bytes what it has to know of one.

A loader that decoded every answer would measure itself. All loaders here drive one connection with a bounded number of requests
in flight, look at length, code and opaque of an answer, and end the run at one that they did not expect.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

OPAQUE = 1_000_000_000  # ten digits, so that it can be replaced in place
READ_MAX = 1 << 20


def connected(addr: str) -> socket.socket:
    host, _, port = addr.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Answers:
    """Frames of a connection: `read` waits for at least some bytes and gives what is whole by then, header and body."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest: list[bytes] = []  # joined once a frame is whole: answers of pulls take several reads
        self._size = 0
        self._need = 4

    def read(self) -> Iterator[tuple[bytes, bytes]]:
        data = self._connection.recv(READ_MAX)
        if not data:
            raise SystemExit("the broker closed the connection")
        self._rest.append(data)
        self._size += len(data)
        if self._size < self._need:
            return
        data = b"".join(self._rest) if len(self._rest) > 1 else data
        at, size = 0, len(data)
        self._need = 4
        while size - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > size:
                self._need = end - at
                break
            header_end = at + 8 + int.from_bytes(data[at + 5 : at + 8], "big")
            yield data[at + 8 : header_end], data[header_end:end]
            at = end
        self._rest = [data[at:]] if at < size else []
        self._size = size - at


def accepted(header: bytes) -> int:
    """The opaque of an answer that says SUCCESS; ends the run at any other answer."""
    if b'"code":0,' not in header:
        raise SystemExit(f"refused: {header!r}")
    return number(header, b'"opaque":')


def number(header: bytes, before: bytes) -> int:
    """The number that follows these bytes."""
    at = header.index(before) + len(before)
    end = at
    while header[end] in b"-0123456789":
        end += 1
    return int(header[at:end])


def percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
