"""Histograms of milliseconds that any engine can merge by addition: MAP<INT, BIGINT>, bucket → count.

    bucket b covers (GAMMA^(b-1), GAMMA^b] ms: 0 is 1 ms, 35 is (1.96, 2.00], 233 is (98.9, 100.9]
    bucket ZERO_BUCKET covers everything up to GAMMA^ZERO_BUCKET, 2.5 picoseconds: 0 ms

The relative error of a value, and of any quantile, is at most (GAMMA - 1) / (GAMMA + 1) = 0.99 %, whichever rows, time buckets or
hosts were merged, in any order. The same histograms exist in Spark (`ariane.pipeline.tables.histogram_columns`) and in DuckDB
(`ariane.reports.tables.histogram_sql`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

# Relative and not absolute widths: the error is the same for 1 ms and for an hour, with few buckets.
GAMMA = 1.02  # 233 buckets from 1 ms to 100 ms, 582 to 100 s
LN_GAMMA = math.log(GAMMA)
ZERO_BUCKET = -1000
TYPE = "MAP<INT, BIGINT>"

# Ranks are rounded up, except for floating-point noise in q * count: 0.07 * 100 is 7.000000000000001 and means rank 7.
RANK_SLACK = 1e-9


def bucket_index(ms: float) -> int:
    """Return the bucket of a duration.

    Raises:
        ValueError: the duration is negative, infinite or NaN.
    """
    if not 0 <= ms < math.inf:
        raise ValueError(f"Invalid duration {ms} ms: expected a finite number that is not negative")
    return ZERO_BUCKET if ms == 0 else max(ZERO_BUCKET, math.ceil(math.log(ms) / LN_GAMMA))


def bucket_value(index: int) -> float:
    """Return the ms that represent a bucket: the value with the same relative distance to both edges."""
    return 0.0 if index <= ZERO_BUCKET else 2 * math.exp(index * LN_GAMMA) / (GAMMA + 1)


def histogram_of(durations: Iterable[float]) -> dict[int, int]:
    """Return the histogram of some durations, in ms."""
    counts: dict[int, int] = {}
    for ms in durations:
        index = bucket_index(ms)
        counts[index] = counts.get(index, 0) + 1
    return counts


def merge_histograms(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Return the sum of some histograms."""
    counts: dict[int, int] = {}
    for histogram in histograms:
        for index, count in histogram.items():
            counts[index] = counts.get(index, 0) + count
    return counts


def quantile(histogram: Mapping[int, int], q: float) -> float | None:
    """Return the `q` quantile (0 to 1) in ms, by the nearest rank; None for an empty histogram."""
    # The nearest rank, without interpolation: DuckDB and Spark then give the same value from the same counts.
    rank = max(1, math.ceil(q * sum(histogram.values()) - RANK_SLACK))
    cumulative = 0
    for index in sorted(histogram):
        cumulative += histogram[index]
        if cumulative >= rank:
            return bucket_value(index)
    return None
