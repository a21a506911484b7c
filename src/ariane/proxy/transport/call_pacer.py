"""Paces new calls of all connections: the library begins them in the order of their arrival, whichever connection they are from.

    calls ─┬─ the library has few ─────────→ passed on at once
           └─ others wait, or it has many ─→ queue of connections ─→ a share of each, when it has begun half of its calls

A connection that begins a thousand calls delays those of others by one share.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["CallPacer", "PacedConnection"]

PENDING_MAX = 64  # calls that were passed on, and that the library has not begun
SHARE_MIN = 4  # calls of a connection
# The library never begins some calls (reset, refused for their headers). All are forgotten if it begins none for this long.
SILENCE_S = 0.05


class PacedConnection(Protocol):
    """A connection that holds calls."""

    def pass_calls(self, limit: int) -> int:
        """Pass up to so many calls on, with what follows them. Return how many."""
        ...

    @property
    def has_held_data(self) -> bool:
        """Whether not all was passed on."""
        ...


class CallPacer:
    """Decides when connections pass calls on."""

    def __init__(self) -> None:
        self._pending = 0  # calls passed on and not begun
        self._begun = 0  # calls since `_timer` was set
        self._waiting: dict[PacedConnection, None] = {}  # the next one first
        self._timer: asyncio.TimerHandle | None = None  # set while connections wait
        self._is_scheduled = False

    def admit(self, calls: int) -> bool:
        """Return whether a connection may pass calls on at once, and count them."""
        if self._waiting or self._pending + calls > PENDING_MAX:
            return False
        self._pending += calls
        return True

    def add(self, connection: PacedConnection) -> None:
        """Let a connection that holds calls pass them on in its turn."""
        self._waiting.setdefault(connection)
        self._schedule()

    def remove(self, connection: PacedConnection) -> None:
        """Forget a connection."""
        self._waiting.pop(connection, None)

    def on_begun(self) -> None:
        """Note that the library has begun a call."""
        self._begun += 1
        self._pending = max(self._pending - 1, 0)
        if self._waiting and self._pending <= PENDING_MAX // 2:  # not one by one: each time costs a write
            self._schedule()

    def close(self) -> None:
        """Pass nothing more on."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._pass_next)

    def _pass_next(self) -> None:
        """Let connections pass their shares on, as long as there is room."""
        self._is_scheduled = False
        while self._waiting and self._pending < PENDING_MAX:
            room = PENDING_MAX - self._pending
            share = min(max(SHARE_MIN, room // len(self._waiting)), room)
            connection = next(iter(self._waiting))
            del self._waiting[connection]
            self._pending += connection.pass_calls(share)
            if connection.has_held_data:
                self._waiting[connection] = None
        if self._waiting and self._timer is None:
            self._begun = 0
            self._timer = asyncio.get_running_loop().call_later(SILENCE_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._begun:
            self._pending = 0
        self._pass_next()
