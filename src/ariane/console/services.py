"""`ConsoleServices`: the objects that areas receive. Opened once per console.

open_services(settings) ─→ ConsoleServices: settings, clock, admin(), live, …
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.cluster.admin import Admin
from ariane.console.live.guarded_pool import GuardedPool
from ariane.console.live.server_health import ServerHealth
from ariane.console.settings import ConsoleSettings
from ariane.net.connection_pool import ConnectionPool
from ariane.protocol import signing

READ_TIMEOUT_MS = 1_000.0  # of one request: a broker that does not respond may delay a page by a second


class ConsoleServices:
    """What the areas of a console use.

    Args:
        settings: Settings of the console.
        peers: Connections to the servers, shared by all requests.
        clock: Replaced by tests.
    """

    def __init__(self, *, settings: ConsoleSettings, peers: ConnectionPool, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings = settings
        self.clock = clock
        self._peers = peers

    def admin(self, *, is_dry_run: bool = False) -> Admin:
        """Return the operations on the cluster. Each request uses its own, because `Admin.changes` belongs to one request."""
        return Admin(
            self.settings.namesrv,
            credentials=self.settings.credentials,
            timeout_ms=READ_TIMEOUT_MS,
            is_dry_run=is_dry_run,
            peers=self._peers,
        )


@asynccontextmanager
async def open_services(settings: ConsoleSettings, *, clock: Clock = SYSTEM_CLOCK) -> AsyncIterator[ConsoleServices]:
    """Yield the services of a console; close connections and background tasks at the end."""
    sign = functools.partial(signing.sign, settings.credentials) if settings.credentials else None
    async with GuardedPool(health=ServerHealth(clock), sign=sign, clock=clock) as peers:
        yield ConsoleServices(settings=settings, peers=peers, clock=clock)
