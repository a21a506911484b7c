"""Times as options say them: so long ago, or a date and a time."""

from __future__ import annotations

import re
from datetime import datetime

from ariane.clock import ms_of
from ariane.errors import UsageError

UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time(text: str, now_ms: int, option: str) -> int:
    """A time in ms since the epoch: `15m` is 15 minutes before now, `2026-01-31T10:00` is in UTC if it does not say."""
    if found := re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])", text):
        ms = now_ms - int(float(found[1]) * UNITS_MS[found[2]])
        if ms < 0:
            raise UsageError(option, text, "is before 1970")
        return ms
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        fix = "expected how long ago (30s, 15m, 1h, 2d), or a date and time in UTC (2026-01-31T10:00)"
        raise UsageError(option, text, fix) from None
    return ms_of(at)
