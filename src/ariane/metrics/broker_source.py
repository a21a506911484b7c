"""Metrics of a broker in this process, read from its tables at scrape time.

The tables are read in the event loop, a slice at a time, so that a scrape of 10,000 groups delays no request by more than about a
millisecond. Nothing is counted for the metrics alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec

from ariane.broker.broker_handlers import BrokerServices
from ariane.broker.handlers.runtime_info import RuntimeInfoHandler
from ariane.broker.stats.stats_items import MINUTE
from ariane.broker.stats.store_stats import FINE_BOUNDS_MS
from ariane.cluster.statistics_requests import split_pairs
from ariane.metrics import families, runtime_metrics
from ariane.metrics.broker_metrics import BROKER_METRICS, BrokerInternals
from ariane.metrics.cluster_metrics import CLUSTER_METRICS
from ariane.metrics.families import Family
from ariane.metrics.scraped_cluster import (
    ConnectedClient,
    GroupState,
    MinuteRate,
    Pair,
    QueueRange,
    ScrapedBroker,
    ScrapedCluster,
    list_pairs,
)

SLICE = 200  # queues or statistics read without yielding to the loop
STATISTICS = frozenset(
    (
        "TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", "GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS", "BROKER_PUT_NUMS",
        "BROKER_GET_NUMS",
    )
)  # fmt: skip
SHOWN_BOUNDS_S = frozenset((0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0))  # of durations
_BOUNDS_S = tuple(bound / 1000 for bound in FINE_BOUNDS_MS)


class _Pauses:
    """Yields to the event loop after each slice."""

    def __init__(self) -> None:
        self._count = 0

    async def add(self, count: int) -> None:
        self._count += count
        if self._count >= SLICE:
            self._count = 0
            await asyncio.sleep(0)


class BrokerSource:
    """Reads the metrics of one broker.

    Args:
        services: The services of the broker.
        runtime: Its runtime information.
    """

    def __init__(self, services: BrokerServices, runtime: RuntimeInfoHandler) -> None:
        self._services = services
        self._runtime = runtime
        # Store times of the next message of lagging queues: topic, group, queue → offset, time. A stalled group costs no read.
        self._next_ms: dict[tuple[str, str, int], tuple[int, int | None]] = {}

    async def families(self, timeout_s: float | None) -> list[Family]:
        """Return the families of the broker."""
        pauses = _Pauses()
        groups = self._groups()
        state = await self._state(groups, pauses)
        snapshot = ScrapedCluster(brokers=(state,), groups=groups)
        return families.read(CLUSTER_METRICS, snapshot) + families.read(BROKER_METRICS, self._internals(state))

    def _groups(self) -> dict[str, GroupState]:
        """Return the state of all groups that are online or have offsets."""
        services = self._services
        names = {key.partition("@")[2] for key in services.state.offsets.view().offset_table}
        groups = dict.fromkeys(sorted(names), GroupState())
        for name, group in services.clients.members.consumers.items():
            clients = sorted({ConnectedClient(one.addr, one.client_id) for one in group.members.values()})
            groups[name] = GroupState(tuple(clients), group.is_broadcasting, frozenset(group.subscriptions))
        return groups

    async def _state(self, groups: dict[str, GroupState], pauses: _Pauses) -> ScrapedBroker:
        services, config = self._services, self._services.settings.current
        # Offsets are copied before the ends of queues are read, so that a lag is never too small.
        offsets = {
            pair: dict(queues) for pair, queues in split_pairs(services.state.offsets.view().offset_table).items()
        }
        topics: dict[str, tuple[QueueRange, ...]] = {}
        for name in services.state.topics.names():
            topics[name] = tuple(self._queues(name))
            await pauses.add(1 + len(topics[name]))
        rates = {}
        for name, key, item in services.stats.snapshots(MINUTE, STATISTICS):
            rates[name, key] = MinuteRate(item.sum, item.tps)
            await pauses.add(1)
        state = ScrapedBroker(
            cluster=config.broker_cluster_name,
            name=config.broker_name,
            broker_id=config.broker_id,
            addr=services.addr,
            is_up=True,
            runtime=self._runtime.table(),
            topics=topics,
            offsets=offsets,
            producers={group: len(members) for group, members in services.clients.members.producers.items()},
            rates=rates,
        )
        if not state.is_master:
            return state
        ages_ms = await self._ages(state, groups, pauses)
        return msgspec.structs.replace(state, ages_ms=ages_ms)

    def _queues(self, topic: str) -> Iterator[QueueRange]:
        config, store = self._services.state.topics.get(topic), self._services.store
        for queue_id in range(config.write_queue_nums if config else 0):
            yield queue_id, store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)

    async def _ages(self, state: ScrapedBroker, groups: dict[str, GroupState], pauses: _Pauses) -> dict[Pair, int]:
        """Return the age of the oldest unconsumed message of each pair with a lag, if all of them are still stored."""
        now_ms = self._services.clock.now_ms()
        next_ms: dict[tuple[str, str, int], tuple[int, int | None]] = {}
        ages = {}
        for topic, group in list_pairs(state, groups):
            offsets = state.offsets.get((topic, group), {})
            times = []
            for queue_id, _, last in state.topics[topic]:
                offset = offsets.get(queue_id)
                if offset is None or offset >= last:
                    continue
                key = (topic, group, queue_id)
                known = self._next_ms.get(key)
                if known is None or known[0] != offset:
                    known = (offset, self._services.store.store_time(topic, queue_id, offset))
                    await pauses.add(10)  # a read of the log
                next_ms[key] = known
                times.append(known[1])
            oldest = [ms for ms in times if ms is not None]
            if oldest and len(oldest) == len(times):
                ages[topic, group] = max(0, now_ms - min(oldest))
            await pauses.add(1 + len(offsets) // 8)
        self._next_ms = next_ms
        return ages

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
            disk_used_ratio=runtime_metrics.number(state.runtime, "commitLogDiskRatio"),
            log_end=store.commit_log_max,
            unflushed_bytes=store.commit_log_max - store.flushed,
            undispatched_bytes=store.commit_log_max - store.dispatched,
            slaves=tuple(services.feed.slave_offsets()),
            uncounted_events=services.stats.overflow_count(),
        )
