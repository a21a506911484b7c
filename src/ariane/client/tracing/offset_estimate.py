"""Estimate of a clock offset from messages that were sent and stored. Pure: times are arguments. [Cristian's algorithm]

    client   s ─────────────────────────── a        sent, answered: the client's clock
                  ╲                     ╱
    broker          ──────── t ────────            stored: the broker's clock             t - a <= offset <= t - s

Whatever the delays in both directions are, the offset at the time of storing is between the bounds. All samples are intersected,
so the fastest exchanges determine the result. Between samples the bounds widen, because clocks drift.

It holds as long as the clocks drift by at most DRIFT against each other. A client's clock that is set (by more than STEP_MS) is
noticed by its monotonic clock, a broker's clock that is set by the next sample, which contradicts the others: both start afresh.
Two opposite settings of a clock between two readings are not noticed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ariane.client.instance.instants import Instant
from ariane.model.clock_offset import ClockOffset

# Of one clock against the other: the kernel slews a clock by at most 500 ppm, quartz differs by about 50.
DRIFT = 0.0005
STEP_MS = 10.0
CUT_MS = 1.0  # times are whole ms, rounded down


class OffsetSample(NamedTuple):
    """A message that a broker has stored.

    Attributes:
        started_ms: When the send began, by the client's wall clock.
        cost_ms: Duration until the response.
        noted: Instant at which this was noted, soon after the response.
        stored_ms: When the message was stored, by the broker's clock.
    """

    started_ms: int
    cost_ms: int
    noted: Instant
    stored_ms: int


class OffsetEstimate:
    """Bounds of one broker's clock - this client's clock."""

    def __init__(self, now: Instant) -> None:
        self._gap_ms = _gap_ms(now)  # between wall and monotonic clock: changes when the wall clock is set
        # Monotonic time after which neither clock was set, as far as is known.
        self._valid_since_s = -math.inf
        # Bounds at the monotonic time `_at_s`, of the last sample; unbounded without a sample.
        self._lower_ms, self._upper_ms, self._at_s = -math.inf, math.inf, 0.0

    @property
    def sampled_s(self) -> float | None:
        """Monotonic time of the last sample; None without one."""
        return None if math.isinf(self._upper_ms) else self._at_s

    def add(self, sample: OffsetSample) -> bool:
        """Take a sample into account. Return whether it was used: a clock must not have been set in the meantime."""
        started_ms, cost_ms, noted, stored_ms = sample
        late_ms = noted.wall_ms - started_ms - cost_ms
        if noted.monotonic_s < self._valid_since_s or not -2 * CUT_MS <= late_ms <= STEP_MS:
            return False
        self._notice_step(noted)
        drift_ms = DRIFT * (cost_ms + abs(late_ms))  # the message was stored up to this much earlier
        lower_ms = stored_ms - (started_ms + cost_ms) - CUT_MS - drift_ms
        upper_ms = stored_ms - started_ms + CUT_MS + drift_ms
        aged_ms = DRIFT * 1000 * abs(noted.monotonic_s - self._at_s)
        least_ms, greatest_ms = max(lower_ms, self._lower_ms - aged_ms), min(upper_ms, self._upper_ms + aged_ms)
        if least_ms > greatest_ms:
            # The broker's clock was set between the samples.
            self._valid_since_s = noted.monotonic_s
            least_ms, greatest_ms = lower_ms, upper_ms
        self._lower_ms, self._upper_ms, self._at_s = least_ms, greatest_ms, noted.monotonic_s
        return True

    def bounds(self, now: Instant, since_s: float) -> ClockOffset | None:
        """Return bounds that held at every instant from monotonic time `since_s` to `now`.

        Returns:
            None without a sample, and if a clock was set since then.
        """
        self._notice_step(now)
        if math.isinf(self._upper_ms) or since_s <= self._valid_since_s:
            return None
        aged_ms = DRIFT * 1000 * max(abs(now.monotonic_s - self._at_s), abs(self._at_s - since_s))
        return ClockOffset(math.floor(self._lower_ms - aged_ms), math.ceil(self._upper_ms + aged_ms))

    def _notice_step(self, now: Instant) -> None:
        """Forget everything if the wall clock was set, or the machine slept, since the last reading."""
        gap_ms = _gap_ms(now)
        if abs(gap_ms - self._gap_ms) > STEP_MS:
            self._lower_ms, self._upper_ms = -math.inf, math.inf
            self._valid_since_s = now.monotonic_s
        self._gap_ms = gap_ms


def _gap_ms(now: Instant) -> float:
    return now.wall_ms - now.monotonic_s * 1000
