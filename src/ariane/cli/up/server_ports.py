"""Chooses the ports of the servers that `ariane up` starts, before it starts them.

The servers get fixed ports, so that one that is killed restarts on the same port.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection

from ariane.errors import ConfigError
from ariane.net.listening.fixed_ports import PORT_MAX, choose_free_port, port_fault

BROKER_OFFSETS = (0, -2, 1)  # relative to the broker's port: remoting, VIP channel, HA
PORT_TRIES = 50  # of the ports above a preferred one

PrintLine = Callable[[str], None]


def choose_port(
    option: str,
    port: int,
    *,
    may_move: bool,
    print_line: PrintLine,
    offsets: tuple[int, ...] = (0,),
    reserved: Collection[int] = (),
) -> int:
    """Return `port`, or a free one if `port` is 0, or is used and the server may move.

    Args:
        port: Preferred port; 0: any. The error names the option.
        may_move: Whether another port is used, and printed, while `port` is in use.
        print_line: Prints the port that is used instead.
        offsets: Ports that the server needs, relative to its own.
        reserved: Ports of servers that are not started yet.

    Raises:
        ConfigError: `port`, or a port at the `offsets` from it, is not available.
    """
    fault = port_fault(port, offsets) if port else None
    if port and fault is None:
        return port
    if fault is not None and (not may_move or fault[1].errno != errno.EADDRINUSE):
        used, error = fault
        reason = "in use by another program" if error.errno == errno.EADDRINUSE else "not permitted"
        raise ConfigError(option, port, f"port {used} is {reason} ({error.strerror}); stop it, or specify another port")
    try:
        free = choose_free_port(offsets, reserved)
    except OSError as error:
        raise ConfigError(option, port, f"{error.strerror}; specify one") from error
    if fault is not None:
        print_line(f"port {fault[0]} is in use, the demo uses {free}")
    return free


def choose_next_port(option: str, port: int, print_line: PrintLine, reserved: Collection[int], *, server: str) -> int:
    """Return `port`, or the first one above it that is neither in use nor reserved.

    Args:
        print_line: Prints the port that `server` uses instead.
        reserved: Ports of servers that are not started yet.
        server: The server that needs the port, in that line.

    Raises:
        ConfigError: none of the next PORT_TRIES ports is free.
    """
    for candidate in range(port, min(port + PORT_TRIES, PORT_MAX + 1)):
        if candidate not in reserved and port_fault(candidate, (0,)) is None:
            if candidate != port:
                print_line(f"port {port} is in use, {server} uses {candidate}")
            return candidate
    raise ConfigError(option, port, f"no free port from {port} to {port + PORT_TRIES - 1}; specify one")
