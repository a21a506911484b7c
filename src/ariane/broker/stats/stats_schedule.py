"""When to sample and when to print. Pure. [StatsItemSet, BrokerController]

Samples follow monotonic time from the start on. Lines follow the wall clock and the days of this machine's time zone, from the next
whole minute, hour and midnight on. Missed intervals are made up for once.
"""

from __future__ import annotations

import enum
from datetime import datetime, timedelta, tzinfo

MINUTE_MS = 60_000


class ScheduledTask(enum.IntEnum):
    """Tasks in the order in which they run: samples first, so that the lines show them."""

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
    """The next time of each task. Call `due` every second."""

    def __init__(self, now_ms: int, monotonic_ms: float, zone: tzinfo | None = None) -> None:
        self._zone = zone  # None: this machine's
        self._next = {
            task: monotonic_ms + (0 if task in FIRST_AT_ONCE else every) for task, every in INTERVALS_MS.items()
        }
        self._wall = {
            task: self._after(task, now_ms)
            for task in (ScheduledTask.PRINT_MINUTE, ScheduledTask.PRINT_HOUR, ScheduledTask.PRINT_DAY)
        }
        self._wall[ScheduledTask.START_DAY] = self._wall[ScheduledTask.PRINT_DAY]
        self._wall[ScheduledTask.PRINT_LATEST_VALUES] = self._wall[ScheduledTask.PRINT_MINUTE]

    def due(self, now_ms: int, monotonic_ms: float) -> list[ScheduledTask]:
        """Return the tasks that are due, in the order in which to run them."""
        due = []
        for task, due_ms in self._next.items():
            if monotonic_ms >= due_ms:
                every = INTERVALS_MS[task]
                self._next[task] = due_ms + every * ((monotonic_ms - due_ms) // every + 1)
                due.append(task)
        for task, due_ms in self._wall.items():
            after = self._after(task, now_ms)
            if now_ms >= due_ms:
                due.append(task)
            if now_ms >= due_ms or after < due_ms:  # the clock was set back
                self._wall[task] = after
        return sorted(due)

    def _after(self, task: ScheduledTask, now_ms: int) -> int:
        if task in (ScheduledTask.PRINT_DAY, ScheduledTask.START_DAY):
            return next_midnight_ms(now_ms, self._zone)
        if task is ScheduledTask.PRINT_HOUR:
            return next_hour_ms(now_ms, self._zone)
        if task is ScheduledTask.PRINT_LATEST_VALUES:
            return next_minute_ms(now_ms) + LATEST_VALUES_INTERVAL_MS - MINUTE_MS
        return next_minute_ms(now_ms)


def next_minute_ms(now_ms: int) -> int:
    """Return the next whole minute."""
    return now_ms - now_ms % MINUTE_MS + MINUTE_MS


def next_hour_ms(now_ms: int, zone: tzinfo | None = None) -> int:
    """Return the next whole hour of a time zone (None: this machine's). Some zones differ from UTC by half an hour."""
    local = datetime.fromtimestamp(now_ms / 1000, zone)
    # The hour of the zone, not of UTC: subtract what has passed of it.
    past = timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)
    return now_ms + round((timedelta(hours=1) - past) / timedelta(milliseconds=1))


def next_midnight_ms(now_ms: int, zone: tzinfo | None = None) -> int:
    """Return the next midnight of a time zone, 23 to 25 hours away where clocks change."""
    local = datetime.fromtimestamp(now_ms / 1000, zone)
    midnight = datetime(local.year, local.month, local.day, tzinfo=zone) + timedelta(days=1)
    return round(midnight.timestamp() * 1000)
