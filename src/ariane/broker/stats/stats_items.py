"""Counters that only grow, and samples of them, from which the last minute, hour and day are told. [StatsItem]

    row of a sample   ms | times | count | size        four numbers of an array, so that 20,000 items stay below 40 MB
    samples           minute: one per 10 s, 7 kept; hour: one per 10 min, 7 kept; day: one per hour, 25 kept

The first sample of a list follows one that says zero, one period earlier. A snapshot is the difference of the last and the
first of a list; `now_ms` is a time that never goes back.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

ITEMS_MAX = 20_000  # of one table; what comes beyond is counted for the broker as a whole and named in the log
_ROW = 4


class StatsWindow(NamedTuple):
    """A list of samples: its place in an item, ms between two of them, how many are kept."""

    position: int
    interval_ms: int
    samples_max: int


MINUTE = StatsWindow(0, 10_000, 7)
HOUR = StatsWindow(1, 600_000, 7)
DAY = StatsWindow(2, 3_600_000, 25)

# Columns of a row that a statistic may be about.
COUNT = 2
SIZE = 3


class StatsSnapshot(NamedTuple):
    """What a window held: the sum, its rate per second, how often it was raised, and the average of once."""

    sum: int = 0
    tps: float = 0.0
    times: int = 0
    avgpt: float = 0.0


EMPTY_SNAPSHOT = StatsSnapshot()


class StatsItem:
    """What one key raised: `times`, and a count and a size together. Whoever counts adds to the members."""

    __slots__ = ("_samples", "count", "size", "times")

    def __init__(self) -> None:
        self.times = 0
        self.count = 0
        self.size = 0
        self._samples = (array("q"), array("q"), array("q"))

    def sample(self, window: StatsWindow, now_ms: int) -> None:
        rows = self._samples[window.position]
        if not rows:
            rows.extend((now_ms - window.interval_ms, 0, 0, 0))
        rows.extend((now_ms, self.times, self.count, self.size))
        if len(rows) > window.samples_max * _ROW:
            del rows[:_ROW]

    def snapshot(self, window: StatsWindow, column: int = COUNT) -> StatsSnapshot:
        rows = self._samples[window.position]
        if not rows:
            return EMPTY_SNAPSHOT
        last = len(rows) - _ROW
        total, times, ms = rows[last + column] - rows[column], rows[last + 1] - rows[1], rows[last] - rows[0]
        return StatsSnapshot(total, total * 1000 / ms if ms > 0 else 0.0, times, total / times if times > 0 else 0.0)

    @property
    def is_idle(self) -> bool:
        """Whether a whole day's samples say that nothing was raised."""
        rows = self._samples[DAY.position]
        return len(rows) == DAY.samples_max * _ROW and rows[1:_ROW] == array("q", (self.times, self.count, self.size))


class StatsItemSet:
    """Items by key. `layout` names what stands between the @ of a key: topic, group, queue.

    Beyond `items_max` keys all others share one item that has no name: memory stays bounded, whatever names clients use.
    """

    def __init__(self, *layout: str, items_max: int = ITEMS_MAX) -> None:
        self.layout = layout
        self.overflow_count = 0  # raises under keys that found no place
        self._items: dict[str, StatsItem] = {}
        self._rest = StatsItem()
        self._items_max = items_max
        self.get = self._items.get

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[tuple[str, StatsItem]]:
        return iter(list(self._items.items()))

    def create(self, key: str) -> StatsItem:
        """The item of a key that has none yet."""
        if len(self._items) >= self._items_max:
            self.overflow_count += 1
            return self._rest
        item = self._items[key] = StatsItem()
        return item

    def add(self, key: str, count: int, size: int = 0) -> None:
        item = self._items.get(key) or self.create(key)
        item.times += 1
        item.count += count
        item.size += size

    def drop(self, part: str, name: str) -> None:
        """Forget the items of a topic or of a group."""
        for key in matching_keys(self._items, self.layout, part, name):
            del self._items[key]

    def drop_idle(self) -> None:
        """Forget what nothing raised for a day."""
        for key in [key for key, item in self._items.items() if item.is_idle]:
            del self._items[key]


class LatestValues:
    """Last values by key, each with the time it was set. [MomentStatsItem]"""

    def __init__(self, *layout: str, items_max: int = ITEMS_MAX) -> None:
        self.layout = layout
        self.overflow_count = 0
        self._values: dict[str, tuple[int, float]] = {}
        self._items_max = items_max

    def __len__(self) -> int:
        return len(self._values)

    def set(self, key: str, value: int, now_ms: float) -> None:
        if key not in self._values and len(self._values) >= self._items_max:
            self.overflow_count += 1
            return
        self._values[key] = (value, now_ms)

    def values(self, since_ms: float = float("-inf")) -> dict[str, int]:
        """Values by key, of those set after `since_ms`."""
        return {key: value for key, (value, ms) in self._values.items() if ms > since_ms}

    def drop(self, part: str, name: str) -> None:
        for key in matching_keys(self._values, self.layout, part, name):
            del self._values[key]

    def drop_idle(self, since_ms: float) -> None:
        """Forget what was last set before `since_ms`."""
        for key in [key for key, (_, ms) in self._values.items() if ms < since_ms]:
            del self._values[key]


def matching_keys(keys: Iterable[str], layout: tuple[str, ...], part: str, name: str) -> list[str]:
    """The keys whose `part` is `name`; no name of RocketMQ holds an @."""
    if part not in layout:
        return []
    at = layout.index(part)
    return [key for key in keys if key.split("@")[at] == name]
