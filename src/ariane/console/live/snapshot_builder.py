"""Computes the rows of a snapshot from polled values. Pure functions.

    ScrapedBroker …  ─→ broker_rows ─┐   broker_sets
    ScrapedCluster   ─→ topic_rows  ─┼─→ totals, history_values
                     ─→ group_rows  ─┘

A server that does not respond makes the sums that its part belongs to partial, as far as it is known what it has; if that is
unknown, because it never responded, it makes all of them partial.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypedDict

from ariane.access.public_ports import CERTIFICATE_DAYS_KEY, OPEN_PORTS_KEY
from ariane.cluster.groups.group_admin import is_system_group
from ariane.cluster.lag import sum_lags
from ariane.cluster.servers.broker_runtime import RuntimeInfo, parse_runtime
from ariane.cluster.servers.broker_sets import BrokerSet, broker_set
from ariane.console.live.blocked_queues import Blocked, is_push
from ariane.console.live.live_history import Rates, SeriesKey, broker_key, cluster_key, group_key
from ariane.console.live.live_snapshot import (
    BrokerRow,
    BrokerShare,
    ClusterTotals,
    ConsumeType,
    GroupRow,
    MessageModel,
    NameServerRow,
    TopicKind,
    TopicRow,
)
from ariane.console.live.replication_delay import ReplicationObserver
from ariane.errors import ProtocolError
from ariane.metrics.polling.runtime_values import number
from ariane.metrics.polling.scraped_cluster import GroupState, PairProgress, ScrapedBroker, ScrapedCluster
from ariane.model.topic import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    dlq_topic,
    is_system_topic,
    reply_topic,
    retry_topic,
)
from ariane.protocol.versions import version_name

GETS = "GROUP_GET_NUMS"
# Members of a row that are as the broker reports them.
RUNTIME_MEMBERS = ("version", "boot_ms", "put_today", "got_today", "put_yesterday", "got_yesterday", "earliest_ms")


class PortMembers(TypedDict):
    """Members that the rows of brokers and name servers share."""

    open_ports: str
    certificate_days: int | None


# --- brokers and name servers ---


def broker_rows(brokers: Iterable[ScrapedBroker], observer: ReplicationObserver, now_ms: int) -> tuple[BrokerRow, ...]:
    """Return the rows of all servers, and let `observer` see the masters."""
    polled = sorted(brokers, key=lambda broker: (broker.cluster, broker.name, broker.broker_id))
    for broker in polled:
        log_end = _integer(broker.runtime, "commitLogMaxOffset")
        if broker.is_master and broker.is_up and log_end is not None:
            observer.observe(broker.name, now_ms, log_end)
    return tuple(_broker_row(broker, observer, now_ms) for broker in polled)


def _broker_row(broker: ScrapedBroker, observer: ReplicationObserver, now_ms: int) -> BrokerRow:
    info = _runtime(broker)
    log_end = _integer(broker.runtime, "commitLogMaxOffset")
    delay = None
    if not broker.is_master and log_end is not None:
        delay = observer.delay(broker.name, now_ms, log_end)
    return BrokerRow(
        cluster=broker.cluster,
        broker=broker.name,
        broker_id=broker.broker_id,
        addr=broker.addr,
        is_up=broker.is_up,
        is_registered=broker.is_registered,
        reason=broker.reason,
        **_port_members(broker.runtime),
        tps_in=_finite(info.put_tps.ten_s) if info else None,
        tps_out=_finite(info.get_tps.ten_s) if info else None,
        disk_ratio=_finite(info.disk_ratio) if info else None,
        **{name: getattr(info, name) for name in RUNTIME_MEMBERS if info},
        log_start=_integer(broker.runtime, "commitLogMinOffset"),
        log_end=log_end,
        dispatch_behind_bytes=_integer(broker.runtime, "dispatchBehindBytes"),
        replication_lag_bytes=delay.lag_bytes if delay else None,
        replication_delay_ms=delay.delay_ms if delay else None,
        replication_delay_is_minimum=delay.is_minimum if delay else False,
    )


def broker_sets(brokers: Iterable[ScrapedBroker]) -> dict[str, BrokerSet]:
    """Return the broker sets with failover by broker name; one whose members report invalid values is missing."""
    runtimes: dict[str, list[RuntimeInfo]] = defaultdict(list)
    for broker in brokers:
        if (info := _runtime(broker)) is not None:
            runtimes[broker.name].append(info)
    sets = {}
    for name, infos in runtimes.items():
        try:
            members = broker_set(name, infos)
        except ProtocolError:
            continue
        if members is not None:
            sets[name] = members
    return sets


def name_server_rows(is_up: Mapping[str, bool], reported: Mapping[str, Mapping[str, str]]) -> tuple[NameServerRow, ...]:
    """Return the rows of the name servers, in the same order.

    Args:
        is_up: Whether each one responded, by address.
        reported: What they report about their ports, by address and key.
    """
    return tuple(
        NameServerRow(addr, up, **_port_members(reported.get(addr, {}) if up else {})) for addr, up in is_up.items()
    )


def _port_members(reported: Mapping[str, str]) -> PortMembers:
    """Return the members of a row about the protection of a server's ports."""
    return {
        "open_ports": reported.get(OPEN_PORTS_KEY, ""),
        "certificate_days": _integer(reported, CERTIFICATE_DAYS_KEY),
    }


def _runtime(broker: ScrapedBroker) -> RuntimeInfo | None:
    if not broker.is_up:
        return None
    try:
        return parse_runtime(broker.addr, dict(broker.runtime))
    except (ProtocolError, ValueError):
        return None  # not the values of a broker of RocketMQ 4 or 5: its figures are unknown


def _finite(value: float | None) -> float | None:
    """Return a figure; None for NaN and infinity, which no broker means."""
    return value if value is not None and math.isfinite(value) else None


def _integer(table: Mapping[str, str], key: str) -> int | None:
    value = number(table, key)
    return None if value is None else int(value)


# --- topics ---


def topic_rows(cluster: ScrapedCluster) -> tuple[TopicRow, ...]:
    """Return the rows of all topics, sorted by name."""
    # Masters that have it, or had it when they last responded.
    copies: dict[str, list[ScrapedBroker]] = defaultdict(list)
    for broker in cluster.brokers:
        if broker.is_master:
            for topic in broker.topic_configs if broker.is_up else broker.expected_topics or ():
                copies[topic].append(broker)
    groups: dict[str, set[str]] = defaultdict(set)
    for progress in cluster.progress:
        groups[progress.topic].add(progress.group)
    internal = {
        name for broker in cluster.brokers for name in (broker.cluster, broker.name, reply_topic(broker.cluster))
    }
    unseen = frozenset(broker.name for broker in cluster.brokers if _is_unseen(broker))
    return tuple(
        _topic_row(topic, _kind(topic, internal), copies[topic], tuple(sorted(groups.get(topic, ()))), unseen)
        for topic in sorted(copies)
    )


def _topic_row(
    topic: str, kind: TopicKind, copies: Sequence[ScrapedBroker], groups: tuple[str, ...], unseen: frozenset[str]
) -> TopicRow:
    # A broker that rejected the request for the queues has the topic, but no ranges of it.
    polled = [broker for broker in copies if broker.is_up and topic in broker.topics]
    missing = unseen.union(broker.name for broker in copies if not broker.is_up or topic not in broker.topics)
    ranges = [queue for broker in polled for queue in broker.topics[topic]]
    configs = [broker.topic_configs[topic] for broker in copies if broker.is_up]
    is_counted = kind not in ("retry", "dlq")
    tps = [_rate(broker, "TOPIC_PUT_NUMS", topic) for broker in copies] if is_counted else []
    without_rate = (broker.name for broker, rate in zip(copies, tps, strict=False) if rate is None)
    tps_missing = unseen.union(without_rate) if is_counted else frozenset[str]()
    sizes = [_rate(broker, "TOPIC_PUT_SIZE", topic) for broker in copies] if is_counted else []
    return TopicRow(
        topic=topic,
        kind=kind,
        clusters=tuple(sorted({broker.cluster for broker in copies})),
        brokers=tuple(sorted({broker.name for broker in copies})),
        queues=len(ranges) if polled else None,
        read_queues=sum(config.read_queue_nums for config in configs) if configs else None,
        write_queues=sum(config.write_queue_nums for config in configs) if configs else None,
        perms=tuple(sorted({config.perm for config in configs})),
        messages=sum(last - first for _, first, last in ranges) if polled else None,
        tps_in=_known_sum(tps),
        bytes_in=_known_sum(sizes),
        groups=groups,
        is_partial=bool(missing),
        tps_is_partial=bool(tps_missing),
        missing=tuple(sorted(missing)),
        tps_missing=tuple(sorted(tps_missing)),
    )


def _kind(topic: str, internal: set[str]) -> TopicKind:
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DLQ_PREFIX):
        return "dlq"
    if topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        return "delay"
    return "system" if is_system_topic(topic) or topic in internal else "normal"


def _rate(broker: ScrapedBroker, statistic: str, key: str) -> float | None:
    """Return a rate of a broker: 0 if it never counted it, None if it is unknown."""
    if not broker.has_rates or (statistic, key) in broker.lost_rates:
        return None
    rate = broker.rates.get((statistic, key))
    return 0.0 if rate is None else rate.per_s


def _known_sum(parts: Iterable[float | None]) -> float | None:
    present = [part for part in parts if part is not None]
    return sum(present) if present else None


def _is_unseen(broker: ScrapedBroker) -> bool:
    """Return whether a broker is a master that never responded, so that it may have any topic and group."""
    return broker.is_master and not broker.is_up and broker.expected_groups is None


# --- groups ---


def group_rows(
    cluster: ScrapedCluster, topics: Mapping[str, TopicRow], blocked: Blocked | None = None
) -> tuple[GroupRow, ...]:
    """Return the rows of all consumer groups, sorted by name."""
    return tuple(_GroupRows(cluster, topics, blocked).rows())


class _GroupRows:
    """The parts of all groups, indexed by group: each broker and each pair is visited once."""

    def __init__(self, cluster: ScrapedCluster, topics: Mapping[str, TopicRow], blocked: Blocked | None) -> None:
        self._blocked = blocked  # None: unknown
        self._states = cluster.groups  # clients and subscriptions; a group that is missing is unknown
        self._topics = topics  # has the dead letters
        # A master that never responded may have any group.
        self._is_any_unseen = any(_is_unseen(broker) for broker in cluster.brokers)
        self._pairs: dict[str, list[PairProgress]] = defaultdict(list)  # progress by group
        for progress in cluster.progress:
            self._pairs[progress.group].append(progress)
        # Groups of each broker name. A slave has those of its master.
        names: dict[str, set[str]] = defaultdict(set)
        self._silent: set[str] = set()  # groups of masters that do not respond
        for broker in cluster.brokers:
            if broker.is_master:
                groups = broker.group_names if broker.is_up else broker.expected_groups or ()
                names[broker.name].update(groups)
                self._silent.update(() if broker.is_up else groups)
        for progress in cluster.progress:
            names[progress.broker.name].add(progress.group)
        self._names = frozenset().union(*names.values())  # of all groups
        self._shares: dict[str, list[BrokerShare]] = defaultdict(list)  # by group, masters before their slaves
        for broker in sorted(cluster.brokers, key=lambda broker: (broker.name, broker.broker_id)):
            sums, lost = _delivered(broker)
            for group in names.get(broker.name, ()):
                is_known = broker.has_rates and group not in lost
                share = BrokerShare(broker.name, broker.broker_id, sums.get(group, 0.0) if is_known else None)
                self._shares[group].append(share)

    def rows(self) -> Iterator[GroupRow]:
        """Yield the rows, sorted by name."""
        for group in sorted(self._names):
            yield self._row(group)

    def _row(self, group: str) -> GroupRow:
        pairs, shares = self._pairs.get(group, ()), tuple(self._shares.get(group, ()))
        state = self._states.get(group)
        # The sum of the known lags, if others are unknown.
        lag = sum_lags(pair.lag.minimum for pair in pairs if pair.lag.minimum is not None)
        is_silent = self._is_any_unseen or group in self._silent
        clients = _clients(state, is_silent)
        dead = self._topics.get(dlq_topic(group))
        tps = [share.tps for share in shares]
        own_retry = retry_topic(group)
        return GroupRow(
            group=group,
            is_system=is_system_group(group),
            topics=tuple(sorted({pair.topic for pair in pairs} - {own_retry})),
            lag=lag.minimum,
            lag_is_partial=is_silent or any(pair.lag.is_partial for pair in pairs),
            oldest_age_ms=_oldest_age(pairs) if lag.minimum else None,
            tps=_known_sum(tps),
            tps_is_partial=is_silent or None in tps,
            shares=shares,
            blocked=None if self._blocked is None else self._blocked.get(group, ()),
            clients=clients,
            consume_type=_consume_type(state),
            model=_model(state),
            versions=_texts(version_name(c.version) for c in state.clients if c.version is not None) if state else (),
            languages=_texts(c.language for c in state.clients if c.language) if state else (),
            dead_letters=dead.messages if dead else (None if is_silent else 0),
            dead_letters_is_partial=dead.is_partial if dead else is_silent,
        )


def _delivered(broker: ScrapedBroker) -> tuple[dict[str, float], set[str]]:
    """Return the messages per second that a broker delivers to each group, and the groups with an unknown part."""
    sums: dict[str, float] = defaultdict(float)
    for (statistic, key), rate in broker.rates.items():
        if statistic == GETS:
            sums[key.partition("@")[2]] += rate.per_s
    return sums, {key.partition("@")[2] for statistic, key in broker.lost_rates if statistic == GETS}


def _oldest_age(pairs: Iterable[PairProgress]) -> int | None:
    ages = (pair.broker.ages_ms.get((pair.topic, pair.group)) for pair in pairs)
    return max((age for age in ages if age is not None), default=None)


def _clients(state: GroupState | None, is_silent: bool) -> int | None:
    if state is None:
        return None
    count = len({client.client_id for client in state.clients})
    # All others may be connected to the master that does not respond.
    return None if is_silent and not count else count


def _consume_type(state: GroupState | None) -> ConsumeType | None:
    if state is None or not state.clients or state.consume_type is None:
        return None
    return "push" if is_push(state) else "pull"


def _model(state: GroupState | None) -> MessageModel | None:
    if state is None or not state.clients:
        return None
    return "broadcasting" if state.is_broadcasting else "clustering"


def _texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(texts)))


# --- sums ---


def totals(brokers: Sequence[BrokerRow], groups: Sequence[GroupRow]) -> ClusterTotals:
    """Return the sums over all brokers and groups. Broadcasting groups have no lag at the brokers."""
    lags = [row for row in groups if row.model != "broadcasting" and not row.is_system]
    known_lags = [row.lag for row in lags if row.lag is not None]
    return ClusterTotals(
        # Slaves store what masters do: their rate would count twice.
        tps_in=_known_sum(row.tps_in for row in brokers if row.is_master),
        tps_out=_known_sum(row.tps_out for row in brokers),
        # A broker that was just started responds, and has no rate yet.
        tps_is_partial=any(not row.is_up for row in brokers),
        lag=sum(known_lags) if known_lags else None,
        lag_is_partial=any(row.lag_is_partial for row in lags)
        or any(not row.is_up for row in brokers if row.is_master),
    )


def history_values(
    brokers: Iterable[BrokerRow], groups: Iterable[GroupRow], sums: ClusterTotals
) -> dict[SeriesKey, Rates]:
    """Return the values that the history records. A partial sum is unknown: a curve would show it as a collapse."""
    values = {
        cluster_key(): Rates(
            None if sums.tps_is_partial else sums.tps_in,
            None if sums.tps_is_partial else sums.tps_out,
            None if sums.lag_is_partial else sums.lag,
        )
    }
    values |= {broker_key(row.broker, row.broker_id): Rates(row.tps_in, row.tps_out, None) for row in brokers}
    values |= {
        group_key(row.group): Rates(
            None,
            None if row.tps_is_partial else row.tps,
            None if row.lag_is_partial else row.lag,
            None if row.tps_is_partial else row.slaves_tps,
        )
        for row in groups
    }
    return values
