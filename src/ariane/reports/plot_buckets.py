"""Steps of time for plots."""

from __future__ import annotations

from collections.abc import Mapping

from ariane.reports.report import Line, utc_time

MINUTE_MS = 60_000
BUCKETS_MAX = 240  # a terminal has fewer columns, a page shows no more
BUCKET_SIZES_MS = tuple(minutes * MINUTE_MS for minutes in (1, 5, 10, 30, 60, 360, 1440, 10_080))


def bucket_ms(first_ms: int, last_ms: int) -> int:
    """The least step that does with `STEPS_MAX`; the longest one holds for any longer time."""
    return next((step for step in BUCKET_SIZES_MS if (last_ms - first_ms) / step < BUCKETS_MAX), BUCKET_SIZES_MS[-1])


def series(name: str, values: Mapping[int, float], first_ms: int, last_ms: int, bucket: int) -> Line:
    """A line over every step between two; where there is no value nothing is known."""
    return Line(name, tuple((utc_time(ms), values.get(ms)) for ms in range(first_ms, last_ms + 1, bucket)))
