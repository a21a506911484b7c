"""Rows of a lane: bars that would overlap are drawn in different rows."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def assign_rows(bars: Sequence[tuple[float, float]], gap: float = 0.0) -> list[int]:
    """Return a row for each bar, so that bars of a row do not overlap; as few rows as possible.

    Args:
        bars: Left and right end of each bar.
        gap: Smallest distance between two bars of a row.
    """
    rows = [0] * len(bars)
    free: list[int] = []  # heap of rows without a bar at this point, so that the upper rows are used first
    ends: list[tuple[float, int]] = []  # heap of the right ends of the rows in use
    count = 0
    # Sweep from left to right: a row is free again as soon as its last bar has ended.
    for index in sorted(range(len(bars)), key=lambda number: bars[number]):
        left, right = bars[index]
        while ends and ends[0][0] + gap <= left:
            heapq.heappush(free, heapq.heappop(ends)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row = count
            count += 1
        rows[index] = row
        heapq.heappush(ends, (max(left, right), row))
    return rows
