"""What the store did: rates of puts and gets, and how long puts took. [StoreStatsService, BrokerStats]

Rates come from samples of one second, 601 of them: over 10, 60 and 600 s. Put times are counted in two sets of buckets that
are renewed every minute; what is told is the last whole minute. Most puts take less than a millisecond and only raise `fast`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import NamedTuple

SAMPLES_MAX = 601
RATE_S = (10, 60, 600)

# Bucket n holds what took less than _LABEL_BOUNDS_MS[n], the last one all that took longer.
LABELS = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]", "[1~2s]", "[2~3s]",
    "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
_LABEL_BOUNDS_MS = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
# Upper bounds of the buckets that percentiles are taken from.
FINE_BOUNDS_MS = (
    *range(1, 21),
    *range(22, 51, 2),
    *range(55, 101, 5),
    *range(110, 201, 10),
    *range(250, 501, 50),
    *range(600, 1001, 100),
    *range(2000, 10_001, 1000),
)


class StoreSample(NamedTuple):
    ms: float
    put: int
    found: int
    missed: int
    transferred: int


class PutTimes(NamedTuple):
    """Put times of one whole minute."""

    coarse: tuple[int, ...]
    fine: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.coarse)

    def format_java(self) -> str:
        return "".join(f"{label}:{count} " for label, count in zip(LABELS, self.coarse, strict=True))

    def percentile_ms(self, share: float) -> float:
        """The time that `share` of the puts did not exceed, taken straight inside its bucket; beyond the last bound, that."""
        wanted, passed, low = int(sum(self.fine) * share), 0, 0
        for count, high in zip(self.fine, (*FINE_BOUNDS_MS, FINE_BOUNDS_MS[-1]), strict=True):
            if wanted <= passed + count:
                return low + ((high - low) * (wanted - passed) / count if count else 0.0)
            passed += count
            low = high
        raise AssertionError("a share of more than all")


class DailyTotals(NamedTuple):
    """Totals since the broker's start, as they stood at local midnight: today's and yesterday's."""

    put_yesterday: int = 0
    put_today: int = 0
    got_yesterday: int = 0
    got_today: int = 0


class StoreStats:
    """Counters that only grow; whoever counts adds to the members. `total` and `size` of puts are the store's own."""

    def __init__(self) -> None:
        self.fast_puts = 0  # puts that took less than a millisecond, in this minute
        self.failed_puts = 0
        self.found = 0
        self.missed = 0
        self.transferred = 0
        self.put_max_ms = 0.0
        self.get_max_ms = 0.0
        self.daily_totals = DailyTotals()
        self.last_minute: PutTimes | None = None  # unknown until a minute is whole
        self._coarse = [0] * len(LABELS)
        self._fine = [0] * (len(FINE_BOUNDS_MS) + 1)
        self._samples: deque[StoreSample] = deque(maxlen=SAMPLES_MAX)

    def record_slow_put(self, ms: float) -> None:
        """A put took a millisecond or longer."""
        self._coarse[bisect_right(_LABEL_BOUNDS_MS, ms)] += 1
        self._fine[bisect_left(FINE_BOUNDS_MS, ms)] += 1
        self.put_max_ms = max(self.put_max_ms, ms)

    def record_get_time(self, ms: float) -> None:
        self.get_max_ms = max(self.get_max_ms, ms)

    def sample(self, now_ms: float, put_total: int) -> None:
        """Once a second."""
        self._samples.append(StoreSample(now_ms, put_total, self.found, self.missed, self.transferred))

    def roll_minute(self) -> PutTimes:
        """Once a minute: the minute that ended, from now on the last whole one."""
        self._coarse[0] += self.fast_puts
        self._fine[0] += self.fast_puts
        self.last_minute = PutTimes(tuple(self._coarse), tuple(self._fine))
        self.fast_puts = 0
        self._coarse = [0] * len(self._coarse)
        self._fine = [0] * len(self._fine)
        return self.last_minute

    def start_day(self, put_total: int) -> None:
        """A day begins: today's morning becomes yesterday's."""
        was = self.daily_totals
        self.daily_totals = DailyTotals(was.put_today, put_total, was.got_today, self.transferred)

    def rate(self, seconds: int, *columns: str) -> float | None:
        """A second's share of what the last `seconds` added to these members of Sample; None before so much was seen."""
        samples = self._samples
        if len(samples) <= seconds:
            return None
        last, first = samples[-1], samples[-1 - seconds]
        ms = last.ms - first.ms
        total = sum(getattr(last, column) - getattr(first, column) for column in columns)
        return float(total * 1000 / ms) if ms > 0 else None
