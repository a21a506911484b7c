"""Time as a parameter: who needs to know or to wait for time is given a Clock."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime.fromtimestamp(0, UTC)


class Clock(Protocol):
    """What a program may ask of time. Tests pass `ariane.testing.clock.FakeClock`."""

    def now_ms(self) -> int:
        """Wall clock: milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary instant; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


SYSTEM_CLOCK: Clock = SystemClock()


def ms_of(time: datetime) -> int:
    """Whole ms since the epoch at `time`, which is in UTC when it has no zone."""
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH) // timedelta(milliseconds=1)
