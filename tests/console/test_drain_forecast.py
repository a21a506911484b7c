"""When a consumer group will have consumed its lag."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ariane.console.areas.drain_forecast import DrainForecast, DrainState, forecast_drain, shrink_rates
from ariane.console.live.live_history import HistoryPoint


@pytest.mark.parametrize(
    ("lag", "delivered_tps", "shrinking", "expected"),
    [
        (0, 5.0, [], DrainForecast(state=DrainState.DRAINED)),
        (600, 20.0, [10.0, 5.0], DrainForecast(state=DrainState.DRAINING, earliest_s=60, latest_s=120)),
        (600, 20.0, [10.0, -1.0], DrainForecast(state=DrainState.UNCERTAIN, earliest_s=60)),
        (600, 20.0, [0.0, -1.0], DrainForecast(state=DrainState.NEVER)),
        # Nothing is delivered and nothing shrinks: it never drains, whether or not messages arrive.
        (600, 0.0, [0.0], DrainForecast(state=DrainState.NEVER)),
        # A busy group always has some messages in transit.
        (600, 100.0, [-1.0], DrainForecast(state=DrainState.KEEPING_UP, latest_s=6)),
        (600, None, [10.0], DrainForecast(state=DrainState.DRAINING, earliest_s=60, latest_s=60)),
        (600, 20.0, [], DrainForecast(state=DrainState.UNKNOWN)),
        (None, 20.0, [10.0], DrainForecast(state=DrainState.UNKNOWN)),
        # A committed offset beyond the end of the queue: the broker lost messages.
        (-5, 20.0, [10.0], DrainForecast(state=DrainState.UNKNOWN)),
    ],
)
def test_forecasts(
    lag: int | None, delivered_tps: float | None, shrinking: list[float], expected: DrainForecast
) -> None:
    assert forecast_drain(lag, delivered_tps, shrinking) == expected


def points(*values: tuple[int, float | None]) -> Sequence[HistoryPoint]:
    return [HistoryPoint(second * 1000, value) for second, value in values]


def test_the_rate_is_measured_over_each_window_that_has_points() -> None:
    lags = points((0, 1000.0), (240, 400.0), (285, 400.0), (300, 100.0))
    assert shrink_rates(lags, [60_000, 300_000, 3_600_000]) == [5.0, 3.0]


def test_unknown_lags_are_skipped_and_a_window_without_points_on_both_ends_has_no_rate() -> None:
    assert shrink_rates(points((0, 300.0), (30, None), (60, 0.0), (75, None)), [60_000]) == [5.0]
    assert shrink_rates(points((0, None), (50, 300.0), (60, 0.0)), [60_000]) == []
    assert shrink_rates(points((60, 300.0)), [60_000]) == []
    assert shrink_rates([], [60_000]) == []
