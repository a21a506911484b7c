"""The requester's half of a connection: opaque numbers, who waits for which answer, and until when.

Symmetrical: a broker uses the same for the requests that it sends to clients. What waits is the caller's own token (the
asyncio shell passes futures). [NettyRemotingAbstract.responseTable]
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

from ariane.errors import ArianeError

Token = TypeVar("Token")

PENDING_MAX = 65536  # requests under way on one connection; more means that the caller has lost its bounds
OPAQUE_MAX = 2**31 - 1
DEADLINES_SPARE = 10_000  # of answered requests that the heap holds before it is built again


class TooManyRequests(ArianeError):
    """PENDING_MAX requests of this connection are unanswered."""


class Session(Generic[Token]):
    """Pending requests of one connection."""

    def __init__(self, pending_max: int = PENDING_MAX) -> None:
        self._pending: dict[int, tuple[Token, float]] = {}
        self._deadlines: list[tuple[float, int]] = []  # a heap, with entries of requests that were answered meanwhile
        self._pending_max = pending_max
        self._opaque = 0

    def __len__(self) -> int:
        return len(self._pending)

    def next_opaque(self) -> int:
        """A number for a request that nobody waits for (one-way)."""
        self._opaque = self._opaque + 1 if self._opaque < OPAQUE_MAX else 1
        return self._opaque

    def register(self, token: Token, deadline: float) -> int:
        """Register a request whose answer `token` waits for until `deadline` (the caller's clock); gives its opaque."""
        if len(self._pending) >= self._pending_max:
            raise TooManyRequests(f"{len(self._pending)} requests are unanswered on this connection")
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
        """Who waits for `opaque`; None when nobody does (late, or never asked)."""
        entry = self._pending.pop(opaque, None)
        return entry[0] if entry else None

    def pop_expired(self, now: float) -> list[Token]:
        """Those whose deadline has passed; they wait no longer."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, opaque = heapq.heappop(self._deadlines)
            if self._is_pending(opaque, deadline):
                late.append(self._pending.pop(opaque)[0])
        return late

    def next_deadline(self) -> float | None:
        """When the next of those that wait gives up."""
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
        """The connection is gone: all that still wait."""
        tokens = [token for token, _ in self._pending.values()]
        self._pending.clear()
        self._deadlines.clear()
        return tokens
