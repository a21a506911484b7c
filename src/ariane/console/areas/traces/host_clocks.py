"""Bounds of the clock offsets of clients, from the records of one message.

With offset = broker's clock − client's clock (docs/journeys.md, "Clocks"):

    a send began at s, was answered at a (client), its record was stored at t (broker)   t − a ≤ offset ≤ t − s
    a record that was stored at t was delivered at b (client)                            offset ≥ t − b
    an event was recorded at e (client), its trace was stored at T (broker)              offset ≤ T − e

The table `clocks` combines the evidence of many messages, so its bounds are narrower. Those that a client has measured itself, and
that its trace messages carry, are preferred to evidence.
"""

from __future__ import annotations

from typing import NamedTuple

CUT_MS = 1  # clocks are written in whole ms: each bound is that much wider


class HostClock(NamedTuple):
    """Bounds of the offset of a client's clock; None: unbounded.

    Attributes:
        lower_ms: Lower bound of broker's clock − client's clock.
        upper_ms: Upper bound. Less than the lower bound if the evidence contradicts itself.
    """

    lower_ms: int | None = None
    upper_ms: int | None = None

    @property
    def is_contradiction(self) -> bool:
        """Whether no offset agrees with all records."""
        return self.lower_ms is not None and self.upper_ms is not None and self.lower_ms > self.upper_ms

    @property
    def offset_ms(self) -> int | None:
        """Estimated offset; None if unknown. It is 0 unless the bounds require another one."""
        if self.lower_ms is None or self.upper_ms is None or self.is_contradiction:
            return None
        return 0 if self.lower_ms <= 0 <= self.upper_ms else (self.lower_ms + self.upper_ms) // 2

    @property
    def error_ms(self) -> int | None:
        """Maximum error of the estimate; None if the offset is unknown."""
        offset_ms = self.offset_ms
        if offset_ms is None or self.lower_ms is None or self.upper_ms is None:
            return None
        return max(self.upper_ms - offset_ms, offset_ms - self.lower_ms)


def hull(clock: HostClock | None, other: HostClock | None) -> HostClock | None:
    """Return bounds that hold for two records of a client; one of them may carry none."""
    if clock is None or other is None:
        return clock or other
    lower_ms = None if clock.lower_ms is None or other.lower_ms is None else min(clock.lower_ms, other.lower_ms)
    upper_ms = None if clock.upper_ms is None or other.upper_ms is None else max(clock.upper_ms, other.upper_ms)
    return HostClock(lower_ms, upper_ms)


class ClockEvidence:
    """Collects evidence about the clocks of hosts."""

    def __init__(self) -> None:
        self._clocks: dict[str, HostClock] = {}

    def at_least(self, host: str, offset_ms: int) -> None:
        """Add a lower bound for the offset of a host."""
        lower_ms, upper_ms = self.clock(host)
        bound_ms = offset_ms - CUT_MS
        self._clocks[host] = HostClock(bound_ms if lower_ms is None else max(lower_ms, bound_ms), upper_ms)

    def at_most(self, host: str, offset_ms: int) -> None:
        """Add an upper bound for the offset of a host."""
        lower_ms, upper_ms = self.clock(host)
        bound_ms = offset_ms + CUT_MS
        self._clocks[host] = HostClock(lower_ms, bound_ms if upper_ms is None else min(upper_ms, bound_ms))

    def clock(self, host: str) -> HostClock:
        """Return the bounds of a host; without evidence there are none."""
        return self._clocks.get(host, HostClock())

    def all_clocks(self) -> dict[str, HostClock]:
        """Return the bounds by host, sorted."""
        return dict(sorted(self._clocks.items()))
