"""Frames: split the byte stream into commands and assemble it from them.

    length i32 = 4 + header + body | form u8 (0 JSON, 1 ROCKETMQ) | header length u24 | header | body

A frame has at most 16 MiB, including its length field. Every length is checked before data of that size is buffered, so a
FrameReader holds at most one frame and the rest of one socket read. Of a frame whose header exceeds the limit of a server it holds
both ends of the header only, which are enough to refuse the request. [NettyDecoder, RemotingCommand]
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import msgspec

from ariane.errors import ProtocolError

FRAME_MAX = 16 * 1024 * 1024
JSON_FORM = 0
BINARY_FORM = 1

OUTLINE_BYTES = 1024  # of either end of an oversized header: the fields of a command are before or after its extFields

PREFIX = Struct(">iI")  # length; form and header length
PREFIX_SIZE = PREFIX.size


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame of the stream with its header still encoded."""

    form: int
    header: bytes
    body: bytes


class OversizedFrame:
    """A frame whose header exceeds the limit: it is discarded as it arrives, except for both ends of its header."""

    def __init__(self, form: int, header_size: int, size: int) -> None:
        self.form = form  # of the header
        self.header_size = header_size  # bytes of the whole header
        self.head = b""  # the first OUTLINE_BYTES of the header
        self.tail = b""  # the last OUTLINE_BYTES of it; both ends may overlap
        self.left = size  # bytes of header and body that have not arrived
        self._header_left = header_size  # bytes of the header that have not arrived

    def take(self, data: bytes, position: int) -> int:
        """Take the bytes of the frame from `data` at `position` on. Return the position after them."""
        header_stop = min(len(data), position + self._header_left)
        if len(self.head) < OUTLINE_BYTES:
            self.head += data[position : min(header_stop, position + OUTLINE_BYTES - len(self.head))]
        self.tail = (self.tail + data[max(position, header_stop - OUTLINE_BYTES) : header_stop])[-OUTLINE_BYTES:]
        self._header_left -= header_stop - position
        stop = min(len(data), position + self.left)
        self.left -= stop - position
        return stop


class FrameReader:
    """Splits a byte stream into frames: `append` takes received data, `next_frame` returns the frames that are complete.

    A caller that decodes frames itself reads `data` from `position` on and moves `position`.
    A ProtocolError means that the rest of the stream cannot be interpreted: close the connection.
    """

    def __init__(self, frame_max: int = FRAME_MAX) -> None:
        self.data = b""  # received data with complete frames, and perhaps the start of another
        self.position = 0  # of the next frame in `data`
        self._frame_max = frame_max  # bytes: a longer frame is refused by its length field
        self._unfinished = bytearray()  # start of a frame that is not complete
        self._need = PREFIX_SIZE  # bytes until it may be
        self._oversized: OversizedFrame | None = None  # arrives, or has arrived and was not returned yet

    @property
    def waiting(self) -> int:
        """Number of buffered bytes of an unfinished frame."""
        return len(self._unfinished)

    def append(self, data: bytes) -> None:
        """Add received data."""
        if self._oversized is not None and self._oversized.left:  # then no other data is buffered
            data = data[self._oversized.take(data, 0) :]
        if self._unfinished:
            self._unfinished += data
            if len(self._unfinished) >= self._need:
                self.data, self.position = bytes(self._unfinished), 0
                self._unfinished.clear()
        else:
            self.data = self.data[self.position :] + data if self.position < len(self.data) else data
            self.position = 0

    def release(self) -> bool:
        """Release the received data if all of it was taken; return whether it was."""
        if self.position < len(self.data) or self._oversized is not None:
            return False
        self.data, self.position = b"", 0
        return True

    def next_frame(self) -> Frame | None:
        """Return the next frame, or None if it is not complete."""
        frame = self.next_request(self._frame_max)
        assert not isinstance(frame, OversizedFrame)
        return frame

    def next_request(self, header_max: int) -> Frame | OversizedFrame | None:
        """Return the next frame, None if it is not complete; an OversizedFrame if its header has more than `header_max` bytes."""
        if self._oversized is not None:
            return self._next_oversized()
        data, position = self.data, self.position
        self._need = PREFIX_SIZE
        if len(data) - position >= PREFIX_SIZE:
            length, form_and_header = PREFIX.unpack_from(data, position)
            header_size = form_and_header & 0xFFFFFF
            form = form_and_header >> 24
            if not 4 <= length <= self._frame_max - 4:
                raise ProtocolError(f"Invalid frame length {length}: expected 4 to {self._frame_max - 4}")
            if header_size > length - 4:
                raise ProtocolError(f"Invalid header length {header_size} in a frame of {length} bytes")
            if form > BINARY_FORM:
                raise ProtocolError(f"Unknown header form {form}: expected 0 (JSON) or 1 (ROCKETMQ)")
            if header_size > header_max:
                self._oversized = OversizedFrame(form, header_size, length - 4)
                self.position = self._oversized.take(data, position + PREFIX_SIZE)
                return self._next_oversized()
            stop = position + 4 + length
            if stop <= len(data):
                self.position = stop
                header_end = position + PREFIX_SIZE + header_size
                return Frame(form, data[position + PREFIX_SIZE : header_end], data[header_end:stop])
            self._need = stop - position
        if position < len(data):
            self._unfinished += data[position:]
        self.data, self.position = b"", 0
        return None

    def _next_oversized(self) -> OversizedFrame | None:
        oversized = self._oversized
        if oversized is not None and oversized.left:
            self.data, self.position = b"", 0  # all of it belongs to this frame
            return None
        self._oversized = None
        return oversized

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add received data and yield the frames that are complete."""
        self.append(data)
        while (frame := self.next_frame()) is not None:
            yield frame


def prefix(form: int, header_size: int, body_size: int) -> bytes:
    """Return the 8 bytes in front of header and body. Raise ProtocolError if the frame exceeds what peers accept."""
    length = 4 + header_size + body_size
    if length > FRAME_MAX - 4:
        raise ProtocolError(f"Frame of {length + 4} bytes is too large: peers accept at most {FRAME_MAX}")
    return PREFIX.pack(length, form << 24 | header_size)
