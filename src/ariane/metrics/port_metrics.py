"""Metrics of the ports of a server: when the certificate expires, and which protections they lack.

brokers, name servers            port_metrics(…) in their own tables
exporter, collector, pipeline    WithPort(source, …): the metrics of the source, and of the port that serves them
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from ariane.access.public_ports import PortProtection
from ariane.metrics import families
from ariane.metrics.families import Family, Metric, MetricSample, MetricTable
from ariane.metrics.serving.endpoint import MetricsSource


class ServerPorts(Protocol):
    """A scraped server."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Values of the labels that all its metrics have."""
        ...

    @property
    def certificate_days(self) -> float | None:
        """Days until the certificate expires; None without one from a file."""
        ...

    @property
    def gaps(self) -> tuple[str, ...]:
        """Protections that the ports lack towards other machines."""
        ...


def _days(server: ServerPorts) -> Iterator[MetricSample]:
    if server.certificate_days is not None:
        yield server.labels, server.certificate_days


def _gaps(server: ServerPorts) -> Iterator[MetricSample]:
    for gap in server.gaps:
        yield (*server.labels, gap), 1


def port_metrics(prefix: str, labels: tuple[str, ...] = ()) -> MetricTable:
    """Return the metrics of one kind of server."""
    return {
        Metric(f"{prefix}_certificate_remaining_days", "gauge", "Days until the TLS certificate of the server expires; negative"
               " afterwards.", labels): _days,
        Metric(f"{prefix}_insecure", "gauge", "1 for each protection that the server's ports lack towards other machines.",
               (*labels, "gap")): _gaps,
    }  # fmt: skip


class _HttpPort(NamedTuple):
    certificate_days: float | None
    gaps: tuple[str, ...]
    labels: tuple[str, ...] = ()


class WithPort:
    """The metrics of a source, and of the HTTP port that serves them.

    Args:
        source: Reads the other families.
        prefix: Of the names of the port's metrics.
        protection: State of the port.
    """

    def __init__(self, source: MetricsSource, prefix: str, protection: PortProtection) -> None:
        self._source = source
        self._table = port_metrics(prefix)
        self._protection = protection

    async def families(self, timeout_s: float | None) -> Iterable[Family]:
        """Return the families of a scrape. [MetricsSource]"""
        port = _HttpPort(self._protection.certificate_days(), self._protection.gap_names)
        return [*families.read(self._table, port), *await self._source.families(timeout_s)]
