"""Answers of servers that are asked for again after a while, so that calls wait for them as little as possible.

    age < FRESH_S ─▶ returned      < STALE_S ─▶ returned, and fetched again meanwhile      older, expired ─▶ fetched first

A value stays in use while no server responds. One that a server refuses is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import Generic, NamedTuple, TypeVar

from ariane.errors import ArianeError, ReplyError

FRESH_S = 10.0
STALE_S = 60.0
CACHED_MAX = 10_000
EXPIRED = -inf

T = TypeVar("T")


class _FetchedValue(NamedTuple, Generic[T]):
    value: T
    fetched_s: float  # loop time; EXPIRED before all others


class FreshValues(Generic[T]):
    """Values by name. Concurrent callers share a fetch.

    Args:
        fetch: Returns the value of a name.
    """

    def __init__(self, fetch: Callable[[str], Awaitable[T]]) -> None:
        self._fetch = fetch
        self._entries: dict[str, _FetchedValue[T]] = {}
        self._fetches: dict[str, asyncio.Task[T]] = {}

    async def get(self, name: str) -> T:
        """Return the value of a name. Raise what its fetch raises."""
        now_s, entry = asyncio.get_running_loop().time(), self._entries.get(name)
        if entry is not None and now_s - entry.fetched_s < FRESH_S:
            return entry.value
        fetching = self._fetches.get(name) or self._start(name)
        if entry is not None and now_s - entry.fetched_s < STALE_S:
            return entry.value
        return await asyncio.shield(fetching)

    def expire(self, name: str) -> None:
        """Fetch a value again before it is used next."""
        if (entry := self._entries.get(name)) is not None:
            self._entries[name] = entry._replace(fetched_s=EXPIRED)

    def _start(self, name: str) -> asyncio.Task[T]:
        task = self._fetches[name] = asyncio.ensure_future(self._fetch_value(name))

        def on_done(done: asyncio.Task[T]) -> None:
            del self._fetches[name]
            if not done.cancelled():
                done.exception()  # raised in the callers, if any waits

        task.add_done_callback(on_done)
        return task

    async def _fetch_value(self, name: str) -> T:
        try:
            value = await self._fetch(name)
        except ReplyError:
            self._entries.pop(name, None)
            raise
        except ArianeError:
            if (entry := self._entries.get(name)) is None:
                raise
            value = entry.value
        if len(self._entries) >= CACHED_MAX:
            self._entries.clear()
        self._entries[name] = _FetchedValue(value, asyncio.get_running_loop().time())
        return value
