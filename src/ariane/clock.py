"""Clock abstraction. Code that reads the time or sleeps takes a Clock argument so that tests can control it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

EPOCH = datetime.fromtimestamp(0, UTC)


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Do not make the call. Has no effect once it was made."""
        ...


class Clock(Protocol):
    """Source of time. Programs pass `SYSTEM_CLOCK`, tests pass `ariane.testing.clock.FakeClock`."""

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an arbitrary instant; the value never decreases."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait until `seconds` have passed."""
        ...

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call `callback(*args)` in the running event loop once `seconds` have passed."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since the epoch."""
        # Integers throughout: a float of seconds cannot represent every millisecond exactly.
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    """Return seconds since an arbitrary instant; the value never decreases."""

    async def sleep(self, seconds: float) -> None:
        """Wait until `seconds` have passed."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call `callback(*args)` in the running event loop once `seconds` have passed."""
        return asyncio.get_running_loop().call_later(seconds, callback, *args)


SYSTEM_CLOCK: Clock = SystemClock()


def utc_of(ms: int) -> datetime | None:
    """Return a time; None if no calendar has it, because producers may send any number."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def ms_of(time: datetime) -> int:
    """Return `time` in whole milliseconds since the epoch. A time without a zone is taken as UTC."""
    # Integer division of durations: `timestamp()` would go through a float, too.
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH) // timedelta(milliseconds=1)
