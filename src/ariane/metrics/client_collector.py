"""Metrics of producers and consumers in an application's own registry of prometheus-client.

    async with PushConsumer(namesrv, "billing", {"orders": "*"}, handle, trace=True) as consumer:
        REGISTRY.register(ClientCollector(consumer))

    consumers   rates that they report to tools anyway, under the names of Apache's rocketmq-exporter;
                `clientAddr` is empty: only the broker has the address of a connection
    trace=      records that were sent, dropped, or failed, and those that wait in a file; clock offsets of brokers

All are read at each scrape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from ariane.extras import naming_extras
from ariane.metrics import families
from ariane.metrics.cluster_metrics import CLUSTER_METRICS
from ariane.metrics.families import HistogramValue
from ariane.metrics.polling.scraped_cluster import ClientRates, ConnectedClient, ScrapedCluster
from ariane.model.clock_offset import ClockOffset
from ariane.protocol.requests.callbacks import ConsumeStatus

with naming_extras():
    from prometheus_client import Metric as PrometheusMetric
    from prometheus_client.registry import Collector

CLIENT_PREFIX = "rocketmq_client_"


class TraceCounters(Protocol):
    """Counters and clock offsets of a `TraceDispatcher`."""

    sent: int
    dropped: int
    failed: int

    @property
    def spilled(self) -> int: ...

    @property
    def clock_offsets(self) -> Mapping[str, ClockOffset]: ...


class TracedClient(Protocol):
    """A producer or consumer."""

    @property
    def group(self) -> str: ...

    @property
    def trace(self) -> TraceCounters | None: ...


@runtime_checkable
class RatedConsumer(Protocol):
    """A `PushConsumer`, `LitePullConsumer` or `SimpleConsumer`."""

    @property
    def group(self) -> str: ...

    @property
    def client_id(self) -> str: ...

    def rates(self) -> Mapping[str, ConsumeStatus]: ...


class ClientCollector(Collector):
    """Collects rates and trace counters of clients. One that is not open has no samples.

    Args:
        clients: Producers and consumers.
    """

    def __init__(self, *clients: TracedClient) -> None:
        self._clients = clients

    def collect(self) -> Iterator[PrometheusMetric]:
        """Yield the metrics, as prometheus-client requests them."""
        yield from self._rates()
        yield from self._traces()
        yield from self._clocks()

    def _rates(self) -> Iterator[PrometheusMetric]:
        statuses = tuple(
            ClientRates(ConnectedClient("", consumer.client_id), consumer.group, topic, status)
            for consumer in self._clients
            if isinstance(consumer, RatedConsumer)
            for topic, status in consumer.rates().items()
        )
        for metric, samples in families.read(CLUSTER_METRICS, ScrapedCluster(brokers=(), statuses=statuses)):
            if not metric.name.startswith(CLIENT_PREFIX):
                continue
            family = PrometheusMetric(metric.name, metric.help, metric.kind)
            for labels, value in samples:
                assert not isinstance(value, HistogramValue)
                family.add_sample(metric.name, dict(zip(metric.labels, labels, strict=True)), value)
            yield family

    def _traces(self) -> Iterator[PrometheusMetric]:
        records = PrometheusMetric(
            "ariane_client_trace_records", "Trace records by outcome: sent, dropped (no room), failed.", "counter"
        )
        waiting = PrometheusMetric(
            "ariane_client_trace_spilled_records", "Trace records that wait in files to be sent.", "gauge"
        )
        for client in self._clients:
            if (trace := client.trace) is None:
                continue
            for outcome in ("sent", "dropped", "failed"):
                labels = {"group": client.group, "outcome": outcome}
                records.add_sample("ariane_client_trace_records_total", labels, getattr(trace, outcome))
            waiting.add_sample(waiting.name, {"group": client.group}, trace.spilled)
        yield from (metric for metric in (records, waiting) if metric.samples)

    def _clocks(self) -> Iterator[PrometheusMetric]:
        offsets = PrometheusMetric(
            "ariane_client_clock_offset_seconds", "Clock of a broker minus that of this client, as measured.", "gauge"
        )
        errors = PrometheusMetric(
            "ariane_client_clock_offset_error_seconds", "Maximum error of the measured clock offset.", "gauge"
        )
        for client in self._clients:
            if (trace := client.trace) is None:
                continue
            for broker, offset in trace.clock_offsets.items():
                labels = {"group": client.group, "broker": broker}
                offsets.add_sample(offsets.name, labels, offset.offset_ms / 1000)
                errors.add_sample(errors.name, labels, offset.error_ms / 1000)
        yield from (metric for metric in (offsets, errors) if metric.samples)
