"""Every statistic of the broker, by RocketMQ's name and key; and what the handlers call to raise them. [BrokerStatsManager]

    stats.sent(topic, count, size)                   a send was stored                 TOPIC_PUT_*, BROKER_PUT_NUMS
    stats.sent_delayed(queue_id, count, size)        … into the delay topic            and QUEUE_PUT_*
    stats.sent_back(topic, group, …)                 a message came back to be retried SNDBCK_PUT_NUMS
    stats.delivered_delayed(topic, queue_id, …)      a delayed message was delivered   QUEUE_GET_*, GROUP_GET_*, TOPIC_PUT_*
    stats.pulled(topic, group, queue_id, …)          a pull found messages             GROUP_GET_*, BROKER_GET_NUMS
    stats.missed(group)                              a pull found none                 rates of the store
    stats.transaction_read(topic, count, size)       the broker read half messages     GROUP_GET_*, BROKER_GET_NUMS
    stats.put_took(seconds), stats.put_failed()      each put                          puts.Puts
    stats.drop_topic(topic), stats.drop_group(group) with autoDeleteUnusedStats

What a tool reads (`is_tool`) counts nowhere: looking at messages is no consumption.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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

# Groups under which tools read: mqadmin and the consoles, the monitor, and our Spark source when it was given no group.
TOOL_GROUPS = frozenset({"TOOLS_CONSUMER", "__MONITOR_CONSUMER", "SELF_TEST_C_GROUP", "ariane-spark"})


def is_tool_group(group: str) -> bool:
    return group in TOOL_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


class StatsView(NamedTuple):
    """A statistic of RocketMQ's name: the table that holds it, what of its items, and how many of that make one."""

    items: StatsItemSet
    column: int
    divisor: int = 1


class BrokerStats:
    """`cluster` is the key of the BROKER_ items. `now_ms` is a time that never goes back."""

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
        self.timer = timer
        self.store_stats = StoreStats()
        self._detail = detail
        self._fall_recorded = fall_recorded
        self._drop_unused = drop_unused
        self._now_ms = now_ms
        self._topic_put = StatsItemSet("topic")
        self._queue_put = StatsItemSet("topic", "queue")
        self._group_get = StatsItemSet("topic", "group")
        self._queue_get = StatsItemSet("topic", "queue", "group")
        self._latency = StatsItemSet("queue", "topic", "group") if detail else StatsItemSet("topic", "group")
        self._sent_back = StatsItemSet("topic", "group")
        broker_put, broker_get = StatsItemSet(), StatsItemSet()
        # Their `times` stay 0, as in 4.9.4: there is no average of once for a whole broker.
        self._broker_put, self._broker_get = broker_put.create(cluster), broker_get.create(cluster)
        self.fall_size = LatestValues("queue", "topic", "group")
        self.fall_time = LatestValues("queue", "topic", "group")
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
        self.moments = {"GROUP_GET_FALL_SIZE": self.fall_size, "GROUP_GET_FALL_TIME": self.fall_time}

    # --- raised by who stores ---

    def record_send(self, topic: str, count: int, size: int) -> None:
        """A send of `count` messages was stored in `topic` (after its transformation) with `size` bytes."""
        item = self._topic_put.get(topic) or self._topic_put.create(topic)
        item.times += 1
        item.count += count
        item.size += size
        self._broker_put.count += count

    def record_delayed_send(self, queue_id: int, count: int, size: int) -> None:
        """A send was stored in the delay topic, in the queue of its level."""
        self.record_send(SCHEDULE_TOPIC, count, size)
        if self._detail:
            self._queue_put.add(f"{SCHEDULE_TOPIC}@{queue_id}", count, size)

    def record_send_back(self, topic: str, group: str, *, delay_queue: int | None = None, size: int = 0) -> None:
        """A consumer of `group` gave a message of `topic` back; with `delay_queue` it was stored there, `size` bytes long."""
        self._sent_back.add(f"{topic}@{group}", 1)
        if delay_queue is not None:
            self._topic_put.add(SCHEDULE_TOPIC, 1, size)
            if self._detail:
                self._queue_put.add(f"{SCHEDULE_TOPIC}@{delay_queue}", 1, size)

    def record_delayed_delivery(self, topic: str, queue_id: int, count: int, size: int) -> None:
        """Messages of the delay topic's queue came due and were stored in `topic` (enableScheduleMessageStats)."""
        if self._detail:
            self._queue_get.add(f"{SCHEDULE_TOPIC}@{queue_id}@{SCHEDULE_GROUP}", count, size)
        self._group_get.add(f"{SCHEDULE_TOPIC}@{SCHEDULE_GROUP}", count, size)
        self.record_send(topic, count, size)

    def record_put_time(self, seconds: float) -> None:
        """A put was answered after so long, waiting included."""
        if seconds < 0.001:
            self.store_stats.fast_puts += 1
        else:
            self.store_stats.record_slow_put(seconds * 1000)

    def record_put_failure(self) -> None:
        self.store_stats.failed_puts += 1

    # --- raised by who reads ---

    def record_pull(
        self, topic: str, group: str, queue_id: int, *, count: int, size: int, seconds: float, behind: int, late_ms: int
    ) -> None:
        """A pull found messages after `seconds`; `behind` bytes of log follow the last one, stored `late_ms` ago."""
        if is_tool_group(group):
            return
        self.store_stats.found += 1
        self.store_stats.transferred += count
        self.store_stats.record_get_time(seconds * 1000)
        self._group_get.add(f"{topic}@{group}", count, size)
        self._broker_get.count += count
        key = f"{queue_id}@{topic}@{group}"
        now_ms = self._now_ms()
        self._latency.add(key if self._detail else f"{topic}@{group}", round(seconds * 1_000_000))
        if self._fall_recorded:
            self.fall_size.set(key, behind, now_ms)
        self.fall_time.set(key, late_ms, now_ms)

    def record_scan(self, topic: str, group: str, queue_id: int, behind: int) -> None:
        """A pull looked at messages and found none that its group wants; `behind` bytes of log follow."""
        if self._fall_recorded and not is_tool_group(group):
            self.fall_size.set(f"{queue_id}@{topic}@{group}", behind, self._now_ms())

    def record_miss(self, group: str) -> None:
        """A pull found nothing."""
        if not is_tool_group(group):
            self.store_stats.missed += 1

    def record_transaction_read(self, topic: str, count: int, size: int) -> None:
        """The broker read half or op messages to check transactions."""
        self._group_get.add(f"{topic}@{TRANSACTION_GROUP}", count, size)
        self._broker_get.count += count

    # --- asked ---

    def snapshot(self, name: str, key: str, window: StatsWindow) -> StatsSnapshot | None:
        """What a window of a statistic held; None when the broker has no such item."""
        shown = self.views.get(name)
        item = shown.items.get(key) if shown else None
        return None if shown is None or item is None else _view_snapshot(shown, item, window)

    def snapshots(self, window: StatsWindow) -> Iterator[tuple[str, str, StatsSnapshot]]:
        """Name, key and content of everything, as stats.log prints it."""
        for name, shown in self.views.items():
            for key, item in shown.items:
                yield name, key, _view_snapshot(shown, item, window)

    def items(self) -> Iterator[StatsItem]:
        for table in self._tables():
            for _, item in table:
                yield item

    def overflow_count(self) -> int:
        """How often something was raised under a key that found no place."""
        return sum(table.overflow_count for table in self._tables()) + sum(
            one.overflow_count for one in self.moments.values()
        )

    # --- forgotten ---

    def drop_topic(self, topic: str) -> None:
        """A topic was deleted."""
        self._drop("topic", topic)

    def drop_group(self, group: str) -> None:
        """A consumer group was deleted."""
        self._drop("group", group)

    def drop_idle(self, moments_since_ms: float) -> None:
        """Forget what nothing raised for a day, and last values that were set before `moments_since_ms`."""
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
    held = item.snapshot(window, shown.column)
    if shown.divisor == 1:
        return held
    return StatsSnapshot(held.sum // shown.divisor, held.tps / shown.divisor, held.times, held.avgpt / shown.divisor)
