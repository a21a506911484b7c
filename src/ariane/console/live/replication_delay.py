"""How far slaves are behind their masters, in time: estimated from the ends of the masters' commit logs that were observed.

    master's log end   100 at 0 s ── 200 at 10 s ── 400 at 20 s ─→ time
    slave's log end    300 at 20 s: the master had that at about 15 s, so the slave is 5 s behind

The times are those of the console's clock: the clocks of the brokers do not matter.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

OBSERVATIONS_MAX = 720  # an hour of polls every 5 s


class ReplicationDelay(NamedTuple):
    """Distance of a slave to its master. `is_minimum`: it began before the master was observed, so the time is longer."""

    lag_bytes: int
    delay_ms: int | None
    is_minimum: bool = False


class _Observation(NamedTuple):
    ms: int
    log_end: int


class ReplicationObserver:
    """Remembers when the commit log of each master ended where."""

    def __init__(self, observations_max: int = OBSERVATIONS_MAX) -> None:
        self._max = observations_max
        self._masters: dict[str, deque[_Observation]] = {}  # by broker name

    def observe(self, broker: str, ms: int, log_end: int) -> None:
        """Record the end of a master's commit log at a time."""
        observations = self._masters.setdefault(broker, deque(maxlen=self._max))
        if observations and observations[-1].log_end > log_end:
            observations.clear()  # the master has another log than before
        # While nothing is stored, two observations are enough: the first and the last of this time.
        if len(observations) > 1 and observations[-2].log_end == observations[-1].log_end == log_end:
            observations.pop()
        observations.append(_Observation(ms, log_end))

    def delay(self, broker: str, ms: int, slave_end: int) -> ReplicationDelay | None:
        """Return the distance of a slave whose log ended at `slave_end` at a time; None if its master was never observed."""
        observations = self._masters.get(broker)
        if not observations:
            return None
        newest = observations[-1]
        # A slave that is asked after its master may have more than that had.
        if slave_end >= newest.log_end:
            return ReplicationDelay(0, 0)
        lag_bytes = newest.log_end - slave_end
        if slave_end < observations[0].log_end:
            return ReplicationDelay(lag_bytes, max(0, ms - observations[0].ms), is_minimum=True)
        number = bisect_right(observations, slave_end, key=lambda observation: observation.log_end)
        before, after = observations[number - 1], observations[number]
        share = (slave_end - before.log_end) / (after.log_end - before.log_end)
        passed_ms = before.ms + round(share * (after.ms - before.ms))
        return ReplicationDelay(lag_bytes, max(0, ms - passed_ms))
