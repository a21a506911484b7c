"""Statistics of the store: rates of puts and gets, and put times. [StoreStatsService, BrokerStats]

Rates over 10, 60 and 600 s come from 601 samples, one per second. Put times are counted in two sets of buckets, which are
reset every minute; queries return the last whole minute. Most puts take less than a millisecond and only increase `fast_puts`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import NamedTuple

SAMPLES_MAX = 601
RATE_S = (10, 60, 600)

# Bucket n counts puts that took less than _LABEL_BOUNDS_MS[n], the last one all slower ones.
LABELS = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]", "[1~2s]", "[2~3s]",
    "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
_LABEL_BOUNDS_MS = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
# Upper bounds of the buckets for percentiles.
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
    """The counters at one time."""

    ms: float
    """Monotonic time of the sample."""
    put: int
    """Stored messages."""
    found: int
    """Gets with messages."""
    missed: int
    """Gets without messages."""
    transferred: int
    """Messages of gets."""


class PutTimes(NamedTuple):
    """Put times of one whole minute: counts by the buckets of Java's log and by finer ones."""

    coarse: tuple[int, ...]
    fine: tuple[int, ...]

    @property
    def total(self) -> int:
        """Number of puts."""
        return sum(self.coarse)

    def format_java(self) -> str:
        """Return the distribution in the form of Java's log."""
        return "".join(f"{label}:{count} " for label, count in zip(LABELS, self.coarse, strict=True))

    def percentile_ms(self, share: float) -> float:
        """Return the time that a share of the puts did not exceed, interpolated linearly within its bucket."""
        rank, cumulative, low = int(sum(self.fine) * share), 0, 0
        for count, high in zip(self.fine, (*FINE_BOUNDS_MS, FINE_BOUNDS_MS[-1]), strict=True):
            if rank <= cumulative + count:
                return low + ((high - low) * (rank - cumulative) / count if count else 0.0)
            cumulative += count
            low = high
        raise AssertionError("the share is larger than 1")


class DailyTotals(NamedTuple):
    """Totals since the broker's start at the last two local midnights: today's and yesterday's."""

    put_yesterday: int = 0
    put_today: int = 0
    got_yesterday: int = 0
    got_today: int = 0


class StoreStats:
    """Counters of the store, which callers increase directly. The totals of puts are the store's own."""

    def __init__(self) -> None:
        self.fast_puts = 0  # puts of the current minute that took less than a millisecond
        self.failed_puts = 0  # puts that the store rejected
        self.found = 0  # gets with messages
        self.missed = 0  # gets without messages
        self.transferred = 0  # messages of gets
        self.put_s = 0.0  # total duration of all puts since the start
        self.get_s = 0.0  # and of all gets with messages
        self.put_max_ms = 0.0  # longest put since the start
        self.get_max_ms = 0.0  # longest get since the start
        self.daily_totals = DailyTotals()  # totals at midnight, from which tools compute today's numbers
        self.last_minute: PutTimes | None = None  # None until a whole minute has passed
        self._coarse = [0] * len(LABELS)  # put times of the current minute, in two sets of buckets
        self._fine = [0] * (len(FINE_BOUNDS_MS) + 1)  # the second set
        self._earlier_puts = [0] * (len(FINE_BOUNDS_MS) + 1)  # put times of all minutes before the current one
        self._gets = [0] * (len(FINE_BOUNDS_MS) + 1)  # durations of gets since the start
        # One per second; rates of the last 10 s, minute and ten minutes.
        self._samples: deque[StoreSample] = deque(maxlen=SAMPLES_MAX)

    def record_slow_puts(self, puts: int, ms: float) -> None:
        """Count puts that each took a millisecond or longer."""
        self._coarse[bisect_right(_LABEL_BOUNDS_MS, ms)] += puts
        self._fine[bisect_left(FINE_BOUNDS_MS, ms)] += puts
        self.put_max_ms = max(self.put_max_ms, ms)

    def record_get_times(self, gets: int, ms: float) -> None:
        """Record gets that took `ms` each."""
        self._gets[bisect_left(FINE_BOUNDS_MS, ms)] += gets
        self.get_s += gets * ms / 1000
        self.get_max_ms = max(self.get_max_ms, ms)

    def sample(self, now_ms: float, put_total: int) -> None:
        """Take the sample of a second."""
        self._samples.append(StoreSample(now_ms, put_total, self.found, self.missed, self.transferred))

    def roll_minute(self) -> PutTimes:
        """Finish the current minute and return it."""
        self._coarse[0] += self.fast_puts
        self._fine[0] += self.fast_puts
        self.last_minute = PutTimes(tuple(self._coarse), tuple(self._fine))
        self._earlier_puts = [sum(counts) for counts in zip(self._earlier_puts, self._fine, strict=True)]
        self.fast_puts = 0
        self._coarse = [0] * len(self._coarse)
        self._fine = [0] * len(self._fine)
        return self.last_minute

    def put_counts(self) -> list[int]:
        """Return the number of puts since the start by bucket: one per bound of FINE_BOUNDS_MS, and one for longer ones."""
        counts = [sum(pair) for pair in zip(self._earlier_puts, self._fine, strict=True)]
        counts[0] += self.fast_puts
        return counts

    def get_counts(self) -> list[int]:
        """Return the number of gets with messages since the start by the same buckets."""
        return list(self._gets)

    def start_day(self, put_total: int) -> None:
        """Start a day: the totals of today become those of yesterday."""
        former = self.daily_totals
        self.daily_totals = DailyTotals(former.put_today, put_total, former.got_today, self.transferred)

    def rate(self, seconds: int, *columns: str) -> float | None:
        """Return the rate per second of columns of StoreSample over the last `seconds`; None if the samples are younger."""
        samples = self._samples
        if len(samples) <= seconds:
            return None
        last, first = samples[-1], samples[-1 - seconds]
        ms = last.ms - first.ms
        total = sum(getattr(last, column) - getattr(first, column) for column in columns)
        return float(total * 1000 / ms) if ms > 0 else None
