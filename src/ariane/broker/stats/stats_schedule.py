"""When to sample and when to print; pure. [StatsItemSet, BrokerController]

What is sampled goes by a time that never goes back, from the start on; what is printed goes by the wall clock and the days
of this machine's time zone, from the next whole minute, hour and midnight on. A span slept through is made up for once.
"""

from __future__ import annotations

import enum
from datetime import datetime, timedelta, tzinfo

MINUTE_MS = 60_000


class ScheduledTask(enum.IntEnum):
    """What may be due, in the order in which it is done: samples first, so that lines show them."""

    SAMPLE_MINUTE = 1
    SAMPLE_HOUR = 2
    SAMPLE_DAY = 3
    ROLL_PUT_TIMES = 4
    STOP_SLOW_CONSUMERS = 5
    START_DAY = 6
    PRINT_MINUTE = 7
    PRINT_HOUR = 8
    PRINT_DAY = 9
    PRINT_LATEST_VALUES = 10


INTERVALS_MS = {
    ScheduledTask.SAMPLE_MINUTE: 10_000,
    ScheduledTask.SAMPLE_HOUR: 600_000,
    ScheduledTask.SAMPLE_DAY: 3_600_000,
    ScheduledTask.ROLL_PUT_TIMES: 60_000,
    ScheduledTask.STOP_SLOW_CONSUMERS: 180_000,
}
FIRST_AT_ONCE = (ScheduledTask.SAMPLE_MINUTE, ScheduledTask.SAMPLE_HOUR, ScheduledTask.SAMPLE_DAY)
LATEST_VALUES_INTERVAL_MS = 5 * MINUTE_MS


class StatsSchedule:
    """`due` is asked every second."""

    def __init__(self, now_ms: int, monotonic_ms: float, zone: tzinfo | None = None) -> None:
        self._zone = zone
        self._next = {job: monotonic_ms + (0 if job in FIRST_AT_ONCE else every) for job, every in INTERVALS_MS.items()}
        self._wall = {
            job: self._after(job, now_ms)
            for job in (ScheduledTask.PRINT_MINUTE, ScheduledTask.PRINT_HOUR, ScheduledTask.PRINT_DAY)
        }
        self._wall[ScheduledTask.START_DAY] = self._wall[ScheduledTask.PRINT_DAY]
        self._wall[ScheduledTask.PRINT_LATEST_VALUES] = self._wall[ScheduledTask.PRINT_MINUTE]

    def due(self, now_ms: int, monotonic_ms: float) -> list[ScheduledTask]:
        due = []
        for job, at in self._next.items():
            if monotonic_ms >= at:
                every = INTERVALS_MS[job]
                self._next[job] = at + every * ((monotonic_ms - at) // every + 1)
                due.append(job)
        for job, at in self._wall.items():
            after = self._after(job, now_ms)
            if now_ms >= at:
                due.append(job)
            if now_ms >= at or after < at:  # the clock was set back
                self._wall[job] = after
        return sorted(due)

    def _after(self, job: ScheduledTask, now_ms: int) -> int:
        if job in (ScheduledTask.PRINT_DAY, ScheduledTask.START_DAY):
            return next_midnight_ms(now_ms, self._zone)
        if job is ScheduledTask.PRINT_HOUR:
            return next_hour_ms(now_ms, self._zone)
        if job is ScheduledTask.PRINT_LATEST_VALUES:
            return next_minute_ms(now_ms) + LATEST_VALUES_INTERVAL_MS - MINUTE_MS
        return next_minute_ms(now_ms)


def next_minute_ms(now_ms: int) -> int:
    return now_ms - now_ms % MINUTE_MS + MINUTE_MS


def next_hour_ms(now_ms: int, zone: tzinfo | None = None) -> int:
    """The next whole hour of `zone` (None: this machine's), some of which differ from UTC by half an hour."""
    local = datetime.fromtimestamp(now_ms / 1000, zone)
    past = timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)
    return now_ms + round((timedelta(hours=1) - past) / timedelta(milliseconds=1))


def next_midnight_ms(now_ms: int, zone: tzinfo | None = None) -> int:
    """The beginning of the next day of `zone`, 23 to 25 hours away where clocks are set."""
    local = datetime.fromtimestamp(now_ms / 1000, zone)
    midnight = datetime(local.year, local.month, local.day, tzinfo=zone) + timedelta(days=1)
    return round(midnight.timestamp() * 1000)
