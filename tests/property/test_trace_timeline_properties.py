"""The drawing of a timeline for any steps: order, one segment for each instant, no overlaps, nothing lost in a merge."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ariane.console.areas.traces.host_clocks import HostClock
from ariane.console.areas.traces.lane_rows import assign_rows
from ariane.console.areas.traces.step_merge import merge_steps
from ariane.console.areas.traces.time_axis import TimeAxis, build_axis, tick_step_ms
from ariane.console.areas.traces.timeline_drawing import BAR_MIN, draw
from ariane.reports.trace_steps import StepKind, StepSource, TraceStep, in_order

T0_MS = 1_700_000_000_000
EPSILON = 1e-6

# Distances of ms, seconds and hours: what retries look like.
distances = st.one_of(st.integers(0, 20), st.integers(0, 60_000), st.integers(0, 7_200_000))
instants = st.lists(distances, min_size=1, max_size=60).map(
    lambda gaps: [T0_MS + ms for ms in itertools.accumulate(gaps)]
)


@st.composite
def trace_steps(draw_value: st.DrawFn) -> TraceStep:
    kind = draw_value(st.sampled_from(StepKind))
    start_ms = T0_MS + draw_value(distances)
    cost_ms = draw_value(distances)
    is_record = kind in (StepKind.STORE, StepKind.AVAILABLE, StepKind.DEAD_LETTER)
    is_call = kind in (StepKind.SEND, StepKind.DELIVERY)
    return TraceStep(
        kind=kind,
        start_ms=start_ms,
        end_ms=None if kind is StepKind.DELIVERY and draw_value(st.booleans()) else start_ms + cost_ms * is_call,
        error_ms=0 if is_record else draw_value(st.one_of(st.none(), st.integers(0, 5_000))),
        client_ms=None if is_record else start_ms,
        result="" if is_record else draw_value(st.sampled_from(["success", "failed", "unknown", "exception"])),
        group=draw_value(st.sampled_from([None, "billing", "mail"])),
        host=draw_value(st.sampled_from([None, "10.0.0.1:1", "10.0.0.2:1"])),
        request_id=str(draw_value(st.integers(0, 50))) if kind is StepKind.DELIVERY else "",
        sources=frozenset({StepSource.TRACE_TOPIC}),
    )


some_steps = st.lists(trace_steps(), max_size=40)


def segments_with(axis: TimeAxis, ms: int) -> int:
    """Return the number of linear segments that contain an instant."""
    return sum(segment.start_ms <= ms <= segment.end_ms for segment in axis.linear)


@given(instants)
def test_every_instant_is_in_exactly_one_linear_segment(points: list[int]) -> None:
    axis = build_axis(points)
    assert all(segments_with(axis, ms) == 1 for ms in points)
    # A wait is compressed only if it contains no step.
    assert all(not (part.start_ms < ms < part.end_ms) for part in axis.breaks for ms in points)


@given(instants)
def test_the_axis_has_no_gaps_and_fills_the_width(points: list[int]) -> None:
    segments = build_axis(points).segments
    assert (segments[0].start_ms, segments[-1].end_ms) == (min(points), max(points))
    assert [part.is_break for part in segments] == [bool(number % 2) for number in range(len(segments))]
    for earlier, later in itertools.pairwise(segments):
        assert earlier.end_ms == later.start_ms
        assert abs(earlier.left + earlier.width - later.left) < EPSILON
    assert all(part.width > 0 for part in segments)
    assert abs(segments[-1].left + segments[-1].width - 100) < EPSILON


@given(instants, st.lists(st.integers(T0_MS - 10_000, T0_MS + 9_000_000), max_size=20))
def test_positions_are_in_the_order_of_time(points: list[int], others: list[int]) -> None:
    axis = build_axis(points)
    positions = [axis.position(ms) for ms in sorted(points + others)]
    assert all(earlier <= later + EPSILON for earlier, later in itertools.pairwise(positions))
    assert all(-EPSILON <= position <= 100 + EPSILON for position in positions)
    # Different instants of one segment are different positions.
    exact = [axis.position(ms) for ms in sorted(set(points))]
    assert all(earlier < later for earlier, later in itertools.pairwise(exact))


@given(st.integers(0, 10**9), st.integers(1, 10))
def test_ticks_are_round_and_few(duration_ms: int, most: int) -> None:
    step_ms = tick_step_ms(duration_ms, most)
    assert duration_ms / step_ms <= most
    assert str(step_ms).rstrip("0") in ("1", "2", "5")


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0.01, 30)).map(lambda bar: (bar[0], bar[0] + bar[1])), max_size=40)
)
def test_bars_of_a_row_do_not_overlap_and_rows_are_few(bars: list[tuple[float, float]]) -> None:
    rows = assign_rows(bars)
    by_row: dict[int, list[tuple[float, float]]] = {}
    for bar, row in zip(bars, rows, strict=True):
        by_row.setdefault(row, []).append(bar)
    for in_row in by_row.values():
        for (_, right), (left, _) in itertools.pairwise(sorted(in_row)):
            assert right <= left
    assert sorted(by_row) == list(range(len(by_row)))
    # No more rows than bars at the busiest position.
    busiest = max((sum(left <= at < right for left, right in bars) for at, _ in bars), default=0)
    assert len(by_row) <= max(busiest, 1)


@given(some_steps)
def test_a_drawing_has_one_bar_for_every_step(steps: list[TraceStep]) -> None:
    drawing = draw(in_order(steps))
    if drawing is None:
        assert steps == []
        return
    bars = [bar for lane in drawing.lanes for bar in lane.bars]
    assert sorted(bar.number for bar in bars) == list(range(1, len(steps) + 1))
    for lane in drawing.lanes:
        assert {bar.row for bar in lane.bars} == set(range(lane.rows))
        for bar in lane.bars:
            assert bar.left >= 0
            assert bar.width >= BAR_MIN - EPSILON
            assert bar.left + bar.width <= 100 + EPSILON
            assert bar.error_left <= bar.left + bar.width
        for row in range(lane.rows):
            in_row = sorted((bar.left, bar.width) for bar in lane.bars if bar.row == row)
            assert all(left + width <= later + EPSILON for (left, width), (later, _) in itertools.pairwise(in_row))


@given(some_steps)
def test_bars_of_a_lane_begin_in_the_order_of_time(steps: list[TraceStep]) -> None:
    ordered = in_order(steps)
    drawing = draw(ordered)
    for lane in drawing.lanes if drawing else ():
        starts = [bar.left for bar in sorted(lane.bars, key=lambda bar: bar.number)]
        # A bar at the right end is moved left by at most its smallest width.
        assert all(earlier <= later + BAR_MIN for earlier, later in itertools.pairwise(starts))


@given(some_steps, some_steps)
def test_a_merge_loses_no_step_and_keeps_the_order(live: list[TraceStep], tables: list[TraceStep]) -> None:
    stored = [msgspec.structs.replace(step, sources=frozenset({StepSource.TABLES})) for step in tables]
    merged = merge_steps(live, stored)
    assert merged == in_order(merged)
    both = sum(len(step.sources) == 2 for step in merged)
    assert len(merged) == len(live) + len(tables) - both
    for source, originals in ((StepSource.TRACE_TOPIC, live), (StepSource.TABLES, tables)):
        assert sum(source in step.sources for step in merged) == len(originals)


@given(some_steps)
def test_a_merge_with_itself_finds_every_twin(steps: list[TraceStep]) -> None:
    stored = [msgspec.structs.replace(step, sources=frozenset({StepSource.TABLES})) for step in steps]
    merged = merge_steps(steps, stored)
    assert len(merged) == len(steps)
    assert all(len(step.sources) == 2 for step in merged)


@given(st.integers(-10_000, 10_000), st.integers(0, 3_000), st.integers(0, 3_000))
def test_the_estimate_of_a_clock_is_within_its_error(true_ms: int, below_ms: int, above_ms: int) -> None:
    clock = HostClock(true_ms - below_ms, true_ms + above_ms)
    assert clock.offset_ms is not None
    assert clock.error_ms is not None
    assert abs(true_ms - clock.offset_ms) <= clock.error_ms
