"""Frames: split the byte stream into commands and assemble it from them.

    length i32 = 4 + header + body | form u8 (0 JSON, 1 ROCKETMQ) | header length u24 | header | body

A frame has at most 16 MiB, including its length field. Every length is checked before data of that size is buffered, so a
FrameReader holds at most one frame and the rest of one socket read. [NettyDecoder, RemotingCommand]
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
    """One frame of the stream with its header still encoded."""

    form: int
    header: bytes
    body: bytes


class FrameReader:
    """Splits a byte stream into frames: `feed` takes received data and yields the frames that are complete.

    A ProtocolError means that the rest of the stream cannot be interpreted: close the connection.
    """

    def __init__(self, frame_max: int = FRAME_MAX) -> None:
        self._frame_max = frame_max
        self._buffer = bytearray()
        self._need = PREFIX_SIZE

    @property
    def waiting(self) -> int:
        """Number of buffered bytes of an unfinished frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Frame]:
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._need:
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        position, end = 0, len(data)
        while end - position >= PREFIX_SIZE:
            length, form_and_header = _PREFIX.unpack_from(data, position)
            header_size = form_and_header & 0xFFFFFF
            form = form_and_header >> 24
            if not 4 <= length <= self._frame_max - 4:
                raise ProtocolError(f"Invalid frame length {length}: expected 4 to {self._frame_max - 4}")
            if header_size > length - 4:
                raise ProtocolError(f"Invalid header length {header_size} in a frame of {length} bytes")
            if form > BINARY_FORM:
                raise ProtocolError(f"Unknown header form {form}: expected 0 (JSON) or 1 (ROCKETMQ)")
            stop = position + 4 + length
            if stop > end:
                self._need = stop - position
                break
            header_end = position + PREFIX_SIZE + header_size
            yield Frame(form, data[position + PREFIX_SIZE : header_end], data[header_end:stop])
            position = stop
        else:
            self._need = PREFIX_SIZE
        if position < end:
            self._buffer += data[position:] if position else data


def prefix(form: int, header_size: int, body_size: int) -> bytes:
    """Return the 8 bytes in front of header and body. Raise ProtocolError if the frame exceeds what peers accept."""
    length = 4 + header_size + body_size
    if length > FRAME_MAX - 4:
        raise ProtocolError(f"Frame of {length + 4} bytes is too large: peers accept at most {FRAME_MAX}")
    return _PREFIX.pack(length, form << 24 | header_size)
