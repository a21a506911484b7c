"""Time buckets of plots."""

from __future__ import annotations

from collections.abc import Mapping

from ariane.reports.report import Line, utc_time

MINUTE_MS = 60_000
BUCKETS_MAX = 240  # more points than a terminal has columns add no detail
# Sizes that divide an hour, a day or a week, so that buckets begin at round times.
BUCKET_SIZES_MS = tuple(minutes * MINUTE_MS for minutes in (1, 5, 10, 30, 60, 360, 1440, 10_080))


def bucket_ms(first_ms: int, last_ms: int) -> int:
    """Return the shortest bucket that needs at most BUCKETS_MAX buckets; the longest one for any longer time."""
    return next(
        (bucket for bucket in BUCKET_SIZES_MS if (last_ms - first_ms) / bucket < BUCKETS_MAX), BUCKET_SIZES_MS[-1]
    )


def series(name: str, values: Mapping[int, float], first_ms: int, last_ms: int, bucket: int) -> Line:
    """Return a series with a point per bucket; buckets without a value are unknown."""
    return Line(name, tuple((utc_time(ms), values.get(ms)) for ms in range(first_ms, last_ms + 1, bucket)))
