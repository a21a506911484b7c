"""The values that alert rules watch, read from the live state of the cluster.

An unknown value is None. A sum that lacks unknown parts is a minimum: it may prove that a limit is exceeded, but not that it is
not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ariane.console.alerts.alert_rules import AlertMetric
from ariane.console.live.live_snapshot import BrokerRow, GroupRow, LiveSnapshot


class MetricReading(NamedTuple):
    """A value of one subject. None is unknown; `is_minimum`: the true value may be larger."""

    value: float | None
    is_minimum: bool = False

    @property
    def is_unknown(self) -> bool:
        """Whether the exact value is unknown."""
        return self.value is None or self.is_minimum


class SnapshotReadings(NamedTuple):
    """All values of a snapshot.

    Attributes:
        as_of_ms: Time of the snapshot.
        is_complete: Whether all servers responded, so that a group or topic without a value does not exist.
        values: Values by metric and subject; without a metric none of its values could be read.
    """

    as_of_ms: int
    is_complete: bool
    values: Mapping[AlertMetric, Mapping[str, MetricReading]]


def read_snapshot(snapshot: LiveSnapshot) -> SnapshotReadings:
    """Return the values of a snapshot."""
    groups = [row for row in snapshot.groups if not row.is_system]
    # Offsets of broadcasting groups are stored at the clients: a lag that never is known is not a fault.
    clustering = [row for row in groups if row.model != "broadcasting"]
    values = {
        AlertMetric.GROUP_LAG: {row.group: MetricReading(row.lag, row.lag_is_partial) for row in clustering},
        AlertMetric.GROUP_AGE: {row.group: _age(row) for row in clustering},
        AlertMetric.GROUP_BLOCKED: {row.group: _blocked(row) for row in clustering},
        AlertMetric.GROUP_TPS: {row.group: MetricReading(row.tps, row.tps_is_partial) for row in groups},
        AlertMetric.GROUP_CLIENTS: {row.group: MetricReading(row.clients) for row in groups},
        AlertMetric.DEAD_LETTERS: {
            row.group: MetricReading(row.dead_letters, row.dead_letters_is_partial) for row in groups
        },
        AlertMetric.TOPIC_TPS: {
            row.topic: MetricReading(row.tps_in, row.tps_is_partial) for row in snapshot.topics if row.kind == "normal"
        },
        AlertMetric.BROKER: {_broker(row): MetricReading(1.0 if row.is_up else None) for row in snapshot.brokers},
        AlertMetric.BROKER_DISK: {_broker(row): MetricReading(_percent(row.disk_ratio)) for row in snapshot.brokers},
        AlertMetric.CERTIFICATE_DAYS: dict(_certificates(snapshot)),
        AlertMetric.REPLICATION_DELAY: dict(_replication(snapshot)),
        AlertMetric.BROKER_SET_MASTER: {
            name: MetricReading(1.0 if brokers.master else None) for name, brokers in snapshot.broker_sets.items()
        },
        AlertMetric.BROKER_SET_BEHIND: dict(_behind(snapshot)),
    }
    return SnapshotReadings(snapshot.as_of_ms, snapshot.is_loaded and not snapshot.unavailable, values)


def _age(row: GroupRow) -> MetricReading:
    if row.oldest_age_ms is not None:
        return MetricReading(row.oldest_age_ms / 1000, row.lag_is_partial)
    # Without a lag nothing waits; with one, the age is unknown.
    return MetricReading(0.0 if row.lag == 0 and not row.lag_is_partial else None)


def _blocked(row: GroupRow) -> MetricReading:
    # Queues of brokers that do not respond may be blocked, too.
    return MetricReading(None if row.blocked is None or row.clients is None else len(row.blocked), row.tps_is_partial)


def _certificates(snapshot: LiveSnapshot) -> Iterator[tuple[str, MetricReading]]:
    # A server without a certificate has no validity; that of a server that does not respond is missing in an incomplete snapshot.
    rows = [(_broker(row), row.certificate_days) for row in snapshot.brokers]
    rows += [(row.addr, row.certificate_days) for row in snapshot.name_servers]
    yield from ((subject, MetricReading(days)) for subject, days in rows if days is not None)


def _replication(snapshot: LiveSnapshot) -> Iterator[tuple[str, MetricReading]]:
    for row in snapshot.brokers:
        if not row.is_master:
            delay_ms = row.replication_delay_ms
            value = None if delay_ms is None else delay_ms / 1000
            yield _broker(row), MetricReading(value, row.replication_delay_is_minimum)


def _behind(snapshot: LiveSnapshot) -> Iterator[tuple[str, MetricReading]]:
    silent = {row.broker for row in snapshot.brokers if not row.is_up}
    for name, brokers in snapshot.broker_sets.items():
        # Only a master reports the present set. Members that do not respond may be out of it, too.
        count = sum(member.name not in brokers.in_sync for member in brokers.members) if brokers.master else None
        yield name, MetricReading(count, name in silent)


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None or ratio < 0 else 100 * ratio


def _broker(row: BrokerRow) -> str:
    return f"{row.broker}:{row.broker_id}"
