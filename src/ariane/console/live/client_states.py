"""States of the clients of consumer groups, fetched once for all tabs.

    fetch(group) ─→ the last states, if they are younger than VALID_S or still being fetched
                 └→ otherwise ask the brokers for the clients, and each client for its state (307)

Brokers relay 307 to the clients, so a fetch costs one request per client of the group: pages that refresh themselves must not
multiply that by the number of tabs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import NamedTuple

from ariane.clock import Clock
from ariane.cluster.groups.consumer_status import ConsumerStates
from ariane.console.live.subscription_checks import AdminSource

VALID_S = 5.0  # shorter than the refresh of the pages: none of them shows the same states twice


class SharedStates(NamedTuple):
    """States of the clients of a group, and the time of their request; None: the group has no client."""

    at_ms: int
    found: ConsumerStates | None


class _Fetch(NamedTuple):
    """A fetch that is running or done, and when it started, by a clock that is never set."""

    started_s: float
    task: asyncio.Task[SharedStates]


class ClientStates:
    """Shares the states of clients between requests."""

    def __init__(self, *, source: AdminSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        # By group and what the sender may see, in the order of their start.
        self._fetches: dict[tuple[Hashable, str], _Fetch] = {}

    async def fetch(self, group: str, access: Hashable = None) -> SharedStates:
        """Return the states of the clients of a group, at most VALID_S old, shared by senders with the same `access`.

        Raises:
            ServerUnavailable: no broker is registered.
        """
        now_s = self._clock.monotonic()
        self._drop_old(now_s)
        key = access, group
        if key not in self._fetches:
            self._fetches[key] = _Fetch(now_s, asyncio.create_task(self._ask(group), name=f"clients of {group}"))
        # A tab that is closed does not cancel the fetch of the others.
        return await asyncio.shield(self._fetches[key].task)

    async def close(self) -> None:
        """Cancel running fetches."""
        tasks = [fetch.task for fetch in self._fetches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop_old(self, now_s: float) -> None:
        for key, (started_s, task) in list(self._fetches.items()):
            # A failure is not shared with later requests: they try again.
            is_failed = task.done() and (task.cancelled() or task.exception() is not None)
            if is_failed or (task.done() and now_s - started_s >= VALID_S):
                del self._fetches[key]

    async def _ask(self, group: str) -> SharedStates:
        at_ms = self._clock.now_ms()
        admin = self._source.admin()
        connections = await admin.consumer_connections(group)
        return SharedStates(at_ms, None if connections is None else await admin.consumer_states(group, connections))
