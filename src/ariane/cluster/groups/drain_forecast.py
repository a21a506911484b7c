"""When a consumer group will have consumed its lag. Pure: lags over time in, a forecast out.

    lags ─→ rates between samples ─→ noise ─→ stable segment ─→ range of rates
         ─→ drained | keeping up | draining | uncertain | never | unknown

The stable segment ends with the newest sample. It starts with a minute and doubles while the time before has the same rate within
the noise: after a step of the traffic it is short, in steady traffic it grows to half an hour. The noise is measured on changes
between neighbouring samples, without the largest: a step is not noise, repeated bursts are. The range consists of the rate of the
segment with its error, and of the rate at which a steady change of the traffic (a ramp) would continue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import pairwise
from math import sqrt
from statistics import median
from typing import NamedTuple

from ariane.cluster.lag import KEEPING_UP_S

WINDOW_S = 1_800  # older samples are ignored
POLL_S_MAX = 180  # a poll of all groups of a large cluster takes no longer
SHORTEST = 4  # intervals of the shortest segment: a minute
NOISE_SCALES = (1, 2, 4)  # intervals: bursts of half a minute appear in longer ones only
STEP_CHANGES = 2  # largest changes of a rate that are not noise: a jump of the lag causes two
AGREEMENT = 3.0  # rates agree within this many standard errors
CONFIDENCE = 2.0  # half width of the range in standard errors
SAME_RATE = 0.05  # rates that differ by less always agree
RAMP_LASTS = 2  # a steady change of the rate continues for this multiple of the time for which it was observed
MARGIN = 0.15  # least half width of the range, as a share of the rate: traffic is never constant


class DrainState(StrEnum):
    """What the rates say about the lag."""

    DRAINED = "drained"  # nothing is pending
    KEEPING_UP = "keepingUp"  # only messages in transit are
    DRAINING = "draining"  # consumed within the range
    UNCERTAIN = "uncertain"  # the rate is too uneven to say whether the lag shrinks
    NEVER = "never"  # it does not shrink
    UNKNOWN = "unknown"  # a value is missing


class DrainRange(NamedTuple):
    """When the lag will be consumed.

    Attributes:
        earliest_s: Seconds at the best rate; None if it never drains, or unknown.
        latest_s: Seconds at the worst rate; None if it would not drain at that, or unknown.
    """

    state: DrainState
    earliest_s: float | None = None
    latest_s: float | None = None


def forecast_drain(
    lag: int | None, delivered_tps: float | None, lags: Iterable[tuple[int, float | None]]
) -> DrainRange:
    """Return when a lag will be consumed.

    Args:
        lag: Messages not consumed yet; None if unknown.
        delivered_tps: Messages delivered per second now; None if unknown.
        lags: Lag over time, oldest first: milliseconds, and a lag, which is ignored if it is unknown.
    """
    if lag == 0:
        return DrainRange(state=DrainState.DRAINED)
    if lag is None or lag < 0:
        return DrainRange(state=DrainState.UNKNOWN)
    if delivered_tps and lag <= delivered_tps * KEEPING_UP_S:
        # In balance: deliveries follow what is stored, and a change of the lag is noise.
        return DrainRange(state=DrainState.KEEPING_UP, latest_s=lag / delivered_tps)
    samples = _samples(lags)
    if len(samples) <= SHORTEST:
        return DrainRange(state=DrainState.UNKNOWN)
    worst, best = _range(samples, lag)
    if best <= 0:
        return DrainRange(state=DrainState.NEVER)
    if worst <= 0:
        return DrainRange(state=DrainState.UNCERTAIN, earliest_s=lag / best)
    return DrainRange(state=DrainState.DRAINING, earliest_s=lag / best, latest_s=lag / worst)


class _Sample(NamedTuple):
    """A lag at a time."""

    seconds: float
    lag: float


class _Interval(NamedTuple):
    """Time between samples."""

    seconds: float
    rate: float  # messages per second by which the lag shrank; negative if it grew


def _samples(lags: Iterable[tuple[int, float | None]]) -> list[_Sample]:
    samples = [_Sample(ms / 1000, lag) for ms, lag in lags if lag is not None]
    return _without_repeated([sample for sample in samples if sample.seconds >= samples[-1].seconds - WINDOW_S])


def _without_repeated(samples: list[_Sample]) -> list[_Sample]:
    """Return the samples without those that repeat an older poll: with many groups, not every sample has a new value.

    A value that stays for twice the usual time between changes has not changed.
    """
    changes = [newer.seconds for older, newer in pairwise(samples) if older.lag != newer.lag]
    if len(changes) < 2:
        return samples
    usual_s = min(median(end - start for start, end in pairwise(changes)), POLL_S_MAX)
    distinct, value_s = samples[:1], samples[0].seconds
    for older, newer in pairwise(samples):
        if newer.lag != older.lag:
            value_s = newer.seconds
        elif newer.seconds - value_s < 2 * usual_s:
            continue
        distinct.append(newer)
    return distinct


def _intervals(samples: Sequence[_Sample], size: int = 1) -> list[_Interval]:
    """Return the rates between every `size`-th sample, the newest first; an incomplete oldest interval is omitted."""
    return [
        _Interval(newer.seconds - older.seconds, (older.lag - newer.lag) / (newer.seconds - older.seconds))
        for newer, older in pairwise(samples[::-size])
    ]


def _noise(samples: Sequence[_Sample], steps: int = STEP_CHANGES) -> float:
    """Return the variance of a rate over one second, without the largest `steps` changes; that over n seconds is 1/n of it."""
    largest = 0.0
    for scale in NOISE_SCALES:
        changes = sorted(
            (newer.rate - older.rate) ** 2 / (1 / newer.seconds + 1 / older.seconds)
            for newer, older in pairwise(_intervals(samples, scale))
        )
        # With few changes the largest would be most of them.
        if scale == 1 or len(changes) > 2 * STEP_CHANGES:
            changes = changes[: max(len(changes) - steps, (len(changes) + 1) // 2)]
            largest = max(largest, sum(changes) / len(changes))
    return largest


def _range(samples: Sequence[_Sample], lag: int) -> tuple[float, float]:
    """Return the lowest and the highest rate at which the lag is expected to shrink until it is consumed."""
    noise = _noise(samples)
    size = _stable_size(samples, noise)
    # Within the segment every change is noise, the largest ones as well.
    noise = max(noise, _noise(samples[-size - 1 :], steps=0))
    segment = _intervals(samples, size)[0]
    rate = segment.rate
    # The mean of the segment has an error, and so has the future: the shorter it is, the more a burst in it matters.
    future = noise * rate / lag if rate > 0 else 0.0
    half_width = CONFIDENCE * sqrt(noise / segment.seconds + future) + MARGIN * abs(rate)
    worst, best = rate - half_width, rate + half_width
    continued = _continued_ramp(samples, noise, lag)
    if continued is None:
        return worst, best
    return min(worst, continued * (1 - MARGIN)), max(best, continued * (1 + MARGIN))


def _stable_size(samples: Sequence[_Sample], noise: float) -> int:
    """Return the number of intervals of the longest segment that ends now, with one rate in its newer and older part."""
    size = SHORTEST
    while 2 * size < len(samples):
        newer, older = _intervals(samples, size)[:2]
        if not _agree(newer.rate, older.rate, noise * (1 / newer.seconds + 1 / older.seconds), newer.rate):
            break
        size *= 2
    return size


def _continued_ramp(samples: Sequence[_Sample], noise: float, lag: int) -> float | None:
    """Return the mean rate until the lag is consumed if a ramp of the rate continues; None without one."""
    ramp: list[_Interval] = []
    size = SHORTEST
    while 3 * size < len(samples):
        newest, middle, oldest = thirds = _intervals(samples, size)[:3]
        variance = noise * (1 / newest.seconds + 4 / middle.seconds + 1 / oldest.seconds)
        if not _agree(newest.rate - middle.rate, middle.rate - oldest.rate, variance, newest.rate):
            break
        ramp, size = thirds, size * 3 // 2
    if not ramp:
        return None
    newest, middle, oldest = ramp
    if _agree(newest.rate, oldest.rate, noise * (1 / newest.seconds + 1 / oldest.seconds), 0.0):
        return None
    acceleration = (newest.rate - oldest.rate) / (newest.seconds / 2 + middle.seconds + oldest.seconds / 2)
    current = newest.rate + acceleration * newest.seconds / 2
    lasts_s = RAMP_LASTS * (newest.seconds + middle.seconds + oldest.seconds)
    # Within the ramp: current · t + acceleration · t² / 2 = lag.
    discriminant = current * current + 2 * acceleration * lag
    mean = (current + sqrt(discriminant)) / 2 if discriminant >= 0 else 0.0
    if mean * lasts_s >= lag:
        return mean
    consumed = (current + acceleration * lasts_s / 2) * lasts_s
    final = current + acceleration * lasts_s
    return lag / (lasts_s + (lag - consumed) / final) if final > 0 else final


def _agree(first: float, second: float, variance: float, scale: float) -> bool:
    """Return whether two rates differ by no more than the noise, or by a small share of `scale`."""
    return abs(first - second) <= AGREEMENT * sqrt(variance) + SAME_RATE * abs(scale)
