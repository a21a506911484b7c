"""Time axis with compressed waits: linear segments around the steps, breaks of equal width between them.

    instants      | |  |                                |    ||                            |
    axis          ├──────┤≈≈ 10.0 s ≈≈├──────────┤≈≈ 30.0 s ≈≈├──┤

A log axis would show retries as slivers, and a linear one everything but the waits. Positions are percent of the drawing's width.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# A gap becomes a break if it is this many times longer than all shorter gaps together …
DOMINANT = 4
LINEAR_MS = 100  # … which count at least as this many ms: short waits remain visible as they are
# … or this many times longer than the shortest, so that a series of growing gaps is compressed, too.
RANGE = 200
SHORTEST_MS = 5

# Widths in units of about 56 pixels.
BREAK_UNITS = 1.2
POINT_UNITS = 0.7  # smallest width of a linear segment
LINEAR_UNITS = 4.0  # shared by the linear segments in proportion to their durations


class AxisSegment(NamedTuple):
    """A part of the axis.

    Attributes:
        start_ms: First instant.
        end_ms: Last instant.
        left: Position of its begin, in percent.
        width: Width, in percent.
        is_break: Whether it is a compressed wait, in which no step begins or ends.
    """

    start_ms: int
    end_ms: int
    left: float
    width: float
    is_break: bool

    @property
    def duration_ms(self) -> int:
        """Length in time."""
        return self.end_ms - self.start_ms


class TimeAxis(NamedTuple):
    """Segments in order, without gaps: linear ones and breaks in turn, from 0 to 100 percent."""

    segments: tuple[AxisSegment, ...]
    units: float  # width in units: how wide the drawing must be to remain readable

    @property
    def breaks(self) -> list[AxisSegment]:
        """The compressed waits."""
        return [segment for segment in self.segments if segment.is_break]

    @property
    def linear(self) -> list[AxisSegment]:
        """The segments that contain steps."""
        return [segment for segment in self.segments if not segment.is_break]

    def position(self, ms: int) -> float:
        """Return the position of an instant in percent; instants outside of the axis are moved to its ends."""
        ends = [segment.end_ms for segment in self.segments]
        index = min(bisect.bisect_left(ends, ms), len(ends) - 1)
        segment = self.segments[index]
        # The end of a break is the begin of the next linear segment, which may be a single instant.
        if segment.is_break and ms >= segment.end_ms:
            segment = self.segments[index + 1]
        if not segment.duration_ms:
            # In its middle, where there is room for a mark on both sides.
            share = 0.5 if ms == segment.start_ms else float(ms > segment.start_ms)
        else:
            share = (ms - segment.start_ms) / segment.duration_ms
        return segment.left + segment.width * min(1.0, max(0.0, share))


def build_axis(instants: Iterable[int]) -> TimeAxis:
    """Return the axis of the instants at which steps begin or end.

    Raises:
        ValueError: no instant was passed.
    """
    points = sorted(set(instants))
    if not points:
        raise ValueError("expected at least one instant")
    shortest_break_ms = _shortest_break_ms([later - earlier for earlier, later in itertools.pairwise(points)])
    clusters = [[points[0]]]
    for earlier, later in itertools.pairwise(points):
        if shortest_break_ms is not None and later - earlier >= shortest_break_ms:
            clusters.append([later])
        else:
            clusters[-1].append(later)
    return _place([(cluster[0], cluster[-1]) for cluster in clusters])


def _shortest_break_ms(gaps: Sequence[int]) -> int | None:
    """Return from which length on gaps become breaks; None if there is none."""
    shorter_ms = 0
    ordered = sorted(gaps)
    for gap_ms in ordered:
        # The shortest gap is compared with itself: gaps of about the same length remain linear.
        linear_ms = max(shorter_ms, LINEAR_MS, ordered[0])
        if gap_ms > DOMINANT * linear_ms or gap_ms > RANGE * max(ordered[0], SHORTEST_MS):
            return gap_ms
        shorter_ms += gap_ms
    return None


def _place(clusters: list[tuple[int, int]]) -> TimeAxis:
    """Return the axis of clusters of instants, with a break between any two."""
    total_ms = sum(end - start for start, end in clusters)
    spans: list[tuple[int, int, float, bool]] = []
    for number, (start, end) in enumerate(clusters):
        if number:
            spans.append((clusters[number - 1][1], start, BREAK_UNITS, True))
        share = (end - start) / total_ms if total_ms else 1 / len(clusters)
        spans.append((start, end, POINT_UNITS + LINEAR_UNITS * share, False))
    units = sum(width for *_, width, _ in spans)
    segments = []
    left = 0.0
    for start, end, width, is_break in spans:
        segments.append(AxisSegment(start, end, left, width / units * 100, is_break))
        left += width / units * 100
    return TimeAxis(tuple(segments), units)


def tick_step_ms(duration_ms: int, most: int = 4) -> int:
    """Return a round distance of ticks (1, 2 or 5 times a power of ten) with at most `most` of them in a duration."""
    step = 1
    while duration_ms / step > most:
        leading = int(str(step)[0])
        step = step * 5 // 2 if leading == 2 else step * 2
    return step
