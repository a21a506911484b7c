"""Requests that wait until the log is flushed, or replicated, up to an offset.

    wait(end) ─┐ same tick
    wait(end) ─┴► OffsetWaiter ─┐
    wait(end) ──► OffsetWaiter ─┴─► advance(offset), fail(error) or the deadline ─► callbacks, in the order of the offsets

The requests of one tick of the event loop share a waiter, because a future and a task per request cost more than the send itself.
Waiters are ordered by offset and share one timer. [CommitLog.GroupCommitRequest, HAService.GroupTransferService]
"""

from __future__ import annotations

import asyncio
import bisect
import logging
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar, cast

log = logging.getLogger("ariane.broker.lifecycle.offset_waiters")

Result = TypeVar("Result")
Value = TypeVar("Value")


class OffsetWaiter(Generic[Result]):
    """Wait of all requests of one tick for an offset. Await it, or let it call back.

    Cancelling one request does not affect the others: each `await` and each `then` has its own future.
    """

    __slots__ = ("_callbacks", "_error", "_is_done", "_result", "deadline", "end_offset", "timeout_s")

    def __init__(self, end_offset: int, timeout_s: float, deadline: float) -> None:
        self.end_offset = end_offset  # grows while further requests of the tick join
        self.timeout_s = timeout_s  # requests with another one do not join
        self.deadline = deadline  # loop time at which the first request times out, and the others with it
        self._is_done = False  # the offset was reached, the deadline has passed, or the wait has failed
        self._result: Result | None = None  # set unless it failed
        self._error: Exception | None = None  # set if it failed
        # In the order of the requests, each with the future of its value if it has one.
        self._callbacks: list[tuple[Callable[[OffsetWaiter[Result]], Any], asyncio.Future[Any] | None]] = []

    def done(self) -> bool:
        return self._is_done

    def result(self) -> Result:
        """Return how the wait ended.

        Raises:
            asyncio.InvalidStateError: it has not ended.
            Exception: the error that it failed with.
        """
        if not self._is_done:
            raise asyncio.InvalidStateError(f"The wait for offset {self.end_offset} has not ended")
        if self._error is not None:
            raise self._error.with_traceback(None)  # one error for many requests: their tracebacks must not add up
        return cast(Result, self._result)

    def add_done_callback(self, callback: Callable[[OffsetWaiter[Result]], object]) -> None:
        """Call `callback` with this waiter once it is done: directly, not in a later tick, and at once if it is done already."""
        if self._is_done:
            self._call(callback, None)
        else:
            self._callbacks.append((callback, None))

    def then(self, function: Callable[[OffsetWaiter[Result]], Value]) -> asyncio.Future[Value]:
        """Return a future of `function(waiter)`, called once the waiter is done; not if the future was cancelled before."""
        future: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
        if self._is_done:
            self._call(function, future)
        else:
            self._callbacks.append((function, future))
        return future

    def __await__(self) -> Generator[Any, None, Result]:
        if not self._is_done:
            yield from self.then(_no_value)
        return self.result()

    def finish(self, result: Result | None, error: Exception | None = None) -> None:
        """End the wait with a result or an error, and call back."""
        self._is_done, self._result, self._error = True, result, error
        callbacks, self._callbacks = self._callbacks, []
        for callback, future in callbacks:
            self._call(callback, future)

    def _call(self, callback: Callable[[OffsetWaiter[Result]], Any], future: asyncio.Future[Any] | None) -> None:
        if future is not None and future.done():  # its request was cancelled
            return
        try:
            value = callback(self)
        except Exception as error:  # the other requests of the tick must get their responses
            if future is not None:
                future.set_exception(error)
            else:
                log.exception("A request could not be completed after its wait for offset %d", self.end_offset)
            return
        if future is not None and not future.done():  # the callback may have cancelled it
            future.set_result(value)


class OffsetWaiters(Generic[Result]):
    """Pending waits for offsets of one log."""

    def __init__(self, *, reached: Result, timed_out: Result) -> None:
        self._reached = reached  # result of a wait whose offset was reached
        self._timed_out = timed_out  # result of a wait whose deadline passed
        self._pending: deque[OffsetWaiter[Result]] = deque()  # ordered by `end_offset`
        self._open: OffsetWaiter[Result] | None = None  # of this tick: further requests join it
        self._timer: asyncio.TimerHandle | None = None  # for the earliest deadline of `_pending`

    def __len__(self) -> int:
        return len(self._pending)

    def wait(self, end_offset: int, timeout_s: float) -> OffsetWaiter[Result]:
        """Return the waiter of this tick; it is done when the log has advanced to `end_offset`, or after `timeout_s`."""
        waiter = self._open
        if waiter is not None and waiter.timeout_s == timeout_s and end_offset >= waiter.end_offset:
            waiter.end_offset = end_offset
            return waiter
        loop = asyncio.get_running_loop()
        waiter = OffsetWaiter(end_offset, timeout_s, loop.time() + timeout_s)
        if self._pending and end_offset < self._pending[-1].end_offset:
            bisect.insort(self._pending, waiter, key=_end_offset)
        else:
            self._pending.append(waiter)
            if self._open is None:
                loop.call_soon(self.seal)
            self._open = waiter
        if self._timer is None or waiter.deadline < self._timer.when():
            self._schedule(waiter.deadline)
        return waiter

    def finished(self, result: Result) -> OffsetWaiter[Result]:
        waiter: OffsetWaiter[Result] = OffsetWaiter(0, 0.0, 0.0)
        waiter.finish(result)
        return waiter

    def failed(self, error: Exception) -> OffsetWaiter[Result]:
        waiter: OffsetWaiter[Result] = OffsetWaiter(0, 0.0, 0.0)
        waiter.finish(None, error)
        return waiter

    def seal(self) -> None:
        """Let later requests begin another waiter, because they are not covered by what begins now."""
        self._open = None

    def advance(self, offset: int) -> None:
        """End the waits up to `offset`, which the log has reached."""
        pending = self._pending
        while pending and pending[0].end_offset <= offset:
            self._end(pending.popleft(), self._reached)

    def fail(self, error: Exception) -> None:
        """End all waits with an error."""
        pending, self._pending = self._pending, deque()
        for waiter in pending:
            self._end(waiter, None, error)

    def _end(self, waiter: OffsetWaiter[Result], result: Result | None, error: Exception | None = None) -> None:
        if waiter is self._open:
            self._open = None
        waiter.finish(result, error)

    def _schedule(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        """End the waits whose deadline has passed."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        expired = [waiter for waiter in self._pending if waiter.deadline <= now]
        if expired:
            self._pending = deque([waiter for waiter in self._pending if waiter.deadline > now])
        if self._pending:
            self._schedule(min([waiter.deadline for waiter in self._pending]))
        for waiter in expired:
            self._end(waiter, self._timed_out)


def _end_offset(waiter: OffsetWaiter[Any]) -> int:
    return waiter.end_offset


def _no_value(waiter: OffsetWaiter[Any]) -> None:
    return None
