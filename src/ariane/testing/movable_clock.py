"""The clock of the servers of a local cluster: real time plus what the test has advanced.

    shift(3600) ─► now_ms is an hour later
                └► each sleep and each call_later that would end within the hour ends now, earliest first

`monotonic` does not move: servers use it for what depends on their peers, which run in real time (heartbeats, idle connections,
queue locks). Used in the event loop of the servers only; `ClusterClock` is the part that tests use.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from ariane.client.instance import validation
from ariane.clock import SYSTEM_CLOCK, Timer

IDLE_MAX_S = 1.0
POLL_S = 0.001


class MovableClock:
    """An `ariane.clock.Clock` whose wall clock and timers can be moved."""

    def __init__(self) -> None:
        self._advanced_ms = 0  # sum of all shifts
        self._timers: dict[_MovableTimer, None] = {}  # scheduled calls, in the order in which they were scheduled
        # Tasks that have slept: those that do periodic work. A task that does not sleep is at work.
        self._periodic: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._asleep: set[asyncio.Task[Any]] = set()

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since the epoch."""
        return SYSTEM_CLOCK.now_ms() + self._advanced_ms

    def monotonic(self) -> float:
        """Return seconds since an arbitrary instant, unaffected by `shift`."""
        return SYSTEM_CLOCK.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait until `seconds` have passed or were skipped by `shift`."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, _finish, over)
        task = asyncio.current_task()
        assert task is not None
        self._periodic.add(task)
        self._asleep.add(task)
        try:
            await over
        finally:
            self._asleep.discard(task)
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call `callback(*args)` once `seconds` have passed or were skipped by `shift`."""
        timer = _MovableTimer(self._timers, asyncio.get_running_loop().time() + seconds, callback, args)
        timer.schedule()
        return timer

    async def wait_idle(self) -> None:
        """Wait until all periodic work in progress is done, at most IDLE_MAX_S.

        A shift during such work would not end the sleep that follows it.
        """
        deadline = self.monotonic() + IDLE_MAX_S
        while busy := [task for task in self._periodic if task not in self._asleep and not task.done()]:
            if self.monotonic() >= deadline:
                self._periodic.difference_update(busy)  # they wait for something else, and may never sleep again
                return
            await asyncio.sleep(POLL_S)

    def shift(self, milliseconds: int) -> None:
        """Move the clock forward. Calls that are due now are made in the next iterations of the event loop."""
        self._advanced_ms += milliseconds
        for timer in sorted(self._timers, key=lambda timer: timer.due):
            timer.due -= milliseconds / 1000
            timer.schedule()


class _MovableTimer:
    """A call at a loop time that `shift` changes."""

    def __init__(
        self, timers: dict[_MovableTimer, None], due: float, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        self.due = due  # loop time of the call
        self._timers = timers  # those of the clock; contains this one until it is done
        self._callback = callback
        self._args = args
        self._handle: asyncio.TimerHandle | None = None  # None before the first `schedule`
        timers[self] = None

    def schedule(self) -> None:
        """Schedule the call for `due`; replaces what was scheduled before."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = asyncio.get_running_loop().call_at(self.due, self._call)

    def cancel(self) -> None:
        self._timers.pop(self, None)
        if self._handle is not None:
            self._handle.cancel()

    def _call(self) -> None:
        self._timers.pop(self, None)
        self._callback(*self._args)


class ClockMover(Protocol):
    """Moves the servers' clock from the thread of a test. [ServerThread]"""

    def advance_clock(self, milliseconds: int) -> None:
        """Return once the delayed messages that are due now are delivered, and periodic work that is due is done."""
        ...


class ClusterClock:
    """The clock of a cluster's servers: real time, plus what `advance` added."""

    def __init__(self, clock: MovableClock, mover: ClockMover) -> None:
        self._clock = clock  # all servers of the cluster use it
        self._mover = mover  # runs in the servers' event loop what has to run there

    def now(self) -> datetime:
        """Return the servers' time, in UTC."""
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)

    def now_ms(self) -> int:
        """Return the servers' time in milliseconds since the epoch."""
        return self._clock.now_ms()

    def advance(self, duration: float | timedelta) -> None:
        """Move the servers' clock forward. Due messages are delivered, and due periodic work is done, when this returns.

        The clock jumps. What is periodic happens once, however long the jump: advance twice by a minute for two check-backs of
        a transaction. Connections, heartbeats and clients stay in real time.

        Args:
            duration: Seconds, or a timedelta; at least 0.

        Raises:
            ConfigError: the duration is negative; the clock cannot go back.

        Example:
            cluster.clock.advance(timedelta(hours=1))
        """
        seconds = validation.seconds("duration", duration)
        self._mover.advance_clock(round(seconds * 1000))


def _finish(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)
