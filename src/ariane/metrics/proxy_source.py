"""Metrics of a proxy in this process: its clients, and what limits them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from ariane.access.public_ports import PortProtection
from ariane.metrics import families
from ariane.metrics.families import Family, Metric, MetricTable
from ariane.metrics.limit_metrics import limit_metrics
from ariane.metrics.port_metrics import port_metrics
from ariane.net.limits.quotas import LimitState
from ariane.net.server import RemotingServer
from ariane.proxy.cluster.cluster_routes import ClusterRoutes
from ariane.proxy.cluster.cluster_traces import ClusterTraces


class ScrapedProxy(msgspec.Struct, frozen=True):
    """State of a proxy at the time of a scrape."""

    clients: int
    is_ready: bool
    silent_brokers: int
    trace_records: Mapping[str, int]
    """Written for clients, by outcome."""
    certificate_days: float | None = None
    """Days until the certificate of the port expires; None without a file."""
    gaps: tuple[str, ...] = ()
    """Protections that the port lacks towards other machines."""
    limits: tuple[LimitState, ...] = ()
    """In total, per address and per account."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Values of the labels that all its metrics have: none."""
        return ()


PROXY_METRICS: MetricTable = {
    Metric("ariane_proxy_clients", "gauge", "Clients with calls in the last two minutes."):
        lambda state: iter([((), state.clients)]),
    Metric("ariane_proxy_ready", "gauge", "1 while a name server responds and lists a master, else 0."):
        lambda state: iter([((), int(state.is_ready))]),
    Metric("ariane_proxy_silent_brokers", "gauge", "Brokers that did not answer a request in the last ten seconds."):
        lambda state: iter([((), state.silent_brokers)]),
    Metric("ariane_proxy_trace_records_total", "counter", "Trace records that the proxy writes for clients that write none:"
           " written, dropped (no room), untracked (too many deliveries had not ended).", ("outcome",)):
        lambda state: (((outcome,), count) for outcome, count in state.trace_records.items()),
    **port_metrics("ariane_proxy"),
    **limit_metrics("ariane_proxy", ()),
}  # fmt: skip


class ProxySource:
    """Reads the metrics of one proxy."""

    def __init__(
        self, *, clients: RemotingServer, routes: ClusterRoutes, traces: ClusterTraces, protection: PortProtection
    ) -> None:
        self._clients = clients
        self._routes = routes
        self._traces = traces
        self._protection = protection

    async def families(self, timeout_s: float | None) -> list[Family]:
        """Return the families of the proxy."""
        return families.read(PROXY_METRICS, self._state())

    def _state(self) -> ScrapedProxy:
        return ScrapedProxy(
            clients=self._clients.connection_count,
            is_ready=self._routes.fault is None,
            silent_brokers=len(self._routes.silent_brokers()),
            trace_records=self._traces.counts(),
            certificate_days=self._protection.certificate_days(),
            gaps=self._protection.gap_names,
            limits=tuple(self._clients.limits.quotas.states(asyncio.get_running_loop().time())),
        )
