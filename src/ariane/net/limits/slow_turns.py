"""Serves the connections whose requests take long one after another, so that the others wait for one of them at a time."""

from __future__ import annotations

import collections
from collections.abc import Callable

__all__ = ["SlowTurns"]


class SlowTurns:
    """Gives connections with long turns one tick of the event loop each, in the order in which they ask for it.

    A tick serves every connection that has received requests. If each of them may take long, all others wait for their sum.
    """

    def __init__(self) -> None:
        self._waiting: collections.deque[Callable[[], None]] = collections.deque()

    def add(self, serve: Callable[[], None], call_soon: Callable[[Callable[[], None]], object]) -> None:
        """Call `serve` in a tick in which nothing else that was added is called.

        Args:
            serve: Serves a connection. May add itself again.
            call_soon: Calls a function in the next tick.
        """
        self._waiting.append(serve)
        if len(self._waiting) == 1:
            call_soon(lambda: self._serve_next(call_soon))

    def _serve_next(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                call_soon(lambda: self._serve_next(call_soon))
