"""The rates of one connection of a server: its traffic is added to its limits, and it is read later while it exceeds one.

read, write  ─→ add ─────┬─→ within the limits
                         └→ exceeded: nothing is read until it is within them again
batch of requests ─→ begin_batch ─→ exceeded: these requests are refused or served late ─→ end_batch: nothing is read until …
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from ariane.net.limits.quotas import ConnectionQuota, Refusal, ResourceName


class Reader(Protocol):
    """The connection."""

    def update_reading(self) -> None:
        """Pause reading, or resume it, as `Throttle.is_closed` says."""
        ...


class Throttle:
    """Decides when a connection is read.

    Args:
        reader: Its `update_reading` is called after a change.
        quota: The limits.
        loop: The running event loop.
    """

    def __init__(self, reader: Reader, quota: ConnectionQuota, loop: asyncio.AbstractEventLoop) -> None:
        self.quota = quota
        self.refusal: Refusal | None = None  # the limit of requests that this batch exceeds
        self._reader = reader
        self._loop = loop
        self._read_after = 0.0  # on the loop's clock
        self._timer: asyncio.TimerHandle | None = None  # runs until then

    @property
    def is_closed(self) -> bool:
        """Whether nothing is read now."""
        return self._timer is not None

    def add(self, resource: ResourceName, amount: int, now: float) -> None:
        """Count traffic, and read the next data when it is within the limits."""
        self._wait(self.quota.add(resource, amount, now))

    def begin_batch(self, now: float) -> str | None:
        """Return why the requests of a batch must be refused; None if they are served."""
        self.refusal = self.quota.refusal("requests", 0, now)
        return None if self.refusal is None else self.refusal.remark

    def end_batch(self, requests: int, now: float) -> None:
        """Count the requests of a batch. One that exceeds a limit is the last until it is within the limits."""
        wait_s = self.quota.add("requests", requests, now)
        if self.refusal is not None:
            self._wait(wait_s)

    def delay(self, now: float) -> float:
        """Count a request that is served late, and return in how many seconds."""
        return self.quota.add("requests", 1, now)

    def count_refused(self) -> None:
        """Count a request that was refused."""
        if self.refusal is not None:
            self.quota.quotas.exceeded[self.refusal.key] += 1

    def cancel(self) -> None:
        """End the wait: the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, wait_s: float) -> None:
        if wait_s > 0:
            self._read_after = max(self._read_after, self._loop.time() + wait_s)
            if self._timer is None:
                self._timer = self._loop.call_at(self._read_after, self._on_time)
                self._reader.update_reading()

    def _on_time(self) -> None:
        self._timer = None
        self._wait(self._read_after - self._loop.time())
        self._reader.update_reading()
