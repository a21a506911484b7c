"""Shares ticks of the event loop between connections, so that each waits for some of the others instead of all of them.

data ─┬─ the tick has room ─────────→ served at once ─ more is left ─→ queue ─→ one per tick, and what SHARE_S leaves
      ├─ the tick is full ──────────→ queue of arrivals ─→ as many per tick as take SHARE_S
      └─ its last batch took long ──→ queue of slow connections ─→ one per tick

A connection that sends one request waits for the arrivals before it, and not for all that send more than is served at once.
"""

from __future__ import annotations

import collections
from collections.abc import Callable

__all__ = ["CONTENDED_S", "SHARE_S", "TICK_S", "TickShares"]

TICK_S = 0.003  # requests that take longer end a batch earlier: most take 50 µs
CONTENDED_S = 0.001  # the same while other connections wait
SHARE_S = 2 * TICK_S  # of a tick for the batches of all connections that are not slow

CallSoon = Callable[[Callable[[], None]], object]


class TickShares:
    """Serves batches of requests in ticks of bounded length, in the order in which they are added to a queue.

    A tick of the loop would serve every connection that has received requests. How long these take is not known before, and
    all other connections, new ones above all, wait for their sum several times.
    """

    def __init__(self) -> None:
        self.is_full = False  # nothing else is served in this tick
        self._used_s = 0.0  # by batches in this tick
        self._arrivals: collections.deque[Callable[[], None]] = collections.deque()
        self._queue: collections.deque[Callable[[], None]] = collections.deque()
        self._slow: collections.deque[Callable[[], None]] = collections.deque()
        self._is_scheduled = False  # the next tick

    @property
    def batch_s(self) -> float:
        """How long the next batch may take."""
        return CONTENDED_S if self._arrivals or self._queue else TICK_S

    def spend(self, seconds: float, call_soon: CallSoon) -> None:
        """Note how long a batch took."""
        self._used_s += seconds
        self.is_full = self._used_s >= SHARE_S
        self._schedule(call_soon)

    def add(
        self, serve: Callable[[], None], call_soon: CallSoon, *, is_slow: bool = False, is_arrival: bool = False
    ) -> None:
        """Call `serve` in a later tick.

        Args:
            serve: Serves a batch of a connection. May add itself again.
            call_soon: Calls a function in the next tick.
            is_slow: Whether nothing else that is slow is served in the same tick.
            is_arrival: Whether the first of its requests have just arrived.
        """
        (self._slow if is_slow else self._arrivals if is_arrival else self._queue).append(serve)
        self._schedule(call_soon)

    def _schedule(self, call_soon: CallSoon) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            call_soon(lambda: self._serve_next(call_soon))

    def _serve_next(self, call_soon: CallSoon) -> None:
        self._is_scheduled = False
        arrivals, others = len(self._arrivals), len(self._queue)
        try:
            if self._slow:
                self._slow.popleft()()
            self._used_s, self.is_full = 0.0, False  # a slow one leaves the others their share
            if others:  # however many arrive
                others -= 1
                self._queue.popleft()()
            while arrivals and not self.is_full:
                arrivals -= 1
                self._arrivals.popleft()()
            while others and not self.is_full:
                others -= 1
                self._queue.popleft()()
        finally:
            if self._slow or self._arrivals or self._queue:
                self._schedule(call_soon)
