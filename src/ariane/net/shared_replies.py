"""Results that are computed once for all requests that wait for them: replies with large lists, encoded in slices, and saved files.

    requests ─► one computation runs, one is queued per key ─► all requests that joined it before it started

A request never joins a computation that has started: its result may be older than a change that was already confirmed to the
same client. So any number of requests costs the memory of one list being encoded and one body per key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

from ariane.net.limits.paced_calls import PacedCalls
from ariane.net.replies import Reply

T = TypeVar("T")


class SharedResult(Generic[T]):
    """A result for which any number of requests waits.

    A request that is cancelled costs the same, however many there are: a lock or a shielded task searches its list of waiters.
    """

    def __init__(self, calls: PacedCalls) -> None:
        """`calls`: wake the requests."""
        self._calls = calls
        self._waiting: set[asyncio.Future[T]] = set()

    async def wait(self) -> T:
        """Return the result, or raise its error."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            return await future
        finally:
            self._waiting.discard(future)

    async def settle(self, work: Awaitable[T]) -> None:
        """Await `work`, and end the waits with its result or error."""
        try:
            result = await work
        except Exception as error:  # noqa: BLE001 - it is raised by each `wait`
            for future in self._waiting:
                self._calls.add(partial(_fail, future, error))
        else:
            for future in self._waiting:
                self._calls.add(partial(_end, future, result))


def _end(future: asyncio.Future[T], result: T) -> None:
    if not future.done():  # otherwise its request was cancelled
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(
            error.with_traceback(None)
        )  # one error for many requests: their tracebacks must not add up


class SharedReplies:
    """Computations by key, one at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._queued: dict[Hashable, SharedResult[Reply]] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # one for each computation
        self._calls = PacedCalls()  # of requests whose reply is computed

    async def get(self, key: Hashable, make: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the reply of a computation `make` that started after this call."""
        queued = self._queued.get(key)
        if queued is None:
            queued = self._queued[key] = SharedResult(self._calls)
            task = asyncio.get_running_loop().create_task(queued.settle(self._compute(key, make)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await queued.wait()

    async def _compute(self, key: Hashable, make: Callable[[], Awaitable[Reply]]) -> Reply:
        async with self._lock:
            del self._queued[key]
            return await make()
