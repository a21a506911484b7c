"""Pace of the pipeline: the time between rounds doubles, sources notice each change once, micro-batches are sized by their time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ariane.pipeline.round_pacing import (
    MIN_LIMITS,
    BatchSizer,
    RoundGate,
    RoundPacer,
    await_round,
    max_wait_s,
    round_file,
)


class Clock:
    """Seconds that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def changes(directory: Path, round_s: float, seconds: range, idle: range = range(0)) -> list[int]:
    """Return the times of changes with an interval of 10 s, if each change is followed by a round that computes tables, except in
    `idle`."""
    clock = Clock()
    pacer = RoundPacer(round_file(directory), 10, clock)
    gate = RoundGate(round_file(directory))
    result = []
    for second in seconds:
        clock.now_s = second
        pacer.advance()
        if gate.has_advanced():
            result.append(second)
            if second not in idle:
                pacer.record_round(round_s)
    return result


def test_the_time_between_rounds_doubles_up_to_forty_intervals(tmp_path: Path) -> None:
    assert changes(tmp_path, 50, range(1_500)) == [10, 20, 40, 80, 160, 320, 640, 1040, 1440]


def test_rounds_take_a_tenth_of_the_time(tmp_path: Path) -> None:
    assert changes(tmp_path / "dear", 3, range(150)) == [10, 20, 40, 70, 100, 130]
    assert changes(tmp_path / "cheap", 0.2, range(50)) == [10, 20, 30, 40]


def test_the_time_between_rounds_is_one_interval_while_nothing_arrives(tmp_path: Path) -> None:
    assert changes(tmp_path, 50, range(200), idle=range(80, 170)) == [10, 20, 40, 80, 160, 170, 180]


def test_a_restarted_pipeline_is_noticed_although_it_counts_again(tmp_path: Path) -> None:
    clock = Clock()
    for _ in range(2):
        gate = RoundGate(round_file(tmp_path))
        gate.has_advanced()
        clock.now_s += 1
        pacer = RoundPacer(round_file(tmp_path), 5, clock)
        for _ in range(3):
            clock.now_s += 40
            pacer.advance()
            assert gate.has_advanced()
            assert not gate.has_advanced()


@pytest.mark.parametrize(("interval_s", "expected_s"), [(0.1, 4), (2, 80), (10, 400), (60, 400), (900, 900)])
def test_the_longest_wait(interval_s: float, expected_s: float) -> None:
    assert max_wait_s(interval_s) == pytest.approx(expected_s)


class FakeStop(threading.Event):
    """An event whose waits advance a clock, and that is set at a time."""

    def __init__(self, clock: Clock, at_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._at_s = at_s

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.now_s = min(self._clock.now_s + (timeout or 0), self._at_s)
        return self._clock.now_s >= self._at_s


@pytest.mark.parametrize(
    ("rest_s", "appended_s", "expected_s"),
    [(0, 0.5, 0.6), (0, 99, 2), (1, 0.5, 1), (3, 99, 3)],
    ids=["after rows were appended", "after an interval", "after a rest", "after a long rest"],
)
def test_a_round_begins(rest_s: float, appended_s: float, expected_s: float) -> None:
    clock = Clock()
    assert await_round(FakeStop(clock, 99), rest_s, 2, lambda: clock.now_s >= appended_s, clock)
    assert clock.now_s == pytest.approx(expected_s)


def test_no_round_begins_after_a_stop() -> None:
    clock = Clock()
    assert not await_round(FakeStop(clock, 1), 0, 2, lambda: False, clock)


def shares(seconds: list[float], *, is_limited: bool = True) -> list[float]:
    """Return the shares of micro-batches that took so many seconds, and that of the next one."""
    clock = Clock()
    sizer = BatchSizer(clock)
    result = [sizer.share()]
    for duration_s in seconds:
        sizer.record_plan(is_limited=is_limited)
        clock.now_s += duration_s
        result.append(sizer.share())
    return result


def test_micro_batches_of_a_backlog_take_twenty_seconds() -> None:
    assert shares([10, 20, 25]) == pytest.approx([MIN_LIMITS, MIN_LIMITS * 2, MIN_LIMITS * 2, MIN_LIMITS * 1.6])


def test_they_become_at_most_four_times_larger_and_never_exceed_the_limits() -> None:
    assert shares([0.1, 0.1, 0.1]) == pytest.approx([MIN_LIMITS, MIN_LIMITS * 4, 1, 1])


def test_a_slow_source_reads_no_less_than_at_first() -> None:
    assert shares([600, 600]) == [MIN_LIMITS] * 3


def test_the_time_without_a_backlog_is_no_measure() -> None:
    assert shares([600, 0.1], is_limited=False) == [MIN_LIMITS] * 3
