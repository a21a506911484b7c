"""Histograms of milliseconds that merge by addition, in any engine: MAP<INT, BIGINT>, bucket → count.

    bucket b covers (GAMMA^(b-1), GAMMA^b] ms, so 0 is 1 ms, 35 is (1.96, 2.00], 233 is (98.9, 100.9]
    bucket ZERO covers what is no longer than GAMMA^ZERO, 2.5 picoseconds: 0 ms

Each value of a bucket lies within (GAMMA - 1) / (GAMMA + 1) = 0.99 % of the value that stands for it, and so does every
quantile: whichever rows, buckets or hosts were added up, in whatever order. The same in Spark
(`ariane.pipeline.histogram_columns`) and in DuckDB (`ariane.reports.histogram_sql`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

GAMMA = 1.02  # 233 buckets from 1 ms to 100 ms, 582 to 100 s: a quantile is off by 1 % at most
LN_GAMMA = math.log(GAMMA)
ZERO_BUCKET = -1000
TYPE = "MAP<INT, BIGINT>"

# A rank is rounded up, but not for the last bit of q * count: 0.07 * 100 is 7.000000000000001, and the 7th is meant.
RANK_SLACK = 1e-9


def bucket_index(ms: float) -> int:
    """The bucket of a duration; ValueError for one that is negative or no number, which is no duration."""
    if not 0 <= ms < math.inf:
        raise ValueError(f"{ms} ms is no duration")
    return ZERO_BUCKET if ms == 0 else max(ZERO_BUCKET, math.ceil(math.log(ms) / LN_GAMMA))


def bucket_value(number: int) -> float:
    """The ms that stand for a bucket: as far, in per cent, from its least as from its greatest."""
    return 0.0 if number <= ZERO_BUCKET else 2 * math.exp(number * LN_GAMMA) / (GAMMA + 1)


def histogram_of(durations: Iterable[float]) -> dict[int, int]:
    """The histogram of these durations."""
    counts: dict[int, int] = {}
    for ms in durations:
        number = bucket_index(ms)
        counts[number] = counts.get(number, 0) + 1
    return counts


def merge_histograms(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """The histogram of all that is in these."""
    counts: dict[int, int] = {}
    for one in histograms:
        for number, count in one.items():
            counts[number] = counts.get(number, 0) + count
    return counts


def quantile(histogram: Mapping[int, int], q: float) -> float | None:
    """The ms that the share `q` (0 to 1) of the values does not exceed, by the nearest rank; None when there are none."""
    rank = max(1, math.ceil(q * sum(histogram.values()) - RANK_SLACK))
    upto = 0
    for number in sorted(histogram):
        upto += histogram[number]
        if upto >= rank:
            return bucket_value(number)
    return None
