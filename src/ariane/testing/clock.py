"""A clock for tests. Time passes only when the test says so.

    clock = FakeClock()
    broker = Broker(config, disk=FakeDisk(), clock=clock)
    ...
    clock.advance(30)          # 30 s pass: every `sleep` whose end is reached returns

For a whole event loop with virtual time, including asyncio's own timers, see `ariane.testing.virtual.virtual_time`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Any

from ariane.clock import Timer

EPOCH_MS = 1_700_000_000_000  # wall-clock time at which fake and virtual clocks start


class FakeClock:
    """An `ariane.clock.Clock` that a test controls.

    Args:
        start_ms: Time at the start, in milliseconds since the epoch; may have a fraction.
        tick_ms: Milliseconds that pass after each call of `now_ms`, for code that needs distinct timestamps.
        is_auto: Let `sleep` advance the clock itself instead of waiting for `advance`. For tests with a single
            sleeping task: with several of them each sleep adds to the time of the others.
    """

    def __init__(self, start_ms: float = EPOCH_MS, *, tick_ms: float = 0, is_auto: bool = False) -> None:
        self.wall_offset_ms = 0
        """Error of the wall clock: added to `now_ms` but not to `monotonic`. Set it to simulate a clock that is set back."""
        self.sleep_count = 0  # number of finished calls of `sleep`
        self._start_ms = start_ms
        self._time_ms = start_ms  # wall and monotonic time without `wall_offset_ms`
        self._tick_ms = tick_ms
        self._is_auto = is_auto
        # Heap of (end in ms, sequence number, waiter): sleepers with equal ends wake in the order in which they went to sleep.
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._sequence = itertools.count()  # orders sleepers with equal ends

    @property
    def time_ms(self) -> float:
        """Exact time in milliseconds since the epoch, with its fraction and without `wall_offset_ms`."""
        return self._time_ms

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since the clock was created."""
        return self._time_ms - self._start_ms

    def now_ms(self) -> int:
        """Return the wall-clock time in whole milliseconds since the epoch."""
        now_ms = int(self._time_ms) + self.wall_offset_ms
        if self._tick_ms:
            self.advance_ms(self._tick_ms)
        return now_ms

    def monotonic(self) -> float:
        """Return the time in seconds, unaffected by `wall_offset_ms`."""
        return self._time_ms / 1000

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass and wake the sleepers whose end is reached, earliest first."""
        self.advance_ms(seconds * 1000)

    def advance_ms(self, milliseconds: float) -> None:
        """As `advance`, in milliseconds."""
        self.set_ms(self._time_ms + milliseconds)

    def set_ms(self, time_ms: float) -> None:
        """Set the time, in milliseconds since the epoch. An earlier time is allowed and wakes no sleeper."""
        self._time_ms = time_ms
        while self._sleepers and self._sleepers[0][0] <= time_ms:
            _, _, waiter = heapq.heappop(self._sleepers)
            if not waiter.done():  # a cancelled sleeper stays in the heap until its end
                waiter.set_result(None)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has advanced by `seconds`. Returns without waiting in automatic mode, or if `seconds` ≤ 0."""
        if self._is_auto:
            self.advance(seconds)
        if self._is_auto or seconds <= 0:
            await asyncio.sleep(0)  # as a real sleep does, let other tasks run
        else:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._sleepers, (self._time_ms + seconds * 1000, next(self._sequence), waiter))
            await waiter
        self.sleep_count += 1

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call `callback(*args)` soon after the clock has advanced by `seconds`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(lambda done: None if done.cancelled() else callback(*args))
        heapq.heappush(self._sleepers, (self._time_ms + seconds * 1000, next(self._sequence), waiter))
        return _FakeTimer(waiter)


class _FakeTimer:
    """A call that `FakeClock.call_later` scheduled."""

    def __init__(self, waiter: asyncio.Future[None]) -> None:
        self._waiter = waiter  # its result makes the call

    def cancel(self) -> None:
        self._waiter.cancel()
