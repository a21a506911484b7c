"""Bounds on connections that are not established yet: no first byte, or an unfinished TLS handshake.

A new connection beyond a bound displaces the oldest one: a well-behaved peer continues at once, so one that stalls is soon the
oldest. Connections from one address cannot displace those of others before the total is reached.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Protocol

from ariane.net.limits.connection_limits import ConnectionLimits, network_of


class PendingConnection(Protocol):
    """A connection that counts. It is hashed by identity."""

    @property
    def ip(self) -> str:
        """Address of the peer."""
        ...

    def drop(self, reason: str) -> None:
        """Log the reason, and abort the connection."""
        ...

    def abort(self) -> None:
        """Abort the connection."""
        ...


class PendingConnections:
    """The pending connections of one stage.

    Args:
        stage: What they have not done yet, in the reason of a drop.
        limits: How many there are at most.
        timeout_s: How long each may take.
    """

    def __init__(self, stage: str, limits: ConnectionLimits, timeout_s: float) -> None:
        self._stage = stage
        self._limits = limits
        self._timeout_s = timeout_s
        self._deadlines: dict[PendingConnection, float] = {}  # on the loop's clock, oldest first
        self._networks: dict[str, dict[PendingConnection, None]] = {}  # by address, each oldest first
        # Drops the oldest; one for all, because most connections are established before a timer of their own would be needed.
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, connection: PendingConnection) -> None:
        """Count a connection until `discard`, and drop it after the timeout. Drops another one beyond a bound."""
        loop = asyncio.get_running_loop()
        self._deadlines[connection] = loop.time() + self._timeout_s
        same_address = self._networks.setdefault(network_of(connection.ip), {})
        same_address[connection] = None
        if self._timer is None:
            self._timer = loop.call_later(self._timeout_s, self._drop_late)
        if len(same_address) > self._limits.per_address:
            self._drop_oldest(same_address, f"{self._limits.per_address} of its address")
        elif len(self._deadlines) > self._limits.total:
            self._drop_oldest(max(self._networks.values(), key=len), str(self._limits.total))

    def discard(self, connection: PendingConnection) -> None:
        """Stop counting a connection: it is established, or closed."""
        if self._deadlines.pop(connection, None) is not None:
            network = network_of(connection.ip)
            del self._networks[network][connection]
            if not self._networks[network]:
                del self._networks[network]

    def abort_all(self) -> None:
        for connection in list(self._deadlines):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()

    def _drop_late(self) -> None:
        loop = asyncio.get_running_loop()
        late = list(itertools.takewhile(lambda item: item[1] <= loop.time(), self._deadlines.items()))
        for connection, _ in late:
            connection.drop(f"{self._stage} within {self._timeout_s:g} s")
        next_deadline = next(iter(self._deadlines.values()), None)
        self._timer = None if next_deadline is None else loop.call_at(next_deadline, self._drop_late)

    def _drop_oldest(self, same_address: dict[PendingConnection, None], limit: str) -> None:
        next(iter(same_address)).drop(f"{self._stage}, and more than {limit} are in this state")
