"""Limit of messages per second."""

from __future__ import annotations

from ariane.clock import Clock


class RateLimiter:
    """Spaces messages evenly: after n messages the next ones wait n / rate seconds. A pause earns no burst."""

    def __init__(self, per_second: int, clock: Clock) -> None:
        self._spacing_s = 1 / per_second if per_second else 0.0  # 0: no limit
        self._clock = clock
        self._free_at = 0.0  # monotonic time at which the next messages may pass

    async def wait(self, count: int) -> None:
        """Return when `count` messages may pass."""
        if not self._spacing_s:
            return
        now = self._clock.monotonic()
        start = max(now, self._free_at)
        self._free_at = start + count * self._spacing_s
        if start > now:
            await self._clock.sleep(start - now)
