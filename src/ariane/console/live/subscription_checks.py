"""Checks in the background whether the clients of a consumer group subscribe alike.

    request(groups on a page) ─→ at most GROUPS_AT_ONCE in flight ─→ ask each client (307) ─→ result(group): True, False, None

Only the clients know their subscriptions, so a check costs one request per client. Lists request it for the groups of the page
that is looked at, show the last result, and get the new one with their next refresh.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from ariane.clock import Clock
from ariane.cluster.admin import Admin
from ariane.cluster.groups.consumer_status import find_inconsistent
from ariane.errors import ArianeError
from ariane.net.tasks import BackgroundTasks

VALID_MS = 20_000  # a check is repeated after this time
UNKNOWN_MS = 3_000  # the same if not all clients responded: one of them may just have connected
GROUPS_AT_ONCE = 4
GROUPS_MAX = 2_000  # results in memory; the oldest is dropped


class AdminSource(Protocol):
    """Returns operations on the cluster (`ConsoleServices`)."""

    def admin(self, *, is_dry_run: bool = False) -> Admin:
        """Return operations for one request."""
        ...


class CheckResult(NamedTuple):
    """Whether the clients of a group subscribe differently; None if that is unknown."""

    at_ms: int
    is_inconsistent: bool | None


class SubscriptionChecks:
    """Results of checks, and the tasks that run them."""

    def __init__(self, *, source: AdminSource, clock: Clock) -> None:
        self._source = source  # of operations on the cluster
        self._clock = clock  # time of the results
        self._results: dict[str, CheckResult] = {}  # in the order of the checks
        self._in_flight: set[str] = set()  # groups whose check is running or waits for its turn
        self._slots = asyncio.Semaphore(GROUPS_AT_ONCE)  # bounds the requests to clients
        self._tasks = BackgroundTasks("subscription checks")  # one per group

    def result(self, group: str) -> bool | None:
        """Return whether the clients of a group subscribe differently, by the last check; None if that is unknown."""
        result = self._results.get(group)
        return None if result is None else result.is_inconsistent

    def request(self, groups: Iterable[str]) -> None:
        """Check groups whose result is missing or old, in the background."""
        now_ms = self._clock.now_ms()
        for group in groups:
            if group not in self._in_flight and self._is_due(group, now_ms):
                self._in_flight.add(group)
                self._tasks.start(self._check(group), group)

    def _is_due(self, group: str, now_ms: int) -> bool:
        result = self._results.get(group)
        if result is None:
            return True
        return now_ms - result.at_ms >= (UNKNOWN_MS if result.is_inconsistent is None else VALID_MS)

    async def close(self) -> None:
        """Cancel running checks."""
        await self._tasks.close()

    async def _check(self, group: str) -> None:
        is_inconsistent = None
        try:
            async with self._slots:
                answer = await self._source.admin().consumer_states(group)
            is_inconsistent = bool(find_inconsistent(group, answer.states))
            # A client that did not respond may be the one that differs.
            if not is_inconsistent and (answer.unavailable or not answer.states):
                is_inconsistent = None
        except ArianeError:
            pass  # unknown: the group went offline, or its broker does not respond, which the list shows
        finally:
            self._in_flight.discard(group)
            self._results.pop(group, None)
            self._results[group] = CheckResult(self._clock.now_ms(), is_inconsistent)
            while len(self._results) > GROUPS_MAX:
                del self._results[next(iter(self._results))]
