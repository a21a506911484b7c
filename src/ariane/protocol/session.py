"""Pending requests of a connection: opaque numbers, deadlines, and the token that each response resolves.

Used on both sides: a broker uses it for requests that it sends to clients. Tokens are the caller's (the asyncio shell passes
futures). [NettyRemotingAbstract.responseTable]
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

from ariane.errors import ArianeError

Token = TypeVar("Token")

PENDING_MAX = 65536  # requests in flight on one connection; more means that the caller does not bound its requests
OPAQUE_MAX = 2**31 - 1
DEADLINES_SPARE = 10_000  # entries of resolved requests in the heap before it is rebuilt


class TooManyRequests(ArianeError):
    """PENDING_MAX requests of this connection are in flight."""


class Session(Generic[Token]):
    """Pending requests of one connection."""

    def __init__(self, pending_max: int = PENDING_MAX) -> None:
        self._pending: dict[int, tuple[Token, float]] = {}
        self._deadlines: list[
            tuple[float, int]
        ] = []  # a heap; entries of resolved requests are skipped when they are reached
        self._pending_max = pending_max
        self._opaque = 0

    def __len__(self) -> int:
        return len(self._pending)

    def next_opaque(self) -> int:
        """Return the opaque number for a one-way request."""
        self._opaque = self._opaque + 1 if self._opaque < OPAQUE_MAX else 1
        return self._opaque

    def register(self, token: Token, deadline: float) -> int:
        """Register a pending request and return its opaque number.

        Args:
            token: Returned when the request is resolved or expires.
            deadline: Time of expiry on the caller's clock.

        Raises:
            TooManyRequests: PENDING_MAX requests are in flight.
        """
        if len(self._pending) >= self._pending_max:
            raise TooManyRequests(f"Too many requests in flight on this connection: {len(self._pending)}")
        opaque = self.next_opaque()
        while opaque in self._pending:
            opaque = self.next_opaque()
        self._pending[opaque] = (token, deadline)
        heapq.heappush(self._deadlines, (deadline, opaque))
        if len(self._deadlines) > 2 * len(self._pending) + DEADLINES_SPARE:
            self._deadlines = [(until, number) for number, (_, until) in self._pending.items()]
            heapq.heapify(self._deadlines)
        return opaque

    def resolve(self, opaque: int) -> Token | None:
        """Remove a pending request and return its token; None if there is none (timed out or duplicate response)."""
        entry = self._pending.pop(opaque, None)
        return entry[0] if entry else None

    def pop_expired(self, now: float) -> list[Token]:
        """Remove the requests whose deadline has passed and return their tokens."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, opaque = heapq.heappop(self._deadlines)
            if self._is_pending(opaque, deadline):
                expired.append(self._pending.pop(opaque)[0])
        return expired

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of a pending request, or None without one."""
        while self._deadlines:
            deadline, opaque = self._deadlines[0]
            if self._is_pending(opaque, deadline):
                return deadline
            heapq.heappop(self._deadlines)
        return None

    def _is_pending(self, opaque: int, deadline: float) -> bool:
        entry = self._pending.get(opaque)
        return entry is not None and entry[1] == deadline

    def close(self) -> list[Token]:
        """Remove all pending requests, after the connection was lost, and return their tokens."""
        tokens = [token for token, _ in self._pending.values()]
        self._pending.clear()
        self._deadlines.clear()
        return tokens
