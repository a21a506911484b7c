"""Metrics of a name server in this process: its brokers, their topics and registrations, its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from ariane.access.public_ports import PortProtection
from ariane.audit.server_audit_log import AuditState, ServerAuditLog
from ariane.metrics import families
from ariane.metrics.audit_metrics import audit_metrics
from ariane.metrics.families import Family, Metric, MetricSample, MetricTable
from ariane.metrics.limit_metrics import limit_metrics
from ariane.metrics.port_metrics import port_metrics
from ariane.nameserver.route_table import RouteTable
from ariane.net.limits.quotas import LimitState
from ariane.net.server import RemotingServer


class RegisteredBroker(NamedTuple):
    """A registered broker. `silence_s` is the time since its last registration."""

    cluster: str
    broker: str
    broker_id: int
    addr: str
    silence_s: float


class ScrapedNameServer(msgspec.Struct, frozen=True):
    """State of a name server at the time of a scrape."""

    registrations: tuple[RegisteredBroker, ...]
    topics: dict[tuple[str, str], int]
    """Number of topics by cluster and broker name."""
    connections: int
    certificate_days: float | None = None
    """Days until the certificate of the port expires; None without a file."""
    gaps: tuple[str, ...] = ()
    """Protections that the port lacks towards other machines."""
    limits: tuple[LimitState, ...] = ()
    """In total, per address and per account."""
    audit: AuditState | None = None
    """None without an audit log."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Values of the labels that all its metrics have: none."""
        return ()


def _silences(state: ScrapedNameServer) -> Iterator[MetricSample]:
    for registration in state.registrations:
        yield (
            (registration.cluster, registration.broker, str(registration.broker_id), registration.addr),
            registration.silence_s,
        )


def _topics(state: ScrapedNameServer) -> Iterator[MetricSample]:
    yield from state.topics.items()


def _brokers(state: ScrapedNameServer) -> Iterator[MetricSample]:
    counts: dict[str, int] = {}
    for registration in state.registrations:
        counts[registration.cluster] = counts.get(registration.cluster, 0) + 1
    for cluster, count in counts.items():
        yield (cluster,), count


NAME_SERVER_METRICS: MetricTable = {
    Metric("ariane_nameserver_brokers", "gauge", "Registered brokers, slaves included.", ("cluster",)): _brokers,
    Metric("ariane_nameserver_topics", "gauge", "Topics that a broker has registered.", ("cluster", "broker")): _topics,
    Metric("ariane_nameserver_registration_age_seconds", "gauge", "Time since the last registration of a broker.",
           ("cluster", "broker", "broker_id", "addr"), "s"): _silences,
    Metric("ariane_nameserver_connections", "gauge", "Open connections of brokers and clients."):
        lambda state: iter([((), state.connections)]),
    **port_metrics("ariane_nameserver"),
    **limit_metrics("ariane_nameserver", ()),
    **audit_metrics("ariane_nameserver", ()),
}  # fmt: skip


class NameServerSource:
    """Reads the metrics of one name server."""

    def __init__(
        self,
        routes: RouteTable,
        server: RemotingServer,
        now_ms: Callable[[], float],
        protection: PortProtection,
        audit: ServerAuditLog | None = None,
    ) -> None:
        self._routes = routes
        self._server = server
        self._now_ms = now_ms
        self._protection = protection
        self._audit = audit

    async def families(self, timeout_s: float | None) -> list[Family]:
        """Return the families of the name server."""
        return families.read(NAME_SERVER_METRICS, self._state())

    def _state(self) -> ScrapedNameServer:
        table, now_ms = self._routes.clusters().broker_addr_table, self._now_ms()
        registrations = [
            RegisteredBroker(broker.cluster, name, broker_id, addr, max(0.0, now_ms - seen_ms) / 1000)
            for name, broker in table.items()
            for broker_id, addr in sorted(broker.broker_addrs.items())
            if (seen_ms := self._routes.last_registration_ms(addr)) is not None
        ]
        topics = {(broker.cluster, name): self._routes.topic_count(name) for name, broker in table.items()}
        days, gaps = self._protection.certificate_days(), self._protection.gap_names
        limits = tuple(self._server.limits.quotas.states(asyncio.get_running_loop().time()))
        audit = None if self._audit is None else self._audit.state
        return ScrapedNameServer(tuple(registrations), topics, self._server.connection_count, days, gaps, limits, audit)
