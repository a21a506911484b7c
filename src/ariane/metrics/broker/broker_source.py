"""Metrics of a broker in this process, read from its tables at scrape time.

The tables are read in the event loop, a slice at a time, so that a scrape of 10,000 groups delays no request by more than about a
millisecond. Nothing is counted for the metrics alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from ariane.broker.broker_handlers import BrokerServices
from ariane.broker.handlers.admin.runtime_info import RuntimeInfoHandler
from ariane.broker.state.consumer_offsets import starts_first
from ariane.broker.stats.stats_items import MINUTE
from ariane.broker.stats.store_stats import FINE_BOUNDS_MS
from ariane.cluster.lag import queue_lag
from ariane.cluster.servers.statistics_requests import split_pairs
from ariane.metrics import families
from ariane.metrics.broker.broker_metrics import BROKER_METRICS, BrokerInternals, FailoverState
from ariane.metrics.broker.opentelemetry_names import OPENTELEMETRY_METRICS, BrokerTotals, CountedClient
from ariane.metrics.cluster_metrics import CLUSTER_METRICS
from ariane.metrics.families import Family
from ariane.metrics.polling.pauses import Pauses
from ariane.metrics.polling.runtime_values import number
from ariane.metrics.polling.scraped_cluster import (
    ConnectedClient,
    GroupState,
    MinuteRate,
    Pair,
    PairProgress,
    QueueRange,
    ScrapedBroker,
    ScrapedCluster,
    compute_progress,
    find_unknown_starts,
    list_pairs,
)
from ariane.model.topic import TopicConfig
from ariane.net.limits.quotas import LimitState, ResourceName
from ariane.protocol.records import record

STATISTICS = frozenset(
    (
        "TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", "GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS", "BROKER_PUT_NUMS",
        "BROKER_GET_NUMS",
    )
)  # fmt: skip
SHOWN_BOUNDS_S = frozenset((0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0))  # of durations
_BOUNDS_S = tuple(bound / 1000 for bound in FINE_BOUNDS_MS)


class BrokerSource:
    """Reads the metrics of one broker."""

    def __init__(self, services: BrokerServices, runtime: RuntimeInfoHandler) -> None:
        self._services = services
        self._runtime = runtime
        # Store time of the oldest unconsumed message of each pair with a lag, and the offsets for which it was read; None: not
        # stored any more. A group that stands still costs no read of the log.
        self._oldest_ms: dict[Pair, tuple[Mapping[int, int], int | None]] = {}

    async def families(self, timeout_s: float | None) -> list[Family]:
        """Return the families of the broker."""
        pauses = Pauses()
        groups = await self._groups(pauses)
        ages_ms: dict[Pair, int] = {}
        starts: dict[str, frozenset[int]] = {}
        state = await self._state(ages_ms, starts, pauses)
        # The starts need the state, and the ages the progress, which refers to it.
        starts.update(await self._starts(state, groups, pauses))
        progress = await compute_progress([state], groups, pauses)
        ages_ms.update(await self._ages(progress, pauses))
        snapshot = ScrapedCluster(brokers=(state,), groups=groups, progress=progress)
        return [
            *families.read(CLUSTER_METRICS, snapshot),
            *families.read(BROKER_METRICS, self._internals(state)),
            *families.read(OPENTELEMETRY_METRICS, await self._totals(snapshot, pauses)),
        ]

    async def _groups(self, pauses: Pauses) -> dict[str, GroupState]:
        """Return the state of all groups that are online or have offsets."""
        groups: dict[str, GroupState] = {}
        offline = GroupState()
        for key in self._services.state.offsets.view().offset_table:
            groups[key.partition("@")[2]] = offline
            await pauses.add(1)
        for name, group in list(self._services.clients.members.consumers.items()):
            clients = sorted({ConnectedClient(member.addr, member.client_id) for member in group.members.values()})
            groups[name] = GroupState(tuple(clients), group.is_broadcasting, frozenset(group.subscriptions))
            await pauses.add(1 + len(clients))
        return groups

    async def _state(
        self, ages_ms: Mapping[Pair, int], starts: Mapping[str, frozenset[int]], pauses: Pauses
    ) -> ScrapedBroker:
        services, config = self._services, self._services.settings.current
        # Offsets are copied before the ends of queues are read, so that a lag is never too small.
        offsets: dict[Pair, dict[int, int]] = {}
        for pair, queues in split_pairs(services.state.offsets.view().offset_table).items():
            offsets[pair] = dict(queues)
            await pauses.add(2)
        topics: dict[str, tuple[QueueRange, ...]] = {}
        configs: dict[str, TopicConfig] = {}
        for name in services.state.topics.names():
            topic = services.state.topics.get(name)
            if topic is not None:
                configs[name], topics[name] = topic, tuple(self._queues(topic))
                await pauses.add(1 + len(topics[name]))
        rates = {}
        for name, key, item in services.stats.snapshots(MINUTE, STATISTICS):
            rates[name, key] = MinuteRate(item.sum, item.tps)
            await pauses.add(1)
        return ScrapedBroker(
            cluster=config.broker_cluster_name,
            name=config.broker_name,
            broker_id=config.broker_id,
            addr=services.addr,
            is_up=True,
            runtime=self._runtime.table(),
            topics=topics,
            topic_configs=configs,
            offsets=offsets,
            producers={group: len(members) for group, members in services.clients.members.producers.items()},
            rates=rates,
            ages_ms=ages_ms,
            starts=starts,
        )

    def _queues(self, config: TopicConfig) -> Iterator[QueueRange]:
        topic, store = config.topic_name, self._services.store
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            yield queue_id, store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)

    async def _starts(
        self, state: ScrapedBroker, groups: Mapping[str, GroupState], pauses: Pauses
    ) -> dict[str, frozenset[int]]:
        """Return the queues by topic that a group without a committed offset starts at 0."""
        starts: dict[str, set[int]] = {}
        for topic, queue_id in find_unknown_starts(state, list_pairs(state, groups), groups):
            if starts_first(self._services.store, topic, queue_id):
                starts.setdefault(topic, set()).add(queue_id)
            await pauses.add(10)  # a read of the log
        return {topic: frozenset(ids) for topic, ids in starts.items()}

    async def _ages(self, progress: Iterable[PairProgress], pauses: Pauses) -> dict[Pair, int]:
        """Return the age of the oldest unconsumed message of each pair with a lag, if all of them are still stored."""
        now_ms = self._services.clock.now_ms()
        oldest: dict[Pair, tuple[Mapping[int, int], int | None]] = {}
        ages = {}
        for group_progress in progress:
            await pauses.add(2)
            if not group_progress.lag.minimum:
                continue
            pair = (group_progress.topic, group_progress.group)
            offsets = {
                queue_id: offset
                for queue_id, offset, last in group_progress.positions()
                if offset is not None and queue_lag(offset, last)
            }
            entry = self._oldest_ms.get(pair)
            if entry is None or entry[0] != offsets:
                entry = (offsets, await self._oldest(group_progress.topic, offsets, pauses))
            oldest[pair] = entry
            if entry[1] is not None:
                ages[pair] = max(0, now_ms - entry[1])
        self._oldest_ms = oldest
        return ages

    async def _oldest(self, topic: str, offsets: Mapping[int, int], pauses: Pauses) -> int | None:
        """Return the store time of the oldest of the messages at these offsets; None if one of them is not stored any more."""
        oldest: int | None = None
        for queue_id, offset in offsets.items():
            stored_ms = self._services.store.store_time(topic, queue_id, offset)
            await pauses.add(10)  # a read of the log
            if stored_ms is None:
                return None
            oldest = stored_ms if oldest is None else min(oldest, stored_ms)
        return oldest

    async def _totals(self, snapshot: ScrapedCluster, pauses: Pauses) -> BrokerTotals:
        services, store, (state,) = self._services, self._services.store, snapshot.brokers
        config, members = services.settings.current, services.clients.members
        clients = [
            CountedClient(group, member.language or "other", member.version, "")
            for group, producers in members.producers.items()
            for member in producers.values()
        ]
        clients += [
            CountedClient(name, member.language or "other", member.version, str(group.consume_type))
            for name, group in members.consumers.items()
            for member in group.members.values()
        ]
        await pauses.add(len(clients))
        in_flight = {}
        for progress in snapshot.progress:
            queues = services.state.pop.queues_of(progress.group, progress.topic)
            in_flight[progress.topic, progress.group] = sum(len(queue.taken) for queue in queues)
            await pauses.add(1)
        oldest = store.read_record(store.commit_log_min) if store.commit_log_max > store.commit_log_min else None
        return BrokerTotals(
            node=(config.broker_cluster_name, "broker", config.broker_name),
            permission=config.broker_permission,
            topics=state.topic_configs,
            groups=len(services.state.groups),
            clients=tuple(clients),
            received=self._counted("TOPIC_PUT_NUMS"),
            delivered=split_topic_and_group(self._counted("GROUP_GET_NUMS")),
            progress=snapshot.progress,
            ages_ms=state.ages_ms,
            in_flight=in_flight,
            log_bytes=store.commit_log_max - store.commit_log_min,
            unflushed_bytes=store.commit_log_max - store.flushed,
            undispatched_bytes=store.commit_log_max - store.dispatched,
            reserve_ms=None if oldest is None else max(0, services.clock.now_ms() - record.decode(oldest).store_ms),
        )

    def _counted(self, name: str) -> dict[str, tuple[int, int]]:
        """Return messages and bytes of a statistic since the start of the broker, by its key."""
        return {key: (item.count, item.size) for key, item in self._services.stats.views[name].items}

    def _limits(self) -> tuple[LimitState, ...]:
        state = self._services.state
        used: Mapping[ResourceName, int] = {
            "topics": len(state.topics.names()), "groups": len(state.groups), "queues": state.topics.queue_count,
        }  # fmt: skip
        quotas = self._services.server.limits.quotas
        return (*state.creations.states(used), *quotas.states(asyncio.get_running_loop().time()))

    def _internals(self, state: ScrapedBroker) -> BrokerInternals:
        services = self._services
        stats, store = services.stats.store_stats, services.store
        due_ms = store.delayed.next_due_ms() if state.is_master else None
        overdue_ms = 0 if due_ms is None else max(0, services.clock.now_ms() - due_ms)
        return BrokerInternals(
            cluster=state.cluster,
            name=state.name,
            broker_id=state.broker_id,
            put_durations=families.cumulative(_BOUNDS_S, stats.put_counts(), stats.put_s, SHOWN_BOUNDS_S),
            pull_durations=families.cumulative(_BOUNDS_S, stats.get_counts(), stats.get_s, SHOWN_BOUNDS_S),
            failed_puts=stats.failed_puts,
            loop_lag_s=services.recorder.loop_lag_ms / 1000,
            connections=services.server.connection_count,
            delayed_overdue_s=overdue_ms / 1000,
            certificate_days=services.protection.certificate_days(),
            gaps=services.protection.gap_names,
            disk_used_ratio=number(state.runtime, "commitLogDiskRatio"),
            log_end=store.commit_log_max,
            unflushed_bytes=store.commit_log_max - store.flushed,
            undispatched_bytes=store.commit_log_max - store.dispatched,
            slaves=tuple(services.feed.slave_offsets()),
            limits=self._limits(),
            audit=None if services.audit is None else services.audit.state,
            failover=failover_state(state.runtime),
            trace_records=services.traces.counts(),
            uncounted_events=services.stats.overflow_count(),
        )


def split_topic_and_group(counted: Mapping[str, tuple[int, int]]) -> dict[Pair, tuple[int, int]]:
    """Return the counts of keys `topic@group`."""
    pairs = ((key.partition("@"), counts) for key, counts in counted.items())
    return {(topic, group): counts for (topic, _, group), counts in pairs}


def failover_state(runtime: Mapping[str, str]) -> FailoverState | None:
    """Return the state that a broker reports in GET_BROKER_RUNTIME_INFO. [broker.replication.membership]"""
    if "failoverRole" not in runtime:
        return None
    is_master = runtime["failoverRole"] == "MASTER"
    return FailoverState(
        is_master=is_master,
        epoch=int(runtime["failoverEpoch"]),
        in_sync=len(runtime["failoverSet"].split(",")) if is_master else None,
        lease_s=number(runtime, "failoverLeaseSeconds") if is_master else None,
        is_promotable=not runtime["failoverRefusal"],
        refused_commits=int(runtime["failoverOffsetsRefused"]),
        backward_commits=int(runtime["failoverOffsetsBackward"]),
    )
