"""Declarations of metrics: name, type, meaning and labels. Pure values, from which docs/metrics.md is checked.

A source yields, for each declared metric, samples: label values in the order of `labels`, and the value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]


class Metric(NamedTuple):
    """One metric."""

    name: str
    """Name of the family; a counter's samples have the suffix `_total`, which the name includes."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    """Unit as docs/metrics.md prints it; empty for counts without one."""


class HistogramValue(NamedTuple):
    """A histogram: cumulative counts by upper bound (the last bound is +Inf), and the sum of all values."""

    buckets: tuple[tuple[float, int], ...]
    sum: float


Value = float | HistogramValue
MetricSample = tuple[tuple[str, ...], Value]
"""Label values, in the order of the metric's labels, and the value."""

MetricTable = Mapping[Metric, Callable[[Any], Iterable[MetricSample]]]
"""Metrics, and how each one is read from a snapshot."""

Family = tuple[Metric, Iterable[MetricSample]]


def read(table: MetricTable, snapshot: object) -> list[Family]:
    """Return the families of a snapshot. Their samples are computed when they are iterated."""
    return [(metric, samples(snapshot)) for metric, samples in table.items()]


def cumulative(
    bounds: Sequence[float], counts: Sequence[int], total: float, shown: Collection[float]
) -> HistogramValue:
    """Return a histogram of counts per bucket.

    Args:
        bounds: Upper bounds of all buckets but the last one, which has none.
        counts: Number of values in each bucket.
        total: Sum of all values.
        shown: Bounds of the result, some of `bounds`: each bucket of each series takes a line.
    """
    # Bounds that are not shown need no line, because the next bucket includes their values.
    buckets, passed = [], 0
    for bound, count in zip((*bounds, inf), counts, strict=True):
        passed += count
        if bound in shown or bound == inf:
            buckets.append((bound, passed))
    return HistogramValue(tuple(buckets), total)
