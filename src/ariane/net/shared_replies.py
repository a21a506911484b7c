"""Replies that are computed once for all requests that wait for them: large lists, encoded in slices.

    requests ─► one computation runs, one is queued per key ─► all requests that joined it before it started

A request never joins a computation that has started: its result may be older than a change that was already confirmed to the
same client. So any number of requests costs the memory of one list being encoded and one body per key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from ariane.net.replies import Reply


class SharedReplies:
    """Computations by key, one at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._queued: dict[Hashable, asyncio.Task[Reply]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the reply of a computation `make` that started after this call."""
        task = self._queued.get(key)
        if task is None:
            self._queued[key] = task = asyncio.get_running_loop().create_task(self._compute(key, make))
        return await asyncio.shield(task)  # a caller that is cancelled does not cancel it for the others

    async def _compute(self, key: Hashable, make: Callable[[], Awaitable[Reply]]) -> Reply:
        async with self._lock:
            del self._queued[key]
            return await make()
