"""Responses that clients have not read yet: their bytes on all connections of a server.

    written ─► counted ─► above `total_max`: connections with unread responses are served again once all are read
                       └► above twice that: the connection with most of them is closed

A transport does not report that its buffer shrinks, so the bytes are counted again when the running sum reaches a bound. Less
than NOTE_MIN_BYTES on a connection is not counted.
"""

from __future__ import annotations

from typing import Protocol

NOTE_MIN_BYTES = 16 * 1024
RECOUNT_S = 0.05


class Holder(Protocol):
    """A connection with unread responses."""

    def unread_bytes(self) -> int:
        """Return the number of bytes written and not read yet."""
        ...

    def drop(self, reason: str) -> None:
        """Abort the connection."""
        ...


class UnreadResponses:
    """The sum of unread bytes over the connections of a server, an address or an account."""

    def __init__(self, total_max: int = 0) -> None:
        self.total_max = total_max
        self._holders: set[Holder] = set()
        self._counted = 0
        self._counted_at = float("-inf")
        self._noted = 0  # since the last recount

    def note(self, holder: Holder, size: int, now: float) -> bool:
        """Add `size` bytes to the sum. Return whether it exceeds its bound."""
        self._holders.add(holder)
        self._noted += size
        if self.total <= self.total_max:
            return False
        if now - self._counted_at >= RECOUNT_S:
            self._recount(now)
        return self.total > self.total_max

    def forget(self, holder: Holder) -> None:
        """Remove a connection that was closed."""
        self._holders.discard(holder)

    @property
    def total(self) -> int:
        """Upper bound of the unread bytes."""
        return self._counted + self._noted

    def excess(self, now: float) -> Holder | None:
        """Return the connection to close: the one with most unread bytes, if the total is far above its bound; else None."""
        if self.total <= 2 * self.total_max:
            return None
        self._recount(now)
        if self.total <= 2 * self.total_max:
            return None
        return max(self._holders, key=lambda holder: holder.unread_bytes())

    def _recount(self, now: float) -> None:
        sizes = {holder: holder.unread_bytes() for holder in self._holders}
        self._holders = {holder for holder, size in sizes.items() if size}
        self._counted, self._noted, self._counted_at = sum(sizes.values()), 0, now
