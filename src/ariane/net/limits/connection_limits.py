"""Bounds on the open connections of a port, in total and per address: which connection a new one displaces.

Connections from a few addresses cannot shut out the others, and unfinished ones cannot shut out those that are served.
"""

from __future__ import annotations

import collections
import functools
import ipaddress
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

NETWORKS_REMEMBERED = 4096


class BoundedConnection(Protocol):
    """A connection that counts."""

    @property
    def ip(self) -> str:
        """Address of the peer."""
        ...

    @property
    def is_identified(self) -> bool:
        """Whether the peer has shown that this port serves it; others are displaced first."""
        ...


Connection = TypeVar("Connection", bound=BoundedConnection)


class ConnectionLimits(NamedTuple):
    """How many connections a port has at most."""

    total: int
    per_address: int
    """An IPv6 /64 network counts as one address."""


def select_displaced(
    newest: Connection, connections: Sequence[Connection], limits: ConnectionLimits
) -> Connection | None:
    """Return which of `connections` (oldest first, including `newest`) exceeds a limit and must be closed; None if none does.

    It may be `newest` itself.
    """
    networks = {connection: network_of(connection.ip) for connection in connections}
    same_address = [connection for connection in connections if networks[connection] == networks[newest]]
    if len(same_address) > limits.per_address:
        crowded = same_address
    elif len(connections) > limits.total:
        crowded = list(connections)
    else:
        return None
    counts = collections.Counter(networks[connection] for connection in crowded)
    unidentified = [connection for connection in crowded if not connection.is_identified and connection is not newest]
    # The address with most connections loses its oldest that has not identified itself, or else its newest.
    return max(unidentified or reversed(crowded), key=lambda connection: counts[networks[connection]])


@functools.lru_cache(NETWORKS_REMEMBERED)
def network_of(ip: str) -> str:
    """Return the unit that limits apply to: an IPv4 address, or the /64 network from which IPv6 hosts choose addresses."""
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        return ip[:64]  # a proxy may forward anything
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))
