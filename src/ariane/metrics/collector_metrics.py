"""Metrics of the collector: its last round, and samples that it could not publish."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from ariane.metrics import families
from ariane.metrics.families import Family, Metric, MetricSample, MetricTable


class CollectorState(msgspec.Struct, frozen=True, kw_only=True):
    """The collector after a round."""

    rounds: int
    """Since the start."""
    at_ms: int
    """End of the last round."""
    responding: int
    """Brokers of the last round."""
    unavailable: int
    """Brokers of the last round that did not respond."""
    requests: int
    """Of the last round."""
    pending: int
    """Samples that are not published yet."""
    dropped: int
    """Samples that were never published, since the start."""


def _value(value: Callable[[CollectorState], float]) -> Callable[[CollectorState], Iterator[MetricSample]]:
    return lambda state: iter([((), value(state))])


def _brokers(state: CollectorState) -> Iterator[MetricSample]:
    yield ("responding",), state.responding
    yield ("unavailable",), state.unavailable


COLLECTOR_METRICS: MetricTable = {
    Metric("ariane_collector_rounds_total", "counter", "Rounds since the start."): _value(lambda state: state.rounds),
    Metric("ariane_collector_last_round_timestamp_seconds", "gauge", "End of the last round.", (), "s since the epoch"):
        _value(lambda state: state.at_ms / 1000),
    Metric("ariane_collector_brokers", "gauge", "Brokers of the last round by state: responding, unavailable.", ("state",)):
        _brokers,
    Metric("ariane_collector_round_requests", "gauge", "Requests of the last round."): _value(lambda state: state.requests),
    Metric("ariane_collector_pending_samples", "gauge", "Samples that are not published yet."):
        _value(lambda state: state.pending),
    Metric("ariane_collector_dropped_samples_total", "counter", "Samples that could not be published."):
        _value(lambda state: state.dropped),
}  # fmt: skip


class CollectorSource:
    """Holds the state of the collector. Before the first round it has no families."""

    def __init__(self) -> None:
        self.state: CollectorState | None = None

    async def families(self, timeout_s: float | None) -> list[Family]:
        """Return the families of the last round."""
        return [] if self.state is None else families.read(COLLECTOR_METRICS, self.state)
