"""Metrics of the audit log of a server: what its disk did not take. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from ariane.audit.server_audit_log import AuditState
from ariane.metrics.families import Metric, MetricSample, MetricTable


class AuditedServer(Protocol):
    """A scraped server."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Values of the labels that all its metrics have."""
        ...

    @property
    def audit(self) -> AuditState | None:
        """Its audit log; None if it is off."""
        ...


def _value(field: str) -> Callable[[AuditedServer], Iterator[MetricSample]]:
    def samples(server: AuditedServer) -> Iterator[MetricSample]:
        if server.audit is not None:
            yield server.labels, getattr(server.audit, field)

    return samples


def audit_metrics(prefix: str, labels: tuple[str, ...]) -> MetricTable:
    """Return the metrics of one kind of server."""
    return {
        Metric(f"{prefix}_audit_write_failures_total", "counter", "Failed writes of the audit log; each is repeated. Absent if it"
               " is off.", labels): _value("failures"),
        Metric(f"{prefix}_audit_pending_records", "gauge", "Records of the audit log that wait for the disk.", labels):
            _value("pending"),
        Metric(f"{prefix}_audit_lost_records_total", "counter", "Records of the audit log that were lost, because too many waited"
               " for the disk.", labels): _value("lost"),
    }  # fmt: skip
