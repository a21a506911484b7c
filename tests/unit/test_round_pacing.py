"""Pace of the pipeline's rounds: the time between two of them doubles, and sources notice each change once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ariane.pipeline.round_pacing import RoundGate, RoundPacer, max_wait_s, round_file


class Clock:
    """Seconds that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_time_between_rounds_doubles_up_to_forty_intervals(tmp_path: Path) -> None:
    clock = Clock()
    pacer = RoundPacer(round_file(tmp_path), 10, clock)
    gate = RoundGate(round_file(tmp_path))
    changes = []
    for second in range(1_500):
        clock.now_s = second
        pacer.advance()
        if gate.has_advanced():
            changes.append(second)
    assert changes == [10, 20, 40, 80, 160, 320, 640, 1040, 1440]


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
