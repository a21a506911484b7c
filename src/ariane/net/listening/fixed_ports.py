"""Ports of servers that keep them: one that was killed starts again at its port.

Outgoing connections of any program get ports of the system's own range (Linux: 32768 to 60999), so that a server's port of that
range may be taken while the server is down. The ports here are below it.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Collection

LOOPBACK = "127.0.0.1"
PORTS = range(12_000, 32_000)
PORT_MAX = 65_535
# A free port may have a neighbour in use, and a broker needs three.
TRIES = 200


def choose_free_port(offsets: Collection[int] = (0,), reserved: Collection[int] = ()) -> int:
    """Return a port of 127.0.0.1 that nothing listens on.

    Args:
        offsets: Ports that the server needs, relative to its own.
        reserved: Ports of servers that are not started yet.

    Raises:
        OSError: with EADDRINUSE: none was found.
    """
    for _ in range(TRIES):
        port = random.choice(PORTS)  # noqa: S311 - two programs that choose at the same time should differ
        if {port + offset for offset in offsets}.isdisjoint(reserved) and port_fault(port, offsets) is None:
            return port
    raise OSError(errno.EADDRINUSE, f"no free port found from {PORTS.start} to {PORTS.stop - 1}")


def port_fault(port: int, offsets: Collection[int]) -> tuple[int, OSError] | None:
    """Return the first port that is not available and the error; None if all are available."""
    for offset in offsets:
        if not 0 < port + offset <= PORT_MAX:
            return port + offset, OSError(errno.EADDRINUSE, "not a valid port")
        with socket.socket() as probe:
            # As the servers do: a port in TIME_WAIT is available.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port + offset))
            except OSError as error:
                return port + offset, error
    return None
