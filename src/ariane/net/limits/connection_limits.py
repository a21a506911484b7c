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
    network = network_of(newest.ip)
    same_address = [each for each in connections if each.ip == newest.ip or network_of(each.ip) == network]
    if len(same_address) > limits.per_address:
        # Its oldest that has not identified itself, or else its newest. One address may connect often: nothing else is compared.
        return next((each for each in same_address if not each.is_identified and each is not newest), newest)
    if len(connections) <= limits.total:
        return None
    counts = collections.Counter(network_of(each.ip) for each in connections)
    unidentified = [each for each in connections if not each.is_identified and each is not newest]
    # The same of the address with most connections.
    return max(unidentified or reversed(connections), key=lambda each: counts[network_of(each.ip)])


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
