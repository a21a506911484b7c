"""Serves /metrics and health checks next to a server of this process, if its setting metricsPort says so."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar

from ariane.errors import StoreError
from ariane.protocol.requests.routing import MASTER_ID

if TYPE_CHECKING:
    from ariane.broker.broker_handlers import BrokerHandlers, BrokerServices
    from ariane.metrics.families import Family
    from ariane.metrics.serving.endpoint import MetricsSource
    from ariane.nameserver.server import NameServer
    from ariane.net.listening.server_tls import ServerTls
    from ariane.proxy.cluster.cluster_proxy import ClusterProxy


class TlsServer(Protocol):
    """A server with certificates, which its metrics use, too."""

    @property
    def tls(self) -> ServerTls: ...


T = TypeVar("T", bound=TlsServer)


class RunningBroker(TlsServer, Protocol):
    """A broker, of one role or with failover."""

    @property
    def addr(self) -> str: ...
    @property
    def services(self) -> BrokerServices: ...
    @property
    def handlers(self) -> BrokerHandlers: ...
    async def reload(self) -> None: ...


class _CurrentRole:
    """The metrics of a broker in its current role: failover replaces its services."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker
        self._services: BrokerServices | None = None  # of the source
        self._source: MetricsSource | None = None

    async def families(self, timeout_s: float | None) -> Iterable[Family]:
        """Return the families of a scrape. [MetricsSource]"""
        from ariane.metrics.broker.broker_source import BrokerSource

        services = self._broker.services
        if self._source is None or services is not self._services:
            self._services, self._source = services, BrokerSource(services, self._broker.handlers.runtime_info)
        return await self._source.families(timeout_s)


def broker_source(broker: RunningBroker) -> MetricsSource:
    """Return the source of a started broker."""
    return _CurrentRole(broker)


def broker_faults(broker: RunningBroker) -> list[str]:
    """Return why a started broker cannot take messages, or cannot be found by clients."""
    try:
        services = broker.services
    except StoreError as error:  # between two roles
        return [str(error)]
    store = services.store
    # A slave refuses messages by its role.
    refusal = store.failure or (store.refusal if services.settings.current.broker_id == MASTER_ID else None)
    faults = [] if refusal is None else [f"messages are refused: {refusal}"]
    if not services.registration.is_registered:
        faults.append(f"not registered with any name server of {services.settings.current.namesrv_addr}")
    return faults


def name_server_source(server: NameServer) -> MetricsSource:
    """Return the source of a started name server."""
    from ariane.metrics.name_server_source import NameServerSource

    return NameServerSource(server.routes, server.connections, server.monotonic_ms, server.protection, server.audit)


def proxy_source(proxy: ClusterProxy) -> MetricsSource:
    """Return the source of a started proxy."""
    from ariane.metrics.proxy_source import ProxySource

    return ProxySource(clients=proxy.clients, routes=proxy.routes, traces=proxy.traces, protection=proxy.protection)


@contextlib.asynccontextmanager
async def with_metrics(
    server: AbstractAsyncContextManager[T],
    source: Callable[[T], MetricsSource],
    address: str,
    port: int,
    *,
    faults: Callable[[T], Sequence[str]] = lambda server: (),
) -> AsyncIterator[T]:
    """Run `server`, and its metrics endpoint unless `port` is 0. `faults` are those of `MetricsEndpoint`."""
    async with server as started:
        if not port:
            yield started
            return
        # Loaded only here: most servers run without metrics.
        from ariane.metrics.serving.endpoint import MetricsEndpoint

        async with MetricsEndpoint(source(started), address, port, tls=started.tls, faults=lambda: faults(started)):
            yield started
