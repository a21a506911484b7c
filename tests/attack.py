"""An attack on a port: what its connections send. `attacks` has all of them, `attacker` performs them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal, NamedTuple

PortName = Literal["broker", "names", "replication", "console", "metrics", "grpc", "native grpc"]


class Attack(NamedTuple):
    """What the connections of an attack do: send, read or not, and stay until the time is over."""

    port: PortName
    connections: int
    data: Callable[[int], bytes] = lambda number: b""
    """What the connection with this number sends. Each repetition and each connection that follows another has a new number."""
    repeats: bool = False
    """Whether the next data follows until the time is over."""
    reads: bool = True
    reconnects: bool = False
    """Whether a connection that ended is followed by another one."""
    tls: bool = False
    drips: bool = False
    """Whether single bytes are sent, with pauses."""
    resets: bool = False
    """Whether the connection is reset as soon as everything is sent."""
    renegotiates: bool = False
    """Whether OpenSSL's program, in place of a connection of this one, requests handshakes."""


def noise(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)
