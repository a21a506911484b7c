"""What the supervisor waits with: the clock of leases, conditions, and repeated attempts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from ariane.errors import ArianeError

log = logging.getLogger("ariane.broker.failover.waiting")

POLL_S = 0.02
RETRY_S = 1.0  # after a Broker could not be opened, or an epoch not be stored


class SystemBootClock:
    """CLOCK_BOOTTIME, which goes on while the machine is suspended."""

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def poll(condition: Callable[[], bool], limit_s: float) -> None:
    """Wait until `condition` holds, at most `limit_s`."""
    for _ in range(int(limit_s / POLL_S)):
        if condition():
            return
        await asyncio.sleep(POLL_S)


async def retried(work: Callable[[], Awaitable[None]], name: str) -> None:
    """Call `work` until it succeeds."""
    while True:
        try:
            await work()
        except (ArianeError, OSError) as error:
            log.error("Cannot %s, retrying in %g s: %s", name, RETRY_S, error)
            await asyncio.sleep(RETRY_S)
        else:
            return
