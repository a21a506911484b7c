"""Reads the heads of the HTTP/2 frames of a connection: where its calls begin, and floods that no client sends.

    chunk ─▶ FrameMeter.read ─▶ positions at which calls begin, or FloodError

Contents of frames are skipped; the library checks everything else. Limits of headers and resets are those of the native transport.
"""

from __future__ import annotations

import struct

from ariane.errors import ArianeError

__all__ = ["FloodError", "FrameMeter"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = struct.Struct(">BHBBI")  # length of the content (24 bits), kind, flags, stream
DATA, HEADERS, RST_STREAM, WINDOW_UPDATE, CONTINUATION, OTHERS = 0, 1, 3, 8, 9, 10
END_HEADERS = 4
STREAM_BITS = 0x7FFF_FFFF
HEADERS_MAX = 16 * 1024  # bytes of headers that do not end
CONTINUATIONS_MAX = 5  # of a call: two have 16 KiB
EARLY_RESETS_MAX = 20  # calls of a window that were reset in the chunk in which they began
WINDOW_S = 1.0
# Frames of a kind in a window, without a call or data between them.
IDLE_FRAMES_MAX = [1_000] * (OTHERS + 1)
IDLE_FRAMES_MAX[RST_STREAM] = 4_096  # all calls of a connection
IDLE_FRAMES_MAX[WINDOW_UPDATE] = 16_384  # of the replies to all of them


class FloodError(ArianeError):
    """A connection sends what no client sends."""


class FrameMeter:
    """Reads the frames that a client sends, in chunks of any size."""

    def __init__(self) -> None:
        self._preface = PREFACE  # what of it has not arrived
        self._cut = b""  # begin of a head that is not complete
        self._skip = 0  # bytes that remain of the content of the last frame
        self._last_stream = 0
        self._unfinished = 0  # bytes of headers that have not ended
        self._continuations = 0
        self._idle_frames = [0] * (OTHERS + 1)  # by kind, since the last call or data
        self._is_idle = False  # whether one of them is not 0
        self._early_resets = 0
        self._window_s = 0.0  # when it began

    def read(self, data: bytes, now_s: float) -> list[int]:
        """Return the positions in a chunk at which calls begin, 0 if their first bytes were in the chunk before.

        Raises:
            FloodError: If the connection has to be closed. Frames after the one that is too many are not read.
        """
        if now_s - self._window_s >= WINDOW_S:
            self._window_s, self._early_resets = now_s, 0
            self._end_idle()
        at = self._read_preface(data) if self._preface else 0
        cut = len(self._cut)
        if cut:
            data, self._cut = self._cut + data, b""
        at += self._skip
        calls: list[int] = []
        last_of_others = self._last_stream
        size, unpack = len(data), HEAD.unpack_from
        while at + HEAD.size <= size:
            high, low, kind, flags, stream = unpack(data, at)
            length = high << 16 | low
            if kind == HEADERS:
                stream &= STREAM_BITS
                if stream > self._last_stream:
                    self._last_stream = stream
                    calls.append(max(at - cut, 0))
                self._continuations = 0
                self._unfinished = 0 if flags & END_HEADERS else length
            if kind == HEADERS or (kind == DATA and length):
                if self._is_idle:
                    self._end_idle()
            else:
                self._count(min(kind, OTHERS), length, flags)
                if kind == RST_STREAM and stream & STREAM_BITS > last_of_others:
                    self._early_resets += 1
                    if self._early_resets > EARLY_RESETS_MAX:
                        raise FloodError(f"it reset more than {EARLY_RESETS_MAX} calls as soon as they began")
            if self._unfinished > HEADERS_MAX:
                raise FloodError(f"the headers of a call exceed {HEADERS_MAX} bytes")
            at += HEAD.size + length
        self._skip = max(at - size, 0)
        self._cut = data[at:]
        return calls

    def _read_preface(self, data: bytes) -> int:
        """Return how many bytes of the chunk belong to the preface."""
        size = min(len(self._preface), len(data))
        if data[:size] != self._preface[:size]:
            raise FloodError("it did not begin with HTTP/2")
        self._preface = self._preface[size:]
        return size

    def _count(self, kind: int, length: int, flags: int) -> None:
        if kind == CONTINUATION:
            self._continuations += 1
            if self._continuations > CONTINUATIONS_MAX:
                raise FloodError(f"the headers of a call have more than {CONTINUATIONS_MAX} continuations")
            self._unfinished = 0 if flags & END_HEADERS else self._unfinished + length
        self._is_idle = True
        self._idle_frames[kind] += 1
        if self._idle_frames[kind] > IDLE_FRAMES_MAX[kind]:
            raise FloodError(f"it sent more than {IDLE_FRAMES_MAX[kind]} frames of kind {kind} without a call")

    def _end_idle(self) -> None:
        self._idle_frames = [0] * (OTHERS + 1)
        self._is_idle = False
