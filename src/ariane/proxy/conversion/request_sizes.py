"""Sizes of requests before they are decoded. Decoding takes memory by the number of fields, not of bytes: a message without any
field has two bytes, and its object eighty, so 16 MiB of them took 670 MiB.

    request ─ fields along the path to a payload (a body, a stack trace) ─▶ bytes of payloads │ all others: at most OVERHEAD_MAX

Only the fields along the path are read. A payload is one object of its own size, however large.
"""

from __future__ import annotations

from ariane.proxy.conversion.grpc_statuses import CallRefused, StatusCode

OVERHEAD_MAX = 1024 * 1024  # bytes that are not of payloads; decoded, they take up to forty times as much
FIELDS_MAX = 16_384  # along the paths of a call; reading them takes some milliseconds

PAYLOADS = {
    "SendMessage": (1, 4),  # messages, body
    "Telemetry": (3, 2),  # thread_stack_trace, thread_stack_trace
}
"""Paths of field numbers to payloads, by call."""

VARINT, FIXED_64, LENGTH, FIXED_32 = 0, 1, 2, 5  # wire types that proto3 has


def check(call: str, data: bytes) -> None:
    """Raise CallRefused if decoding a request would take much more memory than its bytes do."""
    path = PAYLOADS.get(call)
    if path is None or len(data) <= OVERHEAD_MAX:
        return
    overhead = len(data) - _PayloadReader(call, data).length(path, 0, len(data))
    if overhead > OVERHEAD_MAX:
        text = (
            f"Invalid {call}: expected at most {OVERHEAD_MAX} bytes that are not of message bodies, it has {overhead}"
        )
        raise CallRefused(StatusCode.BAD_REQUEST, text)


class _PayloadReader:
    """Adds up the payloads of one request. Of a damaged one, as far as it can be read."""

    def __init__(self, call: str, data: bytes) -> None:
        self._call = call
        self._data = data
        self._fields = 0

    def length(self, path: tuple[int, ...], position: int, end: int) -> int:
        """Return the number of bytes of payloads between two positions."""
        total = 0
        while position < end:
            self._fields += 1
            if self._fields > FIELDS_MAX:
                text = f"Invalid {self._call}: expected at most {FIELDS_MAX} fields around message bodies"
                raise CallRefused(StatusCode.BAD_REQUEST, text)
            tag, position = self._varint(position, end)
            kind = tag & 7
            if kind == LENGTH:
                size, position = self._varint(position, end)
                if size > end - position:
                    break
                if tag >> 3 == path[0]:
                    total += size if len(path) == 1 else self.length(path[1:], position, position + size)
                position += size
            elif kind == VARINT:
                _, position = self._varint(position, end)
            elif kind in (FIXED_64, FIXED_32):
                position += 8 if kind == FIXED_64 else 4
            else:
                break
        return total

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        """Return a number of up to ten bytes, and the position after it."""
        value = 0
        for n, byte in enumerate(self._data[position : min(position + 10, end)]):
            value |= (byte & 0x7F) << 7 * n
            if byte < 0x80:
                return value, position + n + 1
        return value, end
