"""Keeps the CPU time of polling below a share of a core: requests wait until the budget allows them.

    PacedRequests.request ─→ CpuBudget.wait ─→ pool.request

The budget counts all CPU time of the thread that polls: sending, decoding, and computing rows. It allows a burst after a pause, so
that a small cluster is polled without any wait, and a large start balance, so that the first data of a large one arrive soon.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.net.pools.requester import Requester, ServerRequest
from ariane.protocol.command import Command

CPU_SHARE = 0.08  # of a core; the requests that are not paced take a little more
BURST_S = 0.5
START_S = 8.0
SLEEP_MIN_S, SLEEP_MAX_S = 0.001, 1.0  # between two looks at the balance


class CpuBudget:
    """CPU time that a thread may use.

    Args:
        share: Seconds of CPU time per second.
        burst_s: CPU time that is saved while the thread uses less.
        start_s: CPU time that is available at the start.
        cpu_time: Returns the CPU time of the current thread in seconds; replaced by tests.
    """

    def __init__(
        self,
        *,
        share: float = CPU_SHARE,
        burst_s: float = BURST_S,
        start_s: float = START_S,
        clock: Clock = SYSTEM_CLOCK,
        cpu_time: Callable[[], float] = time.thread_time,
    ) -> None:
        self._share = share
        self._burst_s = burst_s
        self._clock = clock
        self._cpu_time = cpu_time
        self._balance_s = start_s  # negative: more was used than allowed
        # Monotonic time of the last update; None before the first, in the thread itself.
        self._updated_s: float | None = None
        self._used_s = 0.0  # CPU time at that update

    async def wait(self) -> None:
        """Return when the balance is not negative."""
        while (balance_s := self._update()) < 0:
            await self._clock.sleep(min(SLEEP_MAX_S, max(SLEEP_MIN_S, -balance_s / self._share)))

    def _update(self) -> float:
        now_s, used_s = self._clock.monotonic(), self._cpu_time()
        if self._updated_s is not None:
            gained_s = (now_s - self._updated_s) * self._share
            # The start balance may exceed the burst: it is used up, and not cut.
            limit_s = max(self._burst_s, self._balance_s)
            self._balance_s = min(limit_s, self._balance_s + gained_s) - (used_s - self._used_s)
        self._updated_s, self._used_s = now_s, used_s
        return self._balance_s


class PacedRequests(Requester):
    """Sends requests within a budget."""

    def __init__(self, peers: Requester, budget: CpuBudget) -> None:
        self._peers = peers
        self._budget = budget

    async def exchange(self, request: ServerRequest) -> Command:
        """Send a request when the budget allows it; its time limit begins then."""
        await self._budget.wait()
        return await self._peers.exchange(request)
