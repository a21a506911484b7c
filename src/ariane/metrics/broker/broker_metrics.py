"""Metrics that only a broker itself has: latencies, connections, delays, slaves. Pure.

Durations are histograms in seconds since the start of the broker. The broker counts them anyway, in buckets for stats.log; no
object of prometheus-client exists per message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from ariane.audit.server_audit_log import AuditState
from ariane.metrics.audit_metrics import audit_metrics
from ariane.metrics.families import HistogramValue, Metric, MetricSample, MetricTable
from ariane.metrics.limit_metrics import limit_metrics
from ariane.metrics.port_metrics import port_metrics
from ariane.net.limits.quotas import LimitState

_LABELS = ("cluster", "broker", "broker_id")


class FailoverState(msgspec.Struct, frozen=True):
    """Role of a broker in a set with failover."""

    is_master: bool
    epoch: int
    in_sync: int | None
    """Members of the in-sync set; None at a member that is not the master: it learns of changes later."""
    lease_s: float | None
    """Time until the master has to stop unless it renews its lease; None at other members."""
    is_promotable: bool
    """Whether it is the master, or may become it."""
    refused_commits: int
    """Offset commits beyond the confirmed end of a queue."""
    backward_commits: int
    """Offset commits below the stored offset."""


class BrokerInternals(msgspec.Struct, frozen=True, kw_only=True):
    """State of one broker that no request returns."""

    cluster: str
    name: str
    """brokerName, which a master and its slaves share."""
    broker_id: int
    """0: master."""
    put_durations: HistogramValue
    """In s, since the start of the broker."""
    pull_durations: HistogramValue
    """In s, since the start; only pulls that found messages."""
    failed_puts: int
    """Since the start of the broker."""
    loop_lag_s: float
    """Delay of the event loop's latest tick."""
    connections: int
    """Open ones of clients, brokers and name servers."""
    delayed_overdue_s: float
    """Time since the message that has been due longest should have been delivered; 0 if none is due."""
    certificate_days: float | None
    """Days until the certificate of the ports expires; None without a file."""
    gaps: tuple[str, ...]
    """Protections that the ports lack towards other machines."""
    disk_used_ratio: float | None
    """0 to 1; None: unknown."""
    log_end: int
    """Position in the commit log, in bytes."""
    unflushed_bytes: int
    """Bytes that a power loss would lose."""
    undispatched_bytes: int
    """Bytes whose messages no consumer can read yet."""
    slaves: tuple[tuple[str, int], ...]
    """Address and acknowledged offset of each connected slave."""
    limits: tuple[LimitState, ...]
    """In total, per address and per account."""
    audit: AuditState | None
    """None without an audit log."""
    failover: FailoverState | None
    """None without failover."""
    trace_records: Mapping[str, int]
    """Written for clients, by outcome."""
    uncounted_events: int
    """Events whose topic or group has no statistic, because there are too many."""

    @property
    def labels(self) -> tuple[str, str, str]:
        """Values of the labels that all metrics have."""
        return self.cluster, self.name, str(self.broker_id)


def _value(field: str) -> Callable[[BrokerInternals], Iterator[MetricSample]]:
    def samples(broker: BrokerInternals) -> Iterator[MetricSample]:
        value: Any = getattr(broker, field)
        # An unknown value yields no sample: 0 would count as a measurement.
        if value is not None:
            yield broker.labels, value

    return samples


def _slave_lags(broker: BrokerInternals) -> Iterator[MetricSample]:
    for addr, offset in broker.slaves:
        yield (*broker.labels, addr), max(0, broker.log_end - offset)


def _trace_records(broker: BrokerInternals) -> Iterator[MetricSample]:
    for outcome, count in broker.trace_records.items():
        yield (*broker.labels, outcome), count


def _failover(field: str) -> Callable[[BrokerInternals], Iterator[MetricSample]]:
    def samples(broker: BrokerInternals) -> Iterator[MetricSample]:
        value = None if broker.failover is None else getattr(broker.failover, field)
        if value is not None:
            yield broker.labels, float(value)

    return samples


BROKER_METRICS: MetricTable = {
    Metric("ariane_broker_put_duration_seconds", "histogram", "Duration of a send until it is stored, waits for the disk and"
           " slaves included.", _LABELS, "s"): _value("put_durations"),
    Metric("ariane_broker_pull_duration_seconds", "histogram", "Duration of a pull that found messages, without the wait for"
           " new ones.", _LABELS, "s"): _value("pull_durations"),
    Metric("ariane_broker_failed_puts_total", "counter", "Sends that the store rejected.", _LABELS): _value("failed_puts"),
    Metric("ariane_broker_event_loop_lag_seconds", "gauge", "Time that a request waits for its turn in the event loop.",
           _LABELS, "s"): _value("loop_lag_s"),
    Metric("ariane_broker_connections", "gauge", "Open connections.", _LABELS): _value("connections"),
    Metric("ariane_broker_delayed_overdue_seconds", "gauge", "Time for which a delayed message has been due; 0 if none is.",
           _LABELS, "s"): _value("delayed_overdue_s"),
    **port_metrics("ariane_broker", _LABELS),
    Metric("ariane_broker_disk_used_ratio", "gauge", "Used share of the commit log's disk, 0 to 1.", _LABELS):
        _value("disk_used_ratio"),
    Metric("ariane_broker_commit_log_end_bytes", "gauge", "End of the commit log.", _LABELS, "bytes"): _value("log_end"),
    Metric("ariane_broker_unflushed_bytes", "gauge", "Bytes of commit log that are not flushed.", _LABELS, "bytes"):
        _value("unflushed_bytes"),
    Metric("ariane_broker_undispatched_bytes", "gauge", "Bytes of commit log without consume queue entries.", _LABELS, "bytes"):
        _value("undispatched_bytes"),
    Metric("ariane_broker_slave_lag_bytes", "gauge", "Bytes of commit log that a connected slave has not acknowledged.",
           (*_LABELS, "addr"), "bytes"): _slave_lags,
    Metric("ariane_broker_uncounted_events_total", "counter", "Events without a statistic, because there are too many topics"
           " or groups.", _LABELS): _value("uncounted_events"),
    Metric("ariane_broker_trace_records_total", "counter", "Trace records that the broker writes for clients that write none:"
           " written, dropped (no room), untracked (too many deliveries had not ended).", (*_LABELS, "outcome")): _trace_records,
    **limit_metrics("ariane_broker", _LABELS),
    **audit_metrics("ariane_broker", _LABELS),
    Metric("ariane_broker_failover_master", "gauge", "1 if this member is the master of its broker set, else 0.", _LABELS):
        _failover("is_master"),
    Metric("ariane_broker_failover_promotable", "gauge", "1 if this member is the master of its broker set or may become it,"
           " else 0.", _LABELS): _failover("is_promotable"),
    Metric("ariane_broker_failover_epoch", "gauge", "Epoch of the broker set at this member.", _LABELS): _failover("epoch"),
    Metric("ariane_broker_failover_in_sync_members", "gauge", "Members of the in-sync set, at its master.", _LABELS):
        _failover("in_sync"),
    Metric("ariane_broker_failover_lease_seconds", "gauge", "Time until the master has to stop unless it renews its lease.",
           _LABELS, "s"): _failover("lease_s"),
    Metric("ariane_broker_failover_refused_offset_commits_total", "counter", "Offset commits that this master refused, because"
           " they were beyond the confirmed end of a queue.", _LABELS): _failover("refused_commits"),
    Metric("ariane_broker_failover_backward_offset_commits_total", "counter", "Offset commits at this master that were below the"
           " stored offset: of tools that reset offsets, or of a consumer that lags behind another one of its group.", _LABELS):
        _failover("backward_commits"),
}  # fmt: skip
