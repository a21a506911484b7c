"""The task that samples every second, prints statistics, and disables slow consumer groups. [StoreStatsService.run]

Thousands of items are processed in slices, so that no request waits long for them; a worker thread writes the lines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from ariane.broker.stats import stats_log_format
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.broker.stats.stats_items import DAY, HOUR, MINUTE, StatsWindow
from ariane.broker.stats.stats_journal import StatsLogFile
from ariane.broker.stats.stats_schedule import ScheduledTask, StatsSchedule
from ariane.clock import Clock

log = logging.getLogger("ariane.broker.stats")
store_log = logging.getLogger("ariane.store")

T = TypeVar("T")

TICK_INTERVAL_S = 1.0
ITEMS_PER_SLICE = 100  # items processed without yielding to the loop: less than a millisecond, formatting included
LATEST_VALUE_LIVE_MS = 24 * 3_600_000

SAMPLED: dict[ScheduledTask, StatsWindow] = {
    ScheduledTask.SAMPLE_MINUTE: MINUTE,
    ScheduledTask.SAMPLE_HOUR: HOUR,
    ScheduledTask.SAMPLE_DAY: DAY,
}
PRINTED: dict[ScheduledTask, StatsWindow] = {
    ScheduledTask.PRINT_MINUTE: MINUTE,
    ScheduledTask.PRINT_HOUR: HOUR,
    ScheduledTask.PRINT_DAY: DAY,
}


class ConsumerGroups(Protocol):
    """The consumer groups of the broker."""

    def disable_consuming(self, name: str) -> None:
        """Let a group consume no more."""
        ...


class StatsRecorder:
    """Samples and prints the statistics of a broker.

    Args:
        put_total: Returns the number of messages that the store took since its start.
        journal: The file stats.log; None: nothing is printed to it.
        fallbehind_max: Lag in bytes of log above which a group is disabled; None: none is.
    """

    def __init__(
        self,
        stats: BrokerStats,
        put_total: Callable[[], int],
        journal: StatsLogFile | None,
        clock: Clock,
        *,
        fallbehind_max: int | None = None,
        groups: ConsumerGroups | None = None,
    ) -> None:
        # How much later than planned the event loop resumed this task: a request waits as long for its turn.
        self.loop_lag_ms = 0.0
        self._stats = stats
        self._put_total = put_total
        self._journal = journal
        self._clock = clock
        self._fallbehind_max = fallbehind_max
        self._groups = groups
        self._reported_overflow = 0  # events without room that were reported
        self._last_check_ms = float("-inf")  # time of the last check for slow groups
        # What each kind of the schedule runs.
        self._tasks: dict[ScheduledTask, Callable[[], Awaitable[None]]] = {
            ScheduledTask.ROLL_PUT_TIMES: self._roll,
            ScheduledTask.STOP_SLOW_CONSUMERS: self._stop_slow,
            ScheduledTask.START_DAY: self._morning,
            ScheduledTask.PRINT_LATEST_VALUES: self._print_moments,
        }

    async def run(self) -> None:
        """Sample and print until cancelled."""
        schedule = StatsSchedule(self._clock.now_ms(), self._monotonic_ms())
        while True:
            await self.tick(schedule)
            due_ms = self._monotonic_ms() + TICK_INTERVAL_S * 1000
            await self._clock.sleep(TICK_INTERVAL_S)
            self.loop_lag_ms = max(0.0, self._monotonic_ms() - due_ms)

    async def tick(self, schedule: StatsSchedule) -> None:
        """Run the tasks that are due. An error of one task is logged and does not affect the others."""
        self._stats.store_stats.sample(self._monotonic_ms(), self._put_total())
        for job in schedule.due(self._clock.now_ms(), self._monotonic_ms()):
            try:
                if job in SAMPLED:
                    await self._sample(SAMPLED[job])
                elif job in PRINTED:
                    await self._print(PRINTED[job])
                else:
                    await self._tasks[job]()
            except Exception:
                log.exception("Statistics task %s failed; it runs again when it is next due", job.name)

    async def _sample(self, window: StatsWindow) -> None:
        async for item in _sliced(self._stats.items()):
            item.sample(window, round(self._monotonic_ms()))
        if window is DAY:
            self._stats.drop_idle(self._monotonic_ms() - LATEST_VALUE_LIVE_MS)
            overflow = self._stats.overflow_count()
            if overflow > self._reported_overflow:
                log.error(
                    "%d events were not counted because the statistics are full; delete unused topics and groups",
                    overflow - self._reported_overflow,
                )
                self._reported_overflow = overflow

    async def _print(self, window: StatsWindow) -> None:
        now_ms = self._clock.now_ms()
        texts = [
            stats_log_format.format_line(now_ms, stats_log_format.format_item(name, key, window, snapshot))
            async for name, key, snapshot in _sliced(self._stats.snapshots(window))
        ]
        await self._write(texts)

    async def _print_moments(self) -> None:
        now_ms = self._clock.now_ms()
        moments = (
            (name, key, value) for name, latest in self._stats.moments.items() for key, value in latest.values().items()
        )
        texts = [
            stats_log_format.format_line(now_ms, stats_log_format.format_latest_value(*moment))
            async for moment in _sliced(moments)
        ]
        await self._write(texts)

    async def _write(self, texts: list[str]) -> None:
        if texts and self._journal is not None:
            try:
                await asyncio.to_thread(self._journal.write, texts)
            except OSError as error:
                log.error("Cannot write %s, %d lines are lost: %s", self._journal.path, len(texts), error)

    async def _roll(self) -> None:
        minute = self._stats.store_stats.roll_minute()
        store_log.info("%s", stats_log_format.format_store_rates(self._stats.store_stats))
        store_log.info("%s", stats_log_format.format_put_times(minute))

    async def _morning(self) -> None:
        self._stats.store_stats.start_day(self._put_total())

    async def _stop_slow(self) -> None:
        """Disable the groups that read too far from the end of the log since the last run.

        Groups that no longer read are left alone.
        """
        if self._fallbehind_max is None or self._groups is None:
            return
        since_ms, self._last_check_ms = self._last_check_ms, self._monotonic_ms()
        slow: dict[str, int] = {}
        for key, lag_bytes in self._stats.fall_size.values(since_ms).items():
            if lag_bytes > self._fallbehind_max:
                group = key.split("@")[2]
                slow[group] = max(lag_bytes, slow.get(group, 0))
        for group, lag_bytes in slow.items():
            log.error("Disabled group %s: its lag of %d bytes of log exceeds consumerFallbehindThreshold %d. "
                      "Set consumeEnable to let it consume again", group, lag_bytes, self._fallbehind_max)  # fmt: skip
            self._groups.disable_consuming(group)

    def _monotonic_ms(self) -> float:
        return self._clock.monotonic() * 1000


async def _sliced(values: Iterable[T]) -> AsyncIterator[T]:
    """Yield the values, and yield to the event loop after each slice of them."""
    for number, value in enumerate(values, 1):
        yield value
        if number % ITEMS_PER_SLICE == 0:
            await asyncio.sleep(0)
