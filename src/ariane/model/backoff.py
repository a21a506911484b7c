"""Exponential back-off as a value: the delay after a number of failures. Waiting and the clock are up to the caller."""

from __future__ import annotations

from typing import NamedTuple

_DOUBLINGS_MAX = 32  # enough for any limit, and a failure count of millions does not build a huge integer


class Backoff(NamedTuple):
    """Delays that start with `first_s` and double with each failure, up to `longest_s`. Both in seconds."""

    first_s: float
    longest_s: float

    def delay_s(self, failures: int) -> float:
        """Return the seconds to wait after `failures` failures in a row (at least 1)."""
        return float(min(self.longest_s, self.first_s * 2 ** min(failures - 1, _DOUBLINGS_MAX)))
