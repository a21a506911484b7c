"""Instants: the wall clock and the monotonic clock of a client, read together.

A trace record contains a wall-clock time and a duration. If another reading of the monotonic clock started the duration, a
pause of the process between the two readings would move the end that the record implies.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self

from ariane.clock import Clock

TOLERANCE_S = 0.0005  # half of the ms that times are rounded to; two readings take about a microsecond
READINGS_MAX = 4


class Instant(NamedTuple):
    """One reading of both clocks: `wall_ms` since the epoch, rounded down, and `monotonic_s`."""

    wall_ms: int
    monotonic_s: float

    @classmethod
    def read(cls, clock: Clock) -> Self:
        """Read both clocks within `TOLERANCE_S` of each other, reading again if the process paused in between.

        If it pauses every time, the monotonic clock was read first: a duration that starts here is too long, never too short.
        """
        for _ in range(READINGS_MAX):
            monotonic_s = clock.monotonic()
            instant = cls(clock.now_ms(), monotonic_s)
            if clock.monotonic() - monotonic_s <= TOLERANCE_S:
                break
        return instant

    def ms_since(self, start: Instant) -> int:
        """Return the ms from `start` to this instant, so that `start.wall_ms` plus the result is not before this instant.

        The result is the difference of the wall clock's readings, as in Java clients. If the monotonic clock contradicts it (a
        pause between two readings, an adjusted wall clock), the monotonic difference counts, rounded up.
        """
        return duration_ms(self.wall_ms - start.wall_ms, self.monotonic_s - start.monotonic_s)


def duration_ms(wall_ms: int, elapsed_s: float) -> int:
    """Return `wall_ms` unless it contradicts `elapsed_s`, otherwise that, rounded up to ms."""
    elapsed_ms = elapsed_s * 1000
    return wall_ms if -1 < elapsed_ms - wall_ms < 1 else math.ceil(elapsed_ms)
