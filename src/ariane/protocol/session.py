"""The requester's half of a connection: opaque numbers, who waits for which answer, and until when.

Symmetrical: a broker uses the same for the requests that it sends to clients. What waits is the caller's own token (the
asyncio shell passes futures). [NettyRemotingAbstract.responseTable]
"""

from __future__ import annotations

from typing import Generic, TypeVar

from ariane.errors import ArianeError

Token = TypeVar("Token")

PENDING_MAX = 65536  # requests under way on one connection; more means that the caller has lost its bounds
OPAQUE_MAX = 2**31 - 1


class TooManyRequests(ArianeError):
    """PENDING_MAX requests of this connection are unanswered."""


class Session(Generic[Token]):
    """Pending requests of one connection."""

    def __init__(self, pending_max: int = PENDING_MAX) -> None:
        self._pending: dict[int, tuple[Token, float]] = {}
        self._pending_max = pending_max
        self._opaque = 0

    def __len__(self) -> int:
        return len(self._pending)

    def next_opaque(self) -> int:
        """A number for a request that nobody waits for (one-way)."""
        self._opaque = self._opaque + 1 if self._opaque < OPAQUE_MAX else 1
        return self._opaque

    def ask(self, token: Token, deadline: float) -> int:
        """Register a request whose answer `token` waits for until `deadline` (the caller's clock); gives its opaque."""
        if len(self._pending) >= self._pending_max:
            raise TooManyRequests(f"{len(self._pending)} requests are unanswered on this connection")
        opaque = self.next_opaque()
        while opaque in self._pending:
            opaque = self.next_opaque()
        self._pending[opaque] = (token, deadline)
        return opaque

    def answered(self, opaque: int) -> Token | None:
        """Who waits for `opaque`; None when nobody does (late, or never asked)."""
        entry = self._pending.pop(opaque, None)
        return entry[0] if entry else None

    def expired(self, now: float) -> list[Token]:
        """Those whose deadline has passed; they wait no longer."""
        late = [opaque for opaque, (_, deadline) in self._pending.items() if deadline <= now]
        return [self._pending.pop(opaque)[0] for opaque in late]

    def next_deadline(self) -> float | None:
        """When the next of those that wait gives up."""
        return min((deadline for _, deadline in self._pending.values()), default=None)

    def end(self) -> list[Token]:
        """The connection is gone: all that still wait."""
        tokens = [token for token, _ in self._pending.values()]
        self._pending.clear()
        return tokens
