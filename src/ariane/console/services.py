"""`ConsoleServices`: the objects that areas receive. Opened once per console.

open_services(settings) ─→ ConsoleServices: settings, clock, admin(), live, …
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ariane.client.instance.settings import ClientSettings
from ariane.client.instance.validation import name_servers
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.cluster.admin import Admin
from ariane.console.alerts.alert_service import AlertService
from ariane.console.live.client_states import ClientStates
from ariane.console.live.guarded_pool import GuardedPool
from ariane.console.live.live_cluster import LiveCluster, SnapshotSource
from ariane.console.live.subscription_checks import SubscriptionChecks
from ariane.console.security.accounts.accounts import ConsoleAccounts
from ariane.console.security.accounts.authentication import Authenticator
from ariane.console.security.accounts.sessions import SessionStore
from ariane.console.security.audit_log import AuditLog
from ariane.console.security.audit_notes import watch_changes
from ariane.console.settings import ConsoleSettings
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.pools.server_health import ServerHealth
from ariane.net.tls import tls_context
from ariane.protocol import signing

READ_TIMEOUT_MS = 1_000.0  # of one request: a broker that does not respond may delay a page by a second


class ConsoleServices:
    """What the areas of a console use.

    Args:
        settings: Settings of the console.
        peers: Connections to the servers, shared by all requests.
        live: The background poll of the cluster.
        clock: Replaced by tests.
    """

    def __init__(
        self, *, settings: ConsoleSettings, peers: ConnectionPool, live: SnapshotSource, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.settings = settings  # addresses, directories, limits
        self.clock = clock  # for as-of times
        self.accounts = ConsoleAccounts(settings.data_dir, clock=clock)  # those of the console, not of the brokers
        self.sessions = SessionStore(settings.data_dir, accounts=self.accounts, clock=clock)  # logged-in browsers
        # Finds out who sends a request.
        self.authenticator = Authenticator(
            host=settings.host,
            is_login_demanded=settings.is_login_required,
            accounts=self.accounts,
            sessions=self.sessions,
            clock=clock,
        )
        self.audit = AuditLog(settings.data_dir, clock=clock)  # written by the middleware; areas call audit_notes.note
        self.live = live  # rows of lists
        # Evaluates its rules while it is open as a context manager.
        self.alerts = AlertService(
            settings.data_dir, live=live, cluster=settings.namesrv, tables_dir=settings.tables_dir, clock=clock
        )
        self.subscription_checks = SubscriptionChecks(source=self, clock=clock)  # of the groups on pages
        self.client_states = ClientStates(source=self, clock=clock)  # of the group whose page is open, for all its tabs
        self._peers = peers  # shared by all requests

    def admin(self, *, is_dry_run: bool = False) -> Admin:
        """Return the operations on the cluster. Each request uses its own, because `Admin.changes` belongs to one request."""
        admin = Admin(
            self.settings.namesrv,
            client=self.settings.client,
            timeout_ms=READ_TIMEOUT_MS,
            is_dry_run=is_dry_run,
            peers=self._peers,
        )
        watch_changes(admin.changes, is_dry_run=is_dry_run)
        return admin


@asynccontextmanager
async def open_services(settings: ConsoleSettings, *, clock: Clock = SYSTEM_CLOCK) -> AsyncIterator[ConsoleServices]:
    """Yield the services of a console; close connections and background tasks at the end."""
    client = settings.client or ClientSettings()
    sign = functools.partial(signing.sign, client.credentials) if client.credentials else None
    tls = tls_context(client)
    health, addresses = ServerHealth(clock), name_servers(settings.namesrv)
    async with (
        GuardedPool(addresses, health=health, sign=sign, tls=tls, clock=clock) as peers,
        LiveCluster(addresses, health=health, sign=sign, tls=tls, clock=clock) as live,
    ):
        services = ConsoleServices(settings=settings, peers=peers, live=live, clock=clock)
        try:
            async with services.alerts:
                yield services
        finally:
            await services.subscription_checks.close()
            await services.client_states.close()
        services.sessions.save()
