"""Frames: how commands are cut out of the byte stream, and put into it.

    length i32 = 4 + header + body | form u8 (0 JSON, 1 ROCKETMQ) | header length u24 | header | body

A frame has at most 16 MiB, its length field included. Every length is checked before anything of its size is kept, so
what waits in a FrameReader is at most one frame and what the socket read with it. [NettyDecoder, RemotingCommand]
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from ariane.errors import ProtocolError

FRAME_MAX = 16 * 1024 * 1024
JSON_FORM = 0
BINARY_FORM = 1

_PREFIX = Struct(">iI")
PREFIX_SIZE = _PREFIX.size


class Frame(NamedTuple):
    """One frame of the stream, its header still undecoded."""

    form: int
    header: bytes
    body: bytes


class FrameReader:
    """Cuts a stream into frames: `feed` it what was read, it gives the frames that are whole by then.

    ProtocolError means the stream cannot be followed any further: the connection is to be closed.
    """

    def __init__(self, frame_max: int = FRAME_MAX) -> None:
        self._frame_max = frame_max
        self._rest = bytearray()
        self._need = PREFIX_SIZE

    @property
    def waiting(self) -> int:
        """Bytes of an unfinished frame."""
        return len(self._rest)

    def feed(self, data: bytes) -> Iterator[Frame]:
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                return
            data = bytes(self._rest)
            self._rest.clear()
        at, end = 0, len(data)
        while end - at >= PREFIX_SIZE:
            length, form_and_header = _PREFIX.unpack_from(data, at)
            header_size = form_and_header & 0xFFFFFF
            form = form_and_header >> 24
            if not 4 <= length <= self._frame_max - 4:
                raise ProtocolError(f"frame length {length} is not within 4 and {self._frame_max - 4}")
            if header_size > length - 4:
                raise ProtocolError(f"header length {header_size} does not fit into a frame of {length} bytes")
            if form > BINARY_FORM:
                raise ProtocolError(f"header form {form} is unknown (0 is JSON, 1 is ROCKETMQ)")
            stop = at + 4 + length
            if stop > end:
                self._need = stop - at
                break
            header_end = at + PREFIX_SIZE + header_size
            yield Frame(form, data[at + PREFIX_SIZE : header_end], data[header_end:stop])
            at = stop
        else:
            self._need = PREFIX_SIZE
        if at < end:
            self._rest += data[at:] if at else data


def prefix(form: int, header_size: int, body_size: int) -> bytes:
    """The 8 bytes before header and body. ProtocolError when the frame would be larger than a peer accepts."""
    length = 4 + header_size + body_size
    if length > FRAME_MAX - 4:
        raise ProtocolError(f"a frame of {length + 4} bytes is larger than the {FRAME_MAX} that peers accept")
    return _PREFIX.pack(length, form << 24 | header_size)
