"""The task that samples every second, prints what is due, and stops groups that read too slowly. [StoreStatsService.run]

Thousands of items are worked off in slices, so that no request waits long for it; lines are written by a worker thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import NamedTuple, TypeVar

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
ITEMS_PER_SLICE = 100  # items between two looks at the sockets: less than a millisecond, lines made of them included
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


class Protection(NamedTuple):
    """disableConsumeIfConsumerReadSlowly: `stop` is told a group that is more than `bytes_max` of log behind."""

    bytes_max: int
    stop: Callable[[str], None]


class StatsRecorder:
    """`put_total` is how many messages the store took since its start; without `journal` nothing is printed to stats.log.

    `late_ms` is how much later than asked for the loop came back to this task last: what a request has to wait, too.
    """

    def __init__(
        self,
        stats: BrokerStats,
        put_total: Callable[[], int],
        journal: StatsLogFile | None,
        clock: Clock,
        protection: Protection | None = None,
    ) -> None:
        self.loop_lag_ms = 0.0
        self._stats = stats
        self._put_total = put_total
        self._journal = journal
        self._clock = clock
        self._protection = protection
        self._uncounted = 0
        self._looked_ms = float("-inf")
        self._jobs: dict[ScheduledTask, Callable[[], Awaitable[None]]] = {
            ScheduledTask.ROLL_PUT_TIMES: self._roll,
            ScheduledTask.STOP_SLOW_CONSUMERS: self._stop_slow,
            ScheduledTask.START_DAY: self._morning,
            ScheduledTask.PRINT_LATEST_VALUES: self._print_moments,
        }

    async def run(self) -> None:
        """Until cancelled."""
        schedule = StatsSchedule(self._clock.now_ms(), self._monotonic_ms())
        while True:
            await self.tick(schedule)
            asked_ms = self._monotonic_ms() + TICK_INTERVAL_S * 1000
            await self._clock.sleep(TICK_INTERVAL_S)
            self.loop_lag_ms = max(0.0, self._monotonic_ms() - asked_ms)

    async def tick(self, schedule: StatsSchedule) -> None:
        """What is due now. An error of one job is logged and does not keep the others."""
        self._stats.store_stats.sample(self._monotonic_ms(), self._put_total())
        for job in schedule.due(self._clock.now_ms(), self._monotonic_ms()):
            try:
                if job in SAMPLED:
                    await self._sample(SAMPLED[job])
                elif job in PRINTED:
                    await self._print(PRINTED[job])
                else:
                    await self._jobs[job]()
            except Exception:
                log.exception("statistics: %s failed; it is done again when it is next due", job.name)

    async def _sample(self, window: StatsWindow) -> None:
        async for item in _sliced(self._stats.items()):
            item.sample(window, round(self._monotonic_ms()))
        if window is DAY:
            self._stats.drop_idle(self._monotonic_ms() - LATEST_VALUE_LIVE_MS)
            uncounted = self._stats.overflow_count()
            if uncounted > self._uncounted:
                log.error(
                    "%d raises found no place among the statistics, which are full; delete unused topics and groups",
                    uncounted - self._uncounted,
                )
                self._uncounted = uncounted

    async def _print(self, window: StatsWindow) -> None:
        now_ms = self._clock.now_ms()
        texts = [
            stats_log_format.format_line(now_ms, stats_log_format.format_item(name, key, window, held))
            async for name, key, held in _sliced(self._stats.snapshots(window))
        ]
        await self._write(texts)

    async def _print_moments(self) -> None:
        now_ms = self._clock.now_ms()
        moments = ((n, key, value) for n, one in self._stats.moments.items() for key, value in one.values().items())
        texts = [
            stats_log_format.format_line(now_ms, stats_log_format.format_latest_value(*one))
            async for one in _sliced(moments)
        ]
        await self._write(texts)

    async def _write(self, texts: list[str]) -> None:
        if texts and self._journal is not None:
            try:
                await asyncio.to_thread(self._journal.write, texts)
            except OSError as error:
                log.error("%s cannot be written, %d lines are lost: %s", self._journal.path, len(texts), error)

    async def _roll(self) -> None:
        minute = self._stats.store_stats.roll_minute()
        store_log.info("%s", stats_log_format.format_store_rates(self._stats.store_stats))
        store_log.info("%s", stats_log_format.format_put_times(minute))

    async def _morning(self) -> None:
        self._stats.store_stats.start_day(self._put_total())

    async def _stop_slow(self) -> None:
        """Stop the groups that were read too far behind since this was last done; who reads no more is left alone."""
        if self._protection is None:
            return
        since_ms, self._looked_ms = self._looked_ms, self._monotonic_ms()
        slow: dict[str, int] = {}
        for key, behind in self._stats.fall_size.values(since_ms).items():
            if behind > self._protection.bytes_max:
                group = key.split("@")[2]
                slow[group] = max(behind, slow.get(group, 0))
        for group, behind in slow.items():
            limit = self._protection.bytes_max
            log.error("group %s reads %d bytes behind the end of the log, more than consumerFallbehindThreshold %d: "
                      "it may consume no more until consumeEnable is set again", group, behind, limit)  # fmt: skip
            self._protection.stop(group)

    def _monotonic_ms(self) -> float:
        return self._clock.monotonic() * 1000


async def _sliced(values: Iterable[T]) -> AsyncIterator[T]:
    """`values`, with a look at the sockets after each slice."""
    for number, value in enumerate(values, 1):
        yield value
        if number % ITEMS_PER_SLICE == 0:
            await asyncio.sleep(0)
