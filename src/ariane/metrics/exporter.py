"""`ariane exporter`: the metrics of a cluster that is polled at each scrape.

Prometheus ─GET /metrics→ MetricsEndpoint → ExporterSource → ClusterPoller → name servers, brokers
"""

from __future__ import annotations

from collections.abc import Iterator

from ariane.metrics import families
from ariane.metrics.cluster_metrics import EXPORTER_METRICS
from ariane.metrics.families import Family, Metric, MetricSample, MetricTable
from ariane.metrics.polling.cluster_poller import BASE_TIMEOUT_S, ClusterPoller, PolledCluster

TIMEOUT_MARGIN_S = 1.0  # of a scrape's timeout, for the response


def _name_servers(polled: PolledCluster) -> Iterator[MetricSample]:
    for addr, is_up in polled.name_servers.items():
        yield (addr,), int(is_up)


def _details_age(polled: PolledCluster) -> Iterator[MetricSample]:
    if polled.details_age_s is not None:
        yield (), polled.details_age_s


POLL_METRICS: MetricTable = {
    Metric("ariane_name_server_up", "gauge", "Whether a name server responded to this scrape.", ("addr",)): _name_servers,
    Metric("ariane_exporter_poll_duration_seconds", "gauge", "Duration of the poll of brokers, topics and offsets.", (), "s"):
        lambda polled: iter([((), polled.base_s)]),
    Metric("ariane_exporter_details_age_seconds", "gauge", "Age of the rates and client lists in this scrape.", (), "s"):
        _details_age,
    Metric("ariane_exporter_requests_total", "counter", "Requests for brokers, topics and offsets."):
        lambda polled: iter([((), polled.requests)]),
    Metric("ariane_exporter_failed_requests_total", "counter", "Requests that a broker rejected."):
        lambda polled: iter([((), polled.failed_requests)]),
}  # fmt: skip


class ExporterSource:
    """Polls the cluster for each scrape."""

    def __init__(self, poller: ClusterPoller) -> None:
        self._poller = poller

    async def families(self, timeout_s: float | None) -> list[Family]:
        """Return the families of the cluster and of the poll."""
        base_s = BASE_TIMEOUT_S
        if timeout_s is not None:
            # A scrape that is late is lost as a whole: the poll has to end before Prometheus stops waiting.
            base_s = max(TIMEOUT_MARGIN_S, timeout_s - TIMEOUT_MARGIN_S - self._poller.detail_wait_s)
        polled = await self._poller.poll(base_s)
        return families.read(POLL_METRICS, polled) + families.read(EXPORTER_METRICS, polled.snapshot)
