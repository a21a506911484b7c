"""A token bucket: how much of a rate is used. Pure; the caller passes the time."""

from __future__ import annotations


class TokenBucket:
    """Use of a rate of `limit` in `period_s`: it fills with each use, and drains at the rate.

    A client that was silent may use the amount of a whole period at once. The limit is an argument, so that a change is in force
    at once.
    """

    __slots__ = ("_at", "_used")

    def __init__(self) -> None:
        self._used = 0.0  # at `_at`; above the limit it is what has to drain before more is allowed
        self._at = 0.0

    def used(self, limit: float, period_s: float, now: float) -> float:
        """Return the amount that was used and has not drained yet."""
        return max(0.0, self._used - (now - self._at) * limit / period_s)

    def add(self, amount: float, limit: float, period_s: float, now: float) -> float:
        """Use `amount`, even if the limit is exceeded. Return the seconds until the use is within the limit again."""
        self._used = self.used(limit, period_s, now) + amount
        self._at = now
        return max(0.0, self._used - limit) * period_s / limit
