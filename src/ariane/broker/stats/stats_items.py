"""Counters that only grow, and samples of them, which yield the last minute, hour and day. [StatsItem]

    row of a sample   ms | times | count | size        four numbers of an array, so that 20,000 items take less than 40 MB
    samples           minute: every 10 s, 7 retained; hour: every 10 min, 7 retained; day: every hour, 25 retained

The first sample of a list follows one of zeros, one interval earlier. A snapshot is the difference of the last and the first sample
of a list. `now_ms` is monotonic time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

ITEMS_MAX = 20_000  # of one table; events of further keys are only counted, and reported in the log
_ROW = 4


class StatsWindow(NamedTuple):
    """A list of samples: its position in an item, the interval, and the number of retained samples."""

    position: int
    """Index of the list among the samples of an item."""
    interval_ms: int
    samples_max: int


MINUTE = StatsWindow(0, 10_000, 7)
HOUR = StatsWindow(1, 600_000, 7)
DAY = StatsWindow(2, 3_600_000, 25)

# Columns of a row that a statistic can show.
COUNT = 2
SIZE = 3


class StatsSnapshot(NamedTuple):
    """The events of a window: sum, sum per second, number of events, average per event."""

    sum: int = 0
    tps: float = 0.0
    times: int = 0
    avgpt: float = 0.0


EMPTY_SNAPSHOT = StatsSnapshot()


class StatsItem:
    """The counters of one key: `times` counts events, `count` and `size` add up their values. Callers increase them directly."""

    __slots__ = ("_samples", "count", "size", "times")

    def __init__(self) -> None:
        self.times = 0
        self.count = 0
        self.size = 0
        self._samples = (array("q"), array("q"), array("q"))

    def sample(self, window: StatsWindow, now_ms: int) -> None:
        """Append a sample to a window, and drop the oldest one if the window is full."""
        rows = self._samples[window.position]
        # The events before the first sample belong to the first interval.
        if not rows:
            rows.extend((now_ms - window.interval_ms, 0, 0, 0))
        rows.extend((now_ms, self.times, self.count, self.size))
        if len(rows) > window.samples_max * _ROW:
            del rows[:_ROW]

    def snapshot(self, window: StatsWindow, column: int = COUNT) -> StatsSnapshot:
        """Return what the counters added between the first and the last sample of a window."""
        rows = self._samples[window.position]
        if not rows:
            return EMPTY_SNAPSHOT
        last = len(rows) - _ROW
        total, times, ms = rows[last + column] - rows[column], rows[last + 1] - rows[1], rows[last] - rows[0]
        return StatsSnapshot(total, total * 1000 / ms if ms > 0 else 0.0, times, total / times if times > 0 else 0.0)

    @property
    def is_idle(self) -> bool:
        """Whether no event occurred during the samples of a whole day."""
        rows = self._samples[DAY.position]
        return len(rows) == DAY.samples_max * _ROW and rows[1:_ROW] == array("q", (self.times, self.count, self.size))


class StatsItemSet:
    """Items by key.

    Args:
        layout: What the parts of a key are, which `@` separates: topic, group, queue.
        items_max: Number of items. Further keys share one unnamed item, so that memory stays bounded whatever names clients use.
    """

    def __init__(self, *layout: str, items_max: int = ITEMS_MAX) -> None:
        self.layout = layout
        self.overflow_count = 0  # events of keys without room
        self._items: dict[str, StatsItem] = {}  # by key
        self._overflow = StatsItem()  # counts keys beyond `items_max` together
        self._items_max = items_max
        self.get = self._items.get  # a bound method: the hot path looks up an item per message

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[tuple[str, StatsItem]]:
        return iter(list(self._items.items()))

    def create(self, key: str) -> StatsItem:
        if len(self._items) >= self._items_max:
            self.overflow_count += 1
            return self._overflow
        item = self._items[key] = StatsItem()
        return item

    def add(self, key: str, count: int, size: int = 0) -> None:
        """Count one event of a key."""
        item = self._items.get(key) or self.create(key)
        item.times += 1
        item.count += count
        item.size += size

    def drop(self, part: str, name: str) -> None:
        """Remove the items of a topic or of a group."""
        for key in matching_keys(self._items, self.layout, part, name):
            del self._items[key]

    def drop_idle(self) -> None:
        """Remove items without an event for a day."""
        for key in [key for key, item in self._items.items() if item.is_idle]:
            del self._items[key]


class LatestValues:
    """The latest value of each key, with the time it was set. [MomentStatsItem]"""

    def __init__(self, *layout: str, items_max: int = ITEMS_MAX) -> None:
        self.layout = layout
        self.overflow_count = 0
        self._values: dict[str, tuple[int, float]] = {}
        self._items_max = items_max

    def __len__(self) -> int:
        return len(self._values)

    def set(self, key: str, value: int, now_ms: float) -> None:
        """Set the value of a key, unless the key is new and the table is full."""
        if key not in self._values and len(self._values) >= self._items_max:
            self.overflow_count += 1
            return
        self._values[key] = (value, now_ms)

    def values(self, since_ms: float = float("-inf")) -> dict[str, int]:
        """Return the values that were set after `since_ms`, by key."""
        return {key: value for key, (value, ms) in self._values.items() if ms > since_ms}

    def drop(self, part: str, name: str) -> None:
        """Remove the values of a topic or of a group."""
        for key in matching_keys(self._values, self.layout, part, name):
            del self._values[key]

    def drop_idle(self, since_ms: float) -> None:
        """Remove values that were last set before `since_ms`."""
        for key in [key for key, (_, ms) in self._values.items() if ms < since_ms]:
            del self._values[key]


def matching_keys(keys: Iterable[str], layout: tuple[str, ...], part: str, name: str) -> list[str]:
    """Return the keys whose `part` is `name`. No name in RocketMQ contains an @."""
    if part not in layout:
        return []
    position = layout.index(part)
    return [key for key in keys if key.split("@")[position] == name]
