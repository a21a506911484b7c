"""The drawing of a timeline: lanes with bars, and an axis with compressed waits. Numbers only; templates render it as SVG.

TraceStep… ─→ lanes: producer, broker, each group and client ─→ rows without overlaps ─→ bars with positions in percent
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ariane.console.areas.traces.lane_rows import assign_rows
from ariane.console.areas.traces.time_axis import TimeAxis, build_axis, tick_step_ms
from ariane.reports.trace_steps import UNKNOWN, StepKind, TraceStep

BAR_MIN = 0.6  # percent: narrowest bar, so that an instant is visible
ROW_GAP = 0.2  # percent between two bars of a row
TICK_UNITS_MIN = 2.5  # a linear segment narrower than this has no room for the labels of ticks
UNIT_PX = 56
LABEL_PX = 26  # room for the number of a step

PRODUCER, BROKER, CONSUMER = "producer", "broker", "consumer"
LANE_ORDER = {PRODUCER: 0, BROKER: 1, CONSUMER: 2}
LANES = {
    StepKind.SEND: PRODUCER, StepKind.DECISION: PRODUCER, StepKind.RECALL: PRODUCER,
    StepKind.STORE: BROKER, StepKind.AVAILABLE: BROKER, StepKind.DEAD_LETTER: BROKER,
    StepKind.DELIVERY: CONSUMER,
}  # fmt: skip


class Bar(NamedTuple):
    """A step in the drawing; positions are percent of its width.

    Attributes:
        number: Number of the step in the table, from 1.
        left: Begin.
        width: Width, at least BAR_MIN.
        row: Row of the lane, from 0.
        error_left: Begin of the range in which the step may have begun; equal to `left` if it is exact.
        error_width: Width of that range.
        is_open: Whether its end was not reported.
        is_instant: Whether it has no duration: drawn as a mark.
        is_uncertain: Whether the offset of the client's clock is unknown.
        tone: good, bad, unknown or plain.
        has_label: Whether its number fits between it and the next bar of the row.
    """

    number: int
    left: float
    width: float
    row: int
    error_left: float
    error_width: float
    is_open: bool
    is_instant: bool
    is_uncertain: bool
    tone: str
    has_label: bool


class Lane(NamedTuple):
    """Steps of one actor.

    Attributes:
        role: producer, broker or consumer.
        group: Producer or consumer group; None for a broker, or if unknown.
        host: Address; None if unknown.
        rows: Number of rows.
        bars: In order.
    """

    role: str
    group: str | None
    host: str | None
    rows: int
    bars: list[Bar]


class AxisTick(NamedTuple):
    """A mark on the axis: position in percent, and time since the first step."""

    position: float
    elapsed_ms: int


class Drawing(NamedTuple):
    """All numbers that a template needs."""

    lanes: list[Lane]
    axis: TimeAxis
    ticks: list[AxisTick]

    @property
    def width_px(self) -> int:
        """Smallest readable width."""
        return round(self.axis.units * UNIT_PX)


def draw(steps: Sequence[TraceStep]) -> Drawing | None:
    """Return the drawing of steps in the given order; None without steps."""
    if not steps:
        return None
    axis = build_axis([ms for step in steps for ms in (step.start_ms, step.last_ms)])
    by_lane: dict[tuple[str, str | None, str | None], list[int]] = {}
    for index, step in enumerate(steps):
        role = LANES[step.kind]
        # Records of a broker may belong to a group (retries, dead letters), but they have one lane.
        by_lane.setdefault((role, None if role == BROKER else step.group, step.host), []).append(index)
    keys = sorted(by_lane, key=lambda lane: (LANE_ORDER[lane[0]], by_lane[lane][0]))
    lanes = [_lane(*key, [(index + 1, steps[index]) for index in by_lane[key]], axis) for key in keys]
    return Drawing(lanes, axis, _ticks(axis))


def _lane(
    role: str, group: str | None, host: str | None, numbered: list[tuple[int, TraceStep]], axis: TimeAxis
) -> Lane:
    spans = []
    for _, step in numbered:
        left = axis.position(step.start_ms)
        right = max(axis.position(step.last_ms), left + BAR_MIN)
        # A bar at the right end keeps its width: it begins earlier instead.
        spans.append((left, right) if right <= 100 else (min(left, 100 - BAR_MIN), 100.0))
    rows = assign_rows(spans, ROW_GAP)
    label_width = LABEL_PX / (axis.units * UNIT_PX) * 100
    lefts = [
        sorted(left for (left, _), row in zip(spans, rows, strict=True) if row == number)
        for number in range(max(rows) + 1)
    ]
    bars = []
    for (number, step), (left, right), row in zip(numbered, spans, rows, strict=True):
        error_left = error_right = left
        if step.error_ms:
            error_left = axis.position(step.start_ms - step.error_ms)
            error_right = axis.position(step.start_ms + step.error_ms)
        bars.append(
            Bar(
                number=number,
                left=left,
                width=right - left,
                row=row,
                error_left=error_left,
                error_width=max(0.0, error_right - error_left),
                is_open=step.end_ms is None,
                is_instant=step.end_ms == step.start_ms and step.kind is not StepKind.DELIVERY,
                is_uncertain=step.error_ms is None,
                tone=_tone(step),
                has_label=not any(right - ROW_GAP <= later < right + label_width for later in lefts[row]),
            )
        )
    return Lane(role, group, host, max(rows) + 1, bars)


def _tone(step: TraceStep) -> str:
    if step.is_problem:
        return "bad"
    if step.result in (UNKNOWN, "UNKNOW"):
        return "unknown"
    return "good" if step.result else "plain"


def _ticks(axis: TimeAxis) -> list[AxisTick]:
    """Return the begin of each linear segment, and round distances from it in those that are wide."""
    first_ms = axis.segments[0].start_ms
    ticks = []
    for segment in axis.linear:
        ticks.append(AxisTick(axis.position(segment.start_ms), segment.start_ms - first_ms))
        if segment.width / 100 * axis.units >= TICK_UNITS_MIN and segment.duration_ms:
            step_ms = tick_step_ms(segment.duration_ms)
            instants = range(segment.start_ms + step_ms, segment.end_ms + 1, step_ms)
            ticks += [AxisTick(axis.position(ms), ms - first_ms) for ms in instants]
    return ticks
