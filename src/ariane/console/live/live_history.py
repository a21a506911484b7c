"""Rates and lags of about the last hour, in memory, for sparklines and forecasts.

    record(ms, values) ─→ ring of SLOTS slots, one at most every SLOT_MS ─→ series(key, column): (ms, value or None) …

Keys are those of `cluster_key`, `broker_key` and `group_key`. All series share the times of the ring; a value that is unknown, or
of a key that did not exist, is NaN in the ring and None outside. With 10,000 groups the ring takes about 40 MB.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterator, Mapping
from typing import NamedTuple

SLOTS = 240
SLOT_MS = 15_000  # together an hour
COLUMNS = ("tps_in", "tps_out", "lag", "tps_slaves")

SeriesKey = tuple[str, ...]


class HistoryPoint(NamedTuple):
    """A value at a time; None: unknown."""

    ms: int
    value: float | None


class Rates(NamedTuple):
    """Values of one key at one time."""

    tps_in: float | None = None
    tps_out: float | None = None
    lag: float | None = None
    tps_slaves: float | None = None  # the part of a group's `tps_out` that slaves deliver


def cluster_key() -> SeriesKey:
    """Return the key of the sums over all clusters."""
    return ("cluster",)


def broker_key(broker: str, broker_id: int) -> SeriesKey:
    """Return the key of a master or slave."""
    return ("broker", broker, str(broker_id))


def group_key(group: str) -> SeriesKey:
    """Return the key of a consumer group."""
    return ("group", group)


class LiveHistory:
    """A ring of values per key. One thread records, others read."""

    def __init__(self, slots: int = SLOTS, slot_ms: int = SLOT_MS) -> None:
        self._slots = slots  # size of the ring
        self._slot_ms = slot_ms  # a record within this time of the slot's first one is skipped
        self._times = array("q", [0] * slots)  # 0: the slot is empty
        self._next = 0  # slot that is written next, and so the oldest one
        self._last_ms: int | None = None  # time of the newest slot; None if there is none
        self._series: dict[SeriesKey, tuple[array[float], ...]] = {}  # one array per column
        self._unknown = array("f", [math.nan] * slots)  # copied for each new column
        self._lock = threading.Lock()  # a reader would see half of a slot otherwise

    def is_due(self, ms: int) -> bool:
        """Return whether `record` would add a slot: whether the newest one is old enough."""
        return self._last_ms is None or ms - self._last_ms >= self._slot_ms

    def record(self, ms: int, values: Mapping[SeriesKey, Rates]) -> bool:
        """Add a slot with the values of all keys, and drop keys that have none. Return False if it is too early for one."""
        if not self.is_due(ms):
            return False
        # Before the lock is taken: the first record creates all series, and pages would wait for it.
        created = {key: self._unknown_columns() for key in values.keys() - self._series.keys()}
        with self._lock:
            self._series |= created
            slot = self._next
            self._next = (slot + 1) % self._slots
            self._times[slot] = self._last_ms = ms
            for key in self._series.keys() - values.keys():
                del self._series[key]
            for key, rates in values.items():
                for column, value in zip(self._series[key], rates, strict=True):
                    column[slot] = math.nan if value is None else value
        return True

    def _unknown_columns(self) -> tuple[array[float], ...]:
        return tuple(self._unknown[:] for _ in COLUMNS)

    def series(self, key: SeriesKey, column: str) -> list[HistoryPoint]:
        """Return the values of a key in one of `COLUMNS` from the oldest to the newest; empty for a key without any."""
        with self._lock:
            columns = self._series.get(key)
            if columns is None:
                return []
            points = list(self._points(columns[COLUMNS.index(column)]))
        # Times before the key existed say nothing about it.
        first = next((number for number, point in enumerate(points) if point.value is not None), len(points))
        return points[first:]

    def _points(self, values: array[float]) -> Iterator[HistoryPoint]:
        for offset in range(self._slots):
            slot = (self._next + offset) % self._slots
            if self._times[slot]:
                yield HistoryPoint(self._times[slot], None if math.isnan(values[slot]) else values[slot])
