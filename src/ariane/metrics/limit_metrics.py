"""Metrics of the limits of a server: what is allowed, what is used, and how often more was wanted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from ariane.metrics.families import Metric, MetricSample, MetricTable
from ariane.net.limits.quotas import LimitState


class LimitedServer(Protocol):
    """A scraped server."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Values of the labels that all its metrics have."""
        ...

    @property
    def limits(self) -> Iterable[LimitState]:
        """Its limits."""
        ...


def _values(server: LimitedServer) -> Iterator[MetricSample]:
    for state in server.limits:
        if state.limit:  # an unlimited resource has no sample
            yield (*server.labels, state.key), state.limit


def _used(server: LimitedServer) -> Iterator[MetricSample]:
    for state in server.limits:
        if state.used is not None:
            yield (*server.labels, state.key), state.used


def _exceeded(server: LimitedServer) -> Iterator[MetricSample]:
    for state in server.limits:
        yield (*server.labels, state.key), state.exceeded


def limit_metrics(prefix: str, labels: tuple[str, ...]) -> MetricTable:
    """Return the metrics of one kind of server. `limit` is the key of its configuration."""
    names = (*labels, "limit")
    return {
        Metric(f"{prefix}_limit", "gauge", "A limit of the configuration; absent if it is 0, unlimited.", names): _values,
        Metric(f"{prefix}_limit_used", "gauge", "Use of a limit: by the server, or by the address or account that uses most."
               " Traffic is absent while it is unlimited.", names): _used,
        Metric(f"{prefix}_limit_exceeded_total", "counter", "Requests refused, connections closed, and pauses of reading because"
               " of a limit.", names): _exceeded,
    }  # fmt: skip
