"""When a consumer group will have consumed its lag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from statistics import median

import pytest
from simulated_loads import Moment, loads, moments

from ariane.cluster.groups.drain_forecast import DrainRange, DrainState, forecast_drain
from ariane.console.live.live_history import SLOT_MS, HistoryPoint

SEEDS = range(6)
EVERY = 4  # moments from one forecast to the next
STEADY_SAMPLES = 13  # three minutes: after these, the lag has fallen steadily
# Per kind of load: the largest median of latest / earliest. A burst or a ramp leaves more open than steady traffic.
RATIO_MAX = {
    "steady": 1.6,
    "jump of the lag": 1.6,
    "step of the producers": 1.6,
    "step of the consumers": 1.6,
    "ramp": 2.5,
    "bursts": 6.0,
    "restart of the consumers": 1.6,
    "restart of the broker": 1.6,
    "missing samples": 1.6,
    "slow polls": 1.6,
}
COVERED = 0.9  # share of the ranges that contain the true time
STATED = 0.95  # share of the forecasts with a range while the lag falls steadily


def points(*lags: float | None) -> list[HistoryPoint]:
    return [HistoryPoint(number * SLOT_MS, lag) for number, lag in enumerate(lags)]


def falling(tps: float, samples: int = 40, last: float = 600.0) -> list[HistoryPoint]:
    """Return a lag that shrinks at a constant rate to `last`."""
    return points(*(last + tps * 15 * (samples - 1 - number) for number in range(samples)))


@pytest.mark.parametrize(
    ("lag", "delivered_tps", "lags", "state"),
    [
        (0, 5.0, [], DrainState.DRAINED),
        (600, 20.0, falling(10.0), DrainState.DRAINING),
        (600, None, falling(10.0), DrainState.DRAINING),
        (600, 20.0, falling(-1.0), DrainState.NEVER),
        # Nothing is delivered and nothing shrinks: it never drains, whether or not messages arrive.
        (600, 0.0, falling(0.0), DrainState.NEVER),
        # The lag rises and falls by the same amount.
        (600, 20.0, points(*[600.0, 900.0] * 20), DrainState.UNCERTAIN),
        (600, 20.0, falling(10.0, samples=4), DrainState.UNKNOWN),
        (600, 20.0, points(None, None), DrainState.UNKNOWN),
        (600, 20.0, [], DrainState.UNKNOWN),
        (None, 20.0, falling(10.0), DrainState.UNKNOWN),
        # A committed offset beyond the end of the queue: the broker lost messages.
        (-5, 20.0, falling(10.0), DrainState.UNKNOWN),
    ],
)
def test_states(lag: int | None, delivered_tps: float | None, lags: Sequence[HistoryPoint], state: DrainState) -> None:
    assert forecast_drain(lag, delivered_tps, lags).state == state


def test_a_busy_group_always_has_messages_in_transit() -> None:
    expected = DrainRange(state=DrainState.KEEPING_UP, latest_s=6)
    assert forecast_drain(600, 100.0, falling(-1.0)) == expected


@pytest.mark.parametrize("falling_for_s", [120, 240, 900])
def test_a_step_within_the_window_does_not_make_the_forecast_uncertain(falling_for_s: int) -> None:
    # Nothing arrives, 26.66 messages per second are consumed, and within the last half hour the lag jumped.
    samples = falling_for_s // 15
    lags = points(*[600.0] * 60, *(4_932.6 + 26.66 * 15 * number for number in reversed(range(samples + 1))))
    forecast = forecast_drain(4_932, 26.66, lags)
    assert forecast.state == DrainState.DRAINING
    assert forecast.earliest_s is not None and forecast.latest_s is not None
    assert 150 < forecast.earliest_s < 185 < forecast.latest_s < 230


def test_a_group_that_stops_is_reported_although_its_lag_fell_before() -> None:
    fell = [10_000.0 - 150 * number for number in range(40)]
    assert forecast_drain(4_150, 0.0, points(*fell, *[fell[-1]] * 8)).state == DrainState.NEVER


def test_a_ramp_of_the_traffic_widens_the_range() -> None:
    """The rate grows by 1/s a minute: at the current rate the lag takes 2,000 s, and 767 s if the growth lasts."""
    lags, lag = [40_000.0], 40_000.0
    for number in range(80):
        lag -= 15 * number / 4
        lags.append(lag)
    forecast = forecast_drain(round(lag), None, points(*lags))
    assert forecast.earliest_s is not None and forecast.latest_s is not None
    seconds = 0
    while lag > 0:
        lag -= 15 * (80 + seconds / 15) / 4
        seconds += 15
    assert forecast.earliest_s < seconds < lags[-1] / 20 < forecast.latest_s


@dataclass
class Outcome:
    """Forecasts of one kind of load."""

    covered: list[bool] = field(default_factory=list)  # per range: whether it contains the true time
    ratios: list[float] = field(default_factory=list)  # latest / earliest
    stated: list[bool] = field(
        default_factory=list
    )  # per forecast while the lag falls steadily: whether it has a range


@cache
def outcomes() -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    for seed in SEEDS:
        for kind, load in loads(Random(seed)).items():
            outcome = found.setdefault(kind, Outcome())
            for moment in list(moments(load, Random(f"{kind} {seed}")))[::EVERY]:
                _judge(outcome, moment)
    return found


def _judge(outcome: Outcome, moment: Moment) -> None:
    lag = moment.lags[-1].value
    assert lag is not None
    forecast = forecast_drain(round(lag), None, moment.lags)
    if _falls_steadily(moment.lags):
        outcome.stated.append(forecast.state == DrainState.DRAINING)
    if forecast.state == DrainState.DRAINING:
        earliest_s, latest_s = forecast.earliest_s, forecast.latest_s
        assert earliest_s is not None and latest_s is not None
        outcome.covered.append(earliest_s <= moment.drain_s <= latest_s)
        outcome.ratios.append(latest_s / earliest_s)


def _falls_steadily(lags: Sequence[HistoryPoint]) -> bool:
    """Return whether the lag fell in each of the last intervals; polls that are rarer repeat a value."""
    recent = [point.value for point in lags[-STEADY_SAMPLES:] if point.value is not None]
    changed = [value for number, value in enumerate(recent) if not number or value != recent[number - 1]]
    return len(changed) > 2 and changed == sorted(changed, reverse=True) and len(lags) > 4 * STEADY_SAMPLES / 3


@pytest.mark.parametrize("kind", RATIO_MAX)
def test_ranges_contain_the_true_time_and_are_useful(kind: str) -> None:
    outcome = outcomes()[kind]
    assert len(outcome.covered) >= 30
    assert sum(outcome.covered) / len(outcome.covered) >= COVERED
    assert median(outcome.ratios) <= RATIO_MAX[kind]


@pytest.mark.parametrize("kind", sorted(RATIO_MAX.keys() - {"bursts"}))
def test_a_lag_that_falls_steadily_has_a_range(kind: str) -> None:
    stated = outcomes()[kind].stated
    assert len(stated) >= 20
    assert sum(stated) >= STATED * len(stated)


def test_each_kind_of_load_is_judged() -> None:
    assert set(outcomes()) == set(RATIO_MAX)
