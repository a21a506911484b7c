"""`ConsoleServices`: the objects that areas receive. Opened once per console.

open_services(settings) ─→ ConsoleServices: settings, clock, admin(), live, …
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ariane.access.public_ports import PortProtection
from ariane.client.instance.settings import ClientSettings
from ariane.client.instance.validation import name_servers
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.cluster.admin import Admin
from ariane.console.alerts.alert_service import AlertService
from ariane.console.limits.access import FULL_ACCESS, current_access, with_access
from ariane.console.limits.access_rules import AccessRules
from ariane.console.limits.limited_admin import LimitedAdmin
from ariane.console.limits.limited_live import LimitedLive
from ariane.console.limits.limited_pool import LimitedPool
from ariane.console.live.client_states import ClientStates
from ariane.console.live.guarded_pool import GuardedPool
from ariane.console.live.live_cluster import LiveCluster, SnapshotSource
from ariane.console.live.subscription_checks import SubscriptionChecks
from ariane.console.security.accounts.accounts import ConsoleAccounts
from ariane.console.security.accounts.authentication import Authenticator
from ariane.console.security.accounts.sessions import ExternalSessions, SessionStore
from ariane.console.security.audit_log import AuditLog
from ariane.console.security.audit_notes import watch_changes
from ariane.console.security.oidc.oidc_provider import OidcProvider
from ariane.console.security.oidc.oidc_settings import read_settings
from ariane.console.settings import ConsoleSettings
from ariane.net.listening.server_tls import ServerTls
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.pools.server_health import ServerHealth
from ariane.net.tls import tls_context
from ariane.protocol import signing
from ariane.tables.table_home import Home

READ_TIMEOUT_MS = 1_000.0  # of one request: a broker that does not respond may delay a page by a second


class ConsoleServices:
    """What the areas of a console use.

    Args:
        peers: Connections to the servers, shared by all requests.
        live: The background poll of the cluster.
        tls: The certificate of the HTTP port; None: it is plain.
    """

    def __init__(
        self,
        *,
        settings: ConsoleSettings,
        peers: ConnectionPool,
        live: SnapshotSource,
        tls: ServerTls | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.settings = settings  # addresses, directories, limits
        self.protection = PortProtection(tls, settings.gaps)  # of the HTTP port, which every page warns of
        self.clock = clock  # for as-of times
        self.accounts = ConsoleAccounts(settings.data_dir, clock=clock)  # those of the console, not of the brokers
        provider = read_settings(settings.data_dir)
        self.oidc = OidcProvider(provider, clock=clock) if provider is not None else None  # accounts of a company
        external = None
        if provider is not None:
            external = ExternalSessions(provider.generation, round(provider.session_hours * 3_600_000))
        # Logged-in browsers.
        self.sessions = SessionStore(settings.data_dir, accounts=self.accounts, external=external, clock=clock)
        # Finds out who sends a request.
        self.authenticator = Authenticator(
            host=settings.host,
            is_login_demanded=settings.is_login_required or provider is not None,
            accounts=self.accounts,
            sessions=self.sessions,
            clock=clock,
        )
        self.audit = AuditLog(settings.data_dir, clock=clock)  # written by the middleware; areas call audit_notes.note
        self.access_rules = AccessRules(settings.data_dir)  # limits of accounts
        self.live = LimitedLive(live)  # rows of lists
        # Evaluates its rules while it is open as a context manager.
        self.alerts = AlertService(
            settings.data_dir, live=live, cluster=settings.namesrv, tables_dir=settings.tables_dir, clock=clock
        )
        # Of the groups on pages; whether clients subscribe alike is the same for everyone who sees the group.
        self.subscription_checks = SubscriptionChecks(source=_FullAccess(self), clock=clock)
        self.client_states = ClientStates(source=self, clock=clock)  # of the group whose page is open, for all its tabs
        self._peers = peers  # shared by all requests

    @property
    def tables_dir(self) -> Home | None:
        """Directory of the pipeline's tables; None without a pipeline, and for accounts that may not see all their rows."""
        access = current_access()
        hides_rows = access.is_limited or any(mask.properties for mask in access.masks)
        return None if hides_rows else self.settings.tables_dir

    def admin(self, *, is_dry_run: bool = False) -> Admin:
        """Return the operations on the cluster. Each request uses its own, because `Admin.changes` belongs to one request."""
        access, kind, peers = current_access(), Admin, self._peers
        if not access.is_full:
            kind, peers = LimitedAdmin, LimitedPool(peers, access, self.settings.trace_topic)
        admin = kind(
            self.settings.namesrv,
            client=self.settings.client,
            timeout_ms=READ_TIMEOUT_MS,
            is_dry_run=is_dry_run,
            peers=peers,
        )
        watch_changes(admin.changes, is_dry_run=is_dry_run)
        return admin


class _FullAccess:
    """Operations that are not limited to what the sender of a request may see."""

    def __init__(self, services: ConsoleServices) -> None:
        self._services = services

    def admin(self, *, is_dry_run: bool = False) -> Admin:
        with with_access(FULL_ACCESS):
            return self._services.admin(is_dry_run=is_dry_run)


@asynccontextmanager
async def open_services(
    settings: ConsoleSettings, *, tls: ServerTls | None = None, clock: Clock = SYSTEM_CLOCK
) -> AsyncIterator[ConsoleServices]:
    """Yield the services of a console; close connections and background tasks at the end. `tls` is that of its HTTP port."""
    client = settings.client or ClientSettings()
    sign = functools.partial(signing.sign, client.credentials) if client.credentials else None
    client_tls = tls_context(client)
    health, addresses = ServerHealth(clock), name_servers(settings.namesrv)
    async with (
        GuardedPool(addresses, health=health, sign=sign, tls=client_tls, clock=clock) as peers,
        LiveCluster(addresses, health=health, sign=sign, tls=client_tls, clock=clock) as live,
    ):
        services = ConsoleServices(settings=settings, peers=peers, live=live, tls=tls, clock=clock)
        try:
            async with services.alerts:
                yield services
        finally:
            await services.subscription_checks.close()
            await services.client_states.close()
            if services.oidc is not None:
                await services.oidc.close()
        services.sessions.save()
