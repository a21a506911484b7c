"""Metrics of the process by prometheus-client: CPU time, memory, open files, start time, garbage collector, Python version.

The process metrics come from /proc and are absent on other systems than Linux.
"""

from __future__ import annotations

import functools

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from ariane.metrics.serving.exposition import END


@functools.cache
def registry() -> CollectorRegistry:
    """Return the registry of the process."""
    created = CollectorRegistry()
    ProcessCollector(registry=created)
    PlatformCollector(registry=created)
    GCCollector(registry=created)
    return created


def text(*, is_openmetrics: bool) -> str:
    """Return the metrics of the process, without the end mark of OpenMetrics."""
    if is_openmetrics:
        openmetrics: bytes = generate_openmetrics(registry())  # type: ignore[no-untyped-call]
        return openmetrics.decode().removesuffix(END)
    return generate_latest(registry()).decode()
