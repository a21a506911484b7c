"""Simulated loads of a consumer group: random traffic second by second, and the lags that the console would observe.

Messages arrive and are consumed at random (Poisson) around given rates, clients commit every 5 s, and the console records a lag
every `SLOT_MS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from ariane.console.live.live_history import SLOT_MS, HistoryPoint

COMMIT_S = 5
CHANGES_END_S = 3_600  # later the traffic does not change

RateAt = Callable[[int], float]  # second -> messages per second


@dataclass(frozen=True, kw_only=True)
class Load:
    """Traffic of a group."""

    produced: RateAt  # messages that arrive
    consumed: RateAt  # messages that the clients can consume
    lag: float = 0.0  # at the start
    warm_up_s: int = 60  # time before the first forecast
    unknown: Callable[[int], bool] = lambda _: False  # second -> whether the console gets no response
    poll_s: int = SLOT_MS // 1000  # the console polls the lag this often and records the last one


class Moment(NamedTuple):
    """A time with a forecast."""

    lags: Sequence[HistoryPoint]  # up to this time
    drain_s: float  # time until the lag is consumed


def moments(load: Load, rng: Random) -> Iterator[Moment]:
    """Yield the times at which the group has a lag of more than ten seconds and the console has a value."""
    end, offset, committed = round(load.lag), 0, 0
    polled: int | None = None
    pending: list[int] = []
    points: list[HistoryPoint] = []
    second = 0
    while second < CHANGES_END_S or pending[-1] > load.consumed(second):
        end += _poisson(rng, load.produced(second))
        offset = min(end, offset + _poisson(rng, load.consumed(second)))
        committed = offset if second % COMMIT_S == 0 else committed
        pending.append(end - offset)
        if second % load.poll_s == 0:
            polled = None if load.unknown(second) else end - committed
        if second * 1000 % SLOT_MS == 0:
            points.append(HistoryPoint(second * 1000, polled))
        second += 1
    drained_at = [second] * (second + 1)
    for earlier in reversed(range(second)):
        drained_at[earlier] = earlier if pending[earlier] <= load.consumed(earlier) else drained_at[earlier + 1]
    for number, point in enumerate(points):
        second = point.ms // 1000
        if second >= load.warm_up_s and point.value and point.value > 10 * load.consumed(second):
            yield Moment(points[: number + 1], drained_at[second] - second)


def _poisson(rng: Random, mean: float) -> int:
    return max(0, round(rng.gauss(mean, mean**0.5)))


def loads(rng: Random) -> dict[str, Load]:
    """Return one load of each kind with random parameters."""
    rate, idle = rng.uniform(15, 400), rng.uniform(0, 0.7)
    changes_s, ends_s = rng.randrange(600, 1_200), rng.randrange(600, 2_400)
    before, after = rng.uniform(1.1, 3), rng.uniform(1.5, 4)
    period_s = rng.uniform(60, 240)
    burst_s = period_s * rng.uniform(0.1, 0.4)
    burst_rate = rate * rng.uniform(0.2, 0.7) * period_s / burst_s
    stopped_s, backlog = rng.uniform(20, 90), rate * rng.uniform(600, 1_500)
    start_share, end_share, jump = rng.uniform(1, 1.5), rng.uniform(0, 0.5), rng.uniform(600, 2_400)

    def produced(_: int) -> float:
        return rate * idle

    def consumed(_: int) -> float:
        return rate

    def is_stopped(second: int) -> bool:
        return changes_s <= second < changes_s + stopped_s

    def ramp(second: int) -> float:
        share = min(1.0, max(0.0, (second - changes_s) / ends_s))
        return rate * (start_share + (end_share - start_share) * share)

    return {
        "steady": Load(produced=produced, consumed=consumed, lag=backlog),
        "jump of the lag": Load(produced=lambda s: rate * jump if s == changes_s else 0, consumed=consumed),
        "step of the producers": Load(
            produced=lambda s: rate * (before if s < changes_s else idle), consumed=consumed, lag=backlog / 3
        ),
        "step of the consumers": Load(
            produced=lambda _: rate, consumed=lambda s: rate * (0.3 if s < changes_s else after)
        ),
        "ramp": Load(produced=ramp, consumed=consumed, lag=backlog),
        # Before the second burst, no forecast can distinguish bursts from a step.
        "bursts": Load(
            produced=lambda s: burst_rate if s % period_s < burst_s else 0,
            consumed=consumed, lag=backlog * 1.5, warm_up_s=600,
        ),
        "restart of the consumers": Load(
            produced=produced, consumed=lambda s: 0 if is_stopped(s) else rate, lag=backlog
        ),
        "restart of the broker": Load(
            produced=lambda s: 0 if is_stopped(s) else rate * idle, consumed=lambda s: 0 if is_stopped(s) else rate,
            lag=backlog, unknown=is_stopped,
        ),
        "missing samples": Load(
            produced=produced, consumed=consumed, lag=backlog, unknown=lambda s: hash((s, changes_s)) % 10 < 3
        ),
        "slow polls": Load(produced=produced, consumed=consumed, lag=backlog, poll_s=60),
    }  # fmt: skip
