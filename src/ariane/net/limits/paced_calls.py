"""Calls that one event causes for many requests: a few in each tick of the event loop, so that others are served in between."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

CALLS_PER_TICK = 64  # each may start a task or build a response, some 50 µs


class PacedCalls:
    """Calls functions in the order in which they are added: CALLS_PER_TICK at once, and as many in each later tick."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._room = CALLS_PER_TICK  # calls that this tick may still make
        self._is_scheduled = False  # the next tick makes calls, or has room for them again

    def add(self, call: Callable[[], object]) -> None:
        """Call a function in this tick or in a later one."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_tick)
        if self._room:
            self._room -= 1
            call()
        else:
            self._calls.append(call)

    def _begin_tick(self) -> None:
        loop = asyncio.get_running_loop()
        count = min(len(self._calls), CALLS_PER_TICK)
        self._room = CALLS_PER_TICK - count
        for _ in range(count):
            loop.call_soon(self._calls.popleft())  # an error is logged, and concerns no other call
        self._is_scheduled = count > 0
        if self._is_scheduled:
            loop.call_soon(self._begin_tick)
