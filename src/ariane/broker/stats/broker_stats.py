"""Every statistic of the broker, by RocketMQ's name and key, and the methods that count. [BrokerStatsManager]

    method                                          counts                              statistics
    record_send(topic, count, size)                 a stored send                       TOPIC_PUT_*, BROKER_PUT_NUMS
    record_sends(topic, sends, count, size)         stored sends of a turn              the same
    record_delayed_send(queue_id, count, size)      a send in the delay topic           … and QUEUE_PUT_*
    record_send_back(topic, group, …)               a message returned for a retry      SNDBCK_PUT_NUMS
    record_delayed_delivery(topic, queue_id, …)     a delivered delayed message         QUEUE_GET_*, GROUP_GET_*, TOPIC_PUT_*
    record_pull(topic, group, queue_id, …)          a pull with messages                GROUP_GET_*, BROKER_GET_NUMS
    record_pulls(topic, group, pulls, seconds)      pulls of a turn                     the same
    record_miss(group)                              a pull without messages             rates of the store
    record_transaction_read(topic, count, size)     half messages read by the broker    GROUP_GET_*, BROKER_GET_NUMS
    record_put_time(seconds), record_put_failure()  each put                            StoreStats
    record_put_times(puts, seconds)                 each put of a turn                  StoreStats
    drop_topic(topic), drop_group(group)            removes, with autoDeleteUnusedStats

Reads of tools (`is_tool_group`) do not count, since they are not consumption.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from ariane.broker.stats.stats_items import (
    COUNT,
    SIZE,
    LatestValues,
    StatsItem,
    StatsItemSet,
    StatsSnapshot,
    StatsWindow,
)
from ariane.broker.stats.store_stats import StoreStats
from ariane.model.topic import SCHEDULE_TOPIC, SYSTEM_GROUP_PREFIX

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
SCHEDULE_GROUP = "SCHEDULE_CONSUMER"

PULL_KEYS_MAX = 32_768  # queues of groups whose keys are retained: half a kilobyte each

# Groups of tools: mqadmin and consoles, the monitor, and Ariane's Spark source without a group of its own.
TOOL_GROUPS = frozenset({"TOOLS_CONSUMER", "__MONITOR_CONSUMER", "SELF_TEST_C_GROUP", "ariane-spark"})


def is_tool_group(group: str) -> bool:
    """Return whether the reads of a group are those of a tool."""
    return group in TOOL_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


@lru_cache(PULL_KEYS_MAX)
def _queue_key(topic: str, group: str, queue_id: int) -> str:
    """Return the key of a queue of a group, retained because each pull needs it."""
    return f"{queue_id}@{topic}@{group}"


class StatsView(NamedTuple):
    """A statistic under RocketMQ's name: its table, the column of its items, and the divisor of their values."""

    items: StatsItemSet
    column: int
    """COUNT or SIZE."""
    divisor: int = 1
    """Counted units per shown unit."""


class PulledMessages(NamedTuple):
    """The messages of one pull."""

    messages: int
    size: int
    """Bytes of their records."""
    seconds: float
    """Duration of the pull."""
    behind: int
    """Bytes of log after the last message."""
    late_ms: int
    """Age of the last message."""


# A pull of a turn: queue id; messages, size, behind and late_ms as in PulledMessages.
PulledQueue = tuple[int, int, int, int, int]


class BrokerStats:
    """The statistics of a broker.

    Args:
        cluster: Key of the BROKER_ items.
        detail: Whether to count by queue (enableDetailStat).
        fall_recorded: Whether to record the lag of groups in bytes (diskFallRecorded).
        drop_unused: Whether to remove the statistics of deleted topics and groups (autoDeleteUnusedStats).
        timer: Monotonic time in s, which handlers use to time puts and pulls.
        now_ms: Monotonic time in ms.
    """

    def __init__(
        self,
        cluster: str,
        *,
        detail: bool = True,
        fall_recorded: bool = True,
        drop_unused: bool = False,
        timer: Callable[[], float] = time.perf_counter,
        now_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        # One item per key serves several statistics: TOPIC_PUT_NUMS shows its count, TOPIC_PUT_SIZE its size.
        self.timer = timer
        self.store_stats = StoreStats()  # puts and gets of the whole store
        self._detail = detail
        self._fall_recorded = fall_recorded
        self._drop_unused = drop_unused
        self._now_ms = now_ms
        self._topic_put = StatsItemSet("topic")  # messages that producers sent
        self._queue_put = StatsItemSet("topic", "queue")  # the same by queue; only with enableDetailStat
        # Messages delivered to groups; pulls of tools count, as in 4.9.4.
        self._group_get = StatsItemSet("topic", "group")
        self._queue_get = StatsItemSet("topic", "queue", "group")  # the same by queue; only with enableDetailStat
        # Durations of reads in µs, shown in ms.
        self._latency = StatsItemSet("queue", "topic", "group") if detail else StatsItemSet("topic", "group")
        self._sent_back = StatsItemSet("topic", "group")  # messages that groups sent back
        broker_put, broker_get = StatsItemSet(), StatsItemSet()
        # The `times` of these stay 0, as in 4.9.4, which has no average per send for a whole broker.
        self._broker_put, self._broker_get = broker_put.create(cluster), broker_get.create(cluster)
        self.fall_size = LatestValues("queue", "topic", "group")  # how far groups are behind, in bytes of log
        self.fall_time = LatestValues("queue", "topic", "group")  # the same in ms
        self.views = {
            "TOPIC_PUT_NUMS": StatsView(self._topic_put, COUNT),
            "TOPIC_PUT_SIZE": StatsView(self._topic_put, SIZE),
            "QUEUE_PUT_NUMS": StatsView(self._queue_put, COUNT),
            "QUEUE_PUT_SIZE": StatsView(self._queue_put, SIZE),
            "GROUP_GET_NUMS": StatsView(self._group_get, COUNT),
            "GROUP_GET_SIZE": StatsView(self._group_get, SIZE),
            "QUEUE_GET_NUMS": StatsView(self._queue_get, COUNT),
            "QUEUE_GET_SIZE": StatsView(self._queue_get, SIZE),
            "GROUP_GET_LATENCY": StatsView(self._latency, COUNT, 1000),  # counted in µs, shown in ms
            "SNDBCK_PUT_NUMS": StatsView(self._sent_back, COUNT),
            "BROKER_PUT_NUMS": StatsView(broker_put, COUNT),
            "BROKER_GET_NUMS": StatsView(broker_get, COUNT),
        }
        # Values without a rate.
        self.moments = {"GROUP_GET_FALL_SIZE": self.fall_size, "GROUP_GET_FALL_TIME": self.fall_time}

    # --- counting writes ---

    def record_send(self, topic: str, count: int, size: int) -> None:
        """Count a send of `count` messages that was stored in `topic` with `size` bytes."""
        self.record_sends(topic, 1, count, size)

    def record_sends(self, topic: str, sends: int, count: int, size: int) -> None:
        """Count sends of `count` messages together that were stored in `topic` with `size` bytes."""
        item = self._topic_put.get(topic) or self._topic_put.create(topic)
        item.times += sends
        item.count += count
        item.size += size
        self._broker_put.count += count

    def record_delayed_send(self, queue_id: int, count: int, size: int) -> None:
        """Count a send that was stored in the delay topic, in the queue of its level."""
        self.record_send(SCHEDULE_TOPIC, count, size)
        if self._detail:
            self._queue_put.add(f"{SCHEDULE_TOPIC}@{queue_id}", count, size)

    def record_send_back(self, topic: str, group: str, *, delay_queue: int | None = None, size: int = 0) -> None:
        """Count a message that a consumer of `group` returned; with `delay_queue`, `size` bytes were stored in the delay topic."""
        self._sent_back.add(f"{topic}@{group}", 1)
        if delay_queue is not None:
            self._topic_put.add(SCHEDULE_TOPIC, 1, size)
            if self._detail:
                self._queue_put.add(f"{SCHEDULE_TOPIC}@{delay_queue}", 1, size)

    def record_delayed_delivery(self, topic: str, queue_id: int, count: int, size: int) -> None:
        """Count messages of a queue of the delay topic that were due and stored in `topic` (enableScheduleMessageStats)."""
        if self._detail:
            self._queue_get.add(f"{SCHEDULE_TOPIC}@{queue_id}@{SCHEDULE_GROUP}", count, size)
        self._group_get.add(f"{SCHEDULE_TOPIC}@{SCHEDULE_GROUP}", count, size)
        self.record_send(topic, count, size)

    def record_put_time(self, seconds: float) -> None:
        """Count a put that was answered after `seconds`, including waits."""
        self.record_put_times(1, seconds)

    def record_put_times(self, puts: int, seconds: float) -> None:
        """Count puts that were answered together, each after `seconds`."""
        self.store_stats.put_s += seconds * puts
        if seconds < 0.001:
            self.store_stats.fast_puts += puts
        else:
            self.store_stats.record_slow_puts(puts, seconds * 1000)

    def record_put_failure(self) -> None:
        """Count a put that failed."""
        self.store_stats.failed_puts += 1

    # --- counting reads ---

    def record_pull(self, topic: str, group: str, queue_id: int, pulled: PulledMessages) -> None:
        """Count a pull that returned messages."""
        count, size, seconds, behind, late_ms = pulled
        self.record_pulls(topic, group, [(queue_id, count, size, behind, late_ms)], seconds)

    def record_pulls(self, topic: str, group: str, pulls: Sequence[PulledQueue], seconds: float) -> None:
        """Count pulls of a group that returned messages of a topic, each after `seconds`."""
        if is_tool_group(group):
            return
        store_stats, now_ms, messages, total = self.store_stats, self._now_ms(), 0, 0
        group_key, detail, fall_recorded = f"{topic}@{group}", self._detail, self._fall_recorded
        us = round(seconds * 1_000_000)
        add_latency, set_size, set_time = self._latency.add, self.fall_size.set, self.fall_time.set
        for queue_id, count, size, behind, late_ms in pulls:
            queue_key = _queue_key(topic, group, queue_id)
            messages += count
            total += size
            add_latency(queue_key if detail else group_key, us)
            if fall_recorded:
                set_size(queue_key, behind, now_ms)
            set_time(queue_key, late_ms, now_ms)
        item = self._group_get.get(group_key) or self._group_get.create(group_key)
        item.times += len(pulls)
        item.count += messages
        item.size += total
        store_stats.found += len(pulls)
        store_stats.record_get_times(len(pulls), seconds * 1000)
        store_stats.transferred += messages
        self._broker_get.count += messages

    def record_scan(self, topic: str, group: str, queue_id: int, behind: int) -> None:
        """Record the lag after a pull whose filter matched no message; `behind` bytes of log follow."""
        if self._fall_recorded and not is_tool_group(group):
            self.fall_size.set(f"{queue_id}@{topic}@{group}", behind, self._now_ms())

    def record_miss(self, group: str) -> None:
        """Count a pull that found no message."""
        if not is_tool_group(group):
            self.store_stats.missed += 1

    def record_transaction_read(self, topic: str, count: int, size: int) -> None:
        """Count half and op messages that the broker read to check transactions."""
        self._group_get.add(f"{topic}@{TRANSACTION_GROUP}", count, size)
        self._broker_get.count += count

    # --- queries ---

    def snapshot(self, name: str, key: str, window: StatsWindow) -> StatsSnapshot | None:
        """Return a statistic over a window, None if the broker has no such item."""
        shown = self.views.get(name)
        item = shown.items.get(key) if shown else None
        return None if shown is None or item is None else _view_snapshot(shown, item, window)

    def snapshots(
        self, window: StatsWindow, names: Collection[str] | None = None
    ) -> Iterator[tuple[str, str, StatsSnapshot]]:
        """Yield name, key and snapshot of every statistic, or of those with these names, in the order of stats.log."""
        for name, shown in self.views.items():
            if names is None or name in names:
                for key, item in shown.items:
                    yield name, key, _view_snapshot(shown, item, window)

    def items(self) -> Iterator[StatsItem]:
        """Yield every item once, to sample it."""
        for table in self._tables():
            for _, item in table:
                yield item

    def overflow_count(self) -> int:
        """Return how many events had a key for which the tables had no room."""
        return sum(table.overflow_count for table in self._tables()) + sum(
            items.overflow_count for items in self.moments.values()
        )

    # --- removal ---

    def drop_topic(self, topic: str) -> None:
        """Remove the statistics of a deleted topic."""
        self._drop("topic", topic)

    def drop_group(self, group: str) -> None:
        """Remove the statistics of a deleted consumer group."""
        self._drop("group", group)

    def drop_idle(self, moments_since_ms: float) -> None:
        """Remove items without an event for a day, and latest values that were set before `moments_since_ms`."""
        for name, shown in self.views.items():
            if not name.startswith("BROKER_"):
                shown.items.drop_idle()
        for moments in self.moments.values():
            moments.drop_idle(moments_since_ms)

    def _drop(self, part: str, name: str) -> None:
        if self._drop_unused:
            for items in self._tables():
                items.drop(part, name)
            for moments in self.moments.values():
                moments.drop(part, name)

    def _tables(self) -> list[StatsItemSet]:
        return list(dict.fromkeys(shown.items for shown in self.views.values()))


def _view_snapshot(shown: StatsView, item: StatsItem, window: StatsWindow) -> StatsSnapshot:
    snapshot = item.snapshot(window, shown.column)
    if shown.divisor == 1:
        return snapshot
    return StatsSnapshot(
        snapshot.sum // shown.divisor, snapshot.tps / shown.divisor, snapshot.times, snapshot.avgpt / shown.divisor
    )
