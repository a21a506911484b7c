"""Attacks on the gRPC port, the same for each transport."""

from __future__ import annotations

from collections.abc import Callable

from attack import Attack, PortName, noise
from http2_frames import (
    PING,
    PREFACE,
    SETTINGS,
    call,
    frame,
    header_fragments,
    reset_calls,
    unfinished_calls,
    unread_calls,
)

GRPC_PORTS: tuple[PortName, PortName] = ("grpc", "native grpc")
OPENING = PREFACE + frame(SETTINGS)
EMPTY_FIELDS = b"\x0a\x00" * 30_000  # empty messages in a SendMessageRequest


def after_opening(connections: int, frames: bytes) -> Callable[[int], bytes]:
    """Return data for connections that repeat frames: the first data of each opens HTTP/2."""
    return lambda number: (OPENING if number < connections else b"") + frames


AT_GRPC: dict[str, Attack] = {
    "garbage": Attack("grpc", 20, lambda number: noise(number, 1000), reconnects=True),
    "garbage in HTTP/2": Attack("grpc", 20, lambda number: OPENING + noise(number, 1000), reconnects=True),
    "complete handshakes": Attack("grpc", 4, tls=True, resets=True, reconnects=True),
    "silent connections": Attack("grpc", 300, lambda number: PREFACE[:5]),
    "rapid resets": Attack("grpc", 4, lambda number: OPENING + reset_calls(1, 300), resets=True, reconnects=True),
    "header fragments": Attack("grpc", 4, lambda number: OPENING + header_fragments(500), resets=True, reconnects=True),
    "pings": Attack("grpc", 4, after_opening(4, frame(PING, 0, 0, b"12345678") * 1000), repeats=True),
    "unread pings": Attack(
        "grpc", 4, after_opening(4, frame(PING, 0, 0, b"12345678") * 1000), repeats=True, reads=False
    ),
    "settings": Attack("grpc", 4, after_opening(4, frame(SETTINGS) * 1000), repeats=True),
    "unread replies": Attack("grpc", 8, lambda number: OPENING + unread_calls(1000), reads=False),
    "unfinished calls": Attack("grpc", 16, lambda number: OPENING + unfinished_calls(1000)),
    "nonsense as messages": Attack(
        "grpc",
        4,
        lambda number: OPENING + b"".join(call(2 * n + 1, noise(number + n, 200)) for n in range(100)),
        resets=True,
        reconnects=True,
    ),
    "messages of empty fields": Attack(
        "grpc", 4, lambda number: OPENING + call(1, EMPTY_FIELDS), resets=True, reconnects=True
    ),
}
HTTP2: dict[str, Attack] = {
    f"{name} at {port}": attack._replace(port=port) for name, attack in AT_GRPC.items() for port in GRPC_PORTS
}
