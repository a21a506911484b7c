"""Metrics of consumers in an application's own registry of prometheus-client.

    async with PushConsumer(namesrv, "billing", {"orders": "*"}, handle) as consumer:
        REGISTRY.register(ClientCollector(consumer))

The values are the rates that the consumer reports to tools anyway; they are read at each scrape. Names are those of Apache's
rocketmq-exporter. `clientAddr` is empty: only the broker has the address of a connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client import Metric as PrometheusMetric
from prometheus_client.registry import Collector

from ariane.metrics import families
from ariane.metrics.cluster_metrics import CLUSTER_METRICS
from ariane.metrics.families import HistogramValue
from ariane.metrics.scraped_cluster import ClientRates, ConnectedClient, ScrapedCluster
from ariane.protocol.requests.callbacks import ConsumeStatus

CLIENT_PREFIX = "rocketmq_client_"


class RatedConsumer(Protocol):
    """A `PushConsumer` or `LitePullConsumer`."""

    @property
    def group(self) -> str: ...

    @property
    def client_id(self) -> str: ...

    def rates(self) -> Mapping[str, ConsumeStatus]: ...


class ClientCollector(Collector):
    """Collects the rates of consumers. A consumer that is not open has no samples.

    Args:
        consumers: The consumers.
    """

    def __init__(self, *consumers: RatedConsumer) -> None:
        self._consumers = consumers

    def collect(self) -> Iterator[PrometheusMetric]:
        """Yield the metrics, as prometheus-client requests them."""
        statuses = tuple(
            ClientRates(ConnectedClient("", consumer.client_id), consumer.group, topic, status)
            for consumer in self._consumers
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
