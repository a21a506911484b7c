"""When a consumer group will have consumed its lag. Pure: lags over time in, a forecast out.

    lag, delivered per second, rates at which the lag shrinks  ─→  drained | keeping up | draining | uncertain | never | unknown

`shrink_rates` measures the rate at which the lag shrinks over several time windows. Each gives one estimate, and the earliest and
the latest of them are the range: it is wide if the traffic changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from ariane.console.live.live_history import HistoryPoint
from ariane.console.web.view_model import View

KEEPING_UP_S = 10.0  # a lag of at most this many seconds of deliveries consists of messages in transit
WINDOWS_MS = (60_000, 300_000, 1_800_000)  # a burst, the current situation, the trend
COVERED = 0.6  # share of a window that must have points on both ends for a rate


class DrainState(StrEnum):
    """What the rates say about the lag."""

    DRAINED = "drained"
    KEEPING_UP = "keepingUp"
    DRAINING = "draining"
    UNCERTAIN = "uncertain"
    NEVER = "never"
    UNKNOWN = "unknown"


class DrainForecast(View):
    """When the lag will be consumed."""

    state: DrainState
    """drained: nothing is pending; keepingUp: only messages in transit are; draining: consumed within the range; uncertain: it
    shrinks in some time windows and not in others; never: it does not shrink; unknown: a value is missing."""
    earliest_s: float | None = None
    """Seconds at the best rate; null if it never drains, or unknown."""
    latest_s: float | None = None
    """Seconds at the worst rate; null if it would not drain at that, or unknown."""


def forecast_drain(lag: int | None, delivered_tps: float | None, shrinking: Sequence[float]) -> DrainForecast:
    """Return when a lag will be consumed.

    Args:
        lag: Messages not consumed yet; None if unknown.
        delivered_tps: Messages delivered per second now; None if unknown.
        shrinking: Messages per second by which the lag shrinks, one value per time window; negative while it grows.
    """
    if lag == 0:
        return DrainForecast(state=DrainState.DRAINED)
    if lag is None or lag < 0:
        return DrainForecast(state=DrainState.UNKNOWN)
    if delivered_tps and lag <= delivered_tps * KEEPING_UP_S:
        # In balance: deliveries follow what is stored, and a change of the lag is noise.
        return DrainForecast(state=DrainState.KEEPING_UP, latest_s=lag / delivered_tps)
    if not shrinking:
        return DrainForecast(state=DrainState.UNKNOWN)
    best, worst = max(shrinking), min(shrinking)
    if best <= 0:
        return DrainForecast(state=DrainState.NEVER)
    if worst <= 0:
        return DrainForecast(state=DrainState.UNCERTAIN, earliest_s=lag / best)
    return DrainForecast(state=DrainState.DRAINING, earliest_s=lag / best, latest_s=lag / worst)


def shrink_rates(lags: Sequence[HistoryPoint], windows_ms: Iterable[int] = WINDOWS_MS) -> list[float]:
    """Return by how many messages per second a lag shrank, for each window of time that the points cover.

    Args:
        lags: Lag over time, oldest first; unknown values are ignored.
        windows_ms: Lengths of the windows, which end with the last point.
    """
    known = [point for point in lags if point.value is not None]
    if len(known) < 2:
        return []
    last = known[-1]
    rates = []
    for window_ms in windows_ms:
        first = next(point for point in known if point.ms >= last.ms - window_ms)
        covered_ms = last.ms - first.ms
        # The part that has no points may have been different: a rate of the window needs all of it.
        if covered_ms >= window_ms * COVERED:
            assert first.value is not None and last.value is not None
            rates.append((first.value - last.value) * 1000 / covered_ms)
    return rates
