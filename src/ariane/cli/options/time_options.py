"""Parses time options: a duration before now, or a date and time."""

from __future__ import annotations

import re
from datetime import datetime

from ariane.clock import ms_of
from ariane.errors import UsageError

UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time(text: str, now_ms: int, option: str) -> int:
    """Return a time in ms since the epoch.

    Args:
        text: `15m` (15 minutes before now) or `2026-01-31T10:00` (UTC unless it has an offset).
        now_ms: the current time.
        option: name of the option, for the error.

    Raises:
        UsageError: the text is neither, or before 1970.
    """
    # Bounded digits: the error of a huge number would be an overflow.
    if match := re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])", text):
        ms = now_ms - int(float(match[1]) * UNITS_MS[match[2]])
        if ms < 0:
            raise UsageError(option, text, "before 1970; expected a later time")
        return ms
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        fix = "expected a duration before now (30s, 15m, 1h, 2d) or a date and time in UTC (2026-01-31T10:00)"
        raise UsageError(option, text, fix) from None
    return ms_of(time)


def parse_duration_ms(text: str, option: str) -> int:
    """Return a duration in ms.

    Args:
        text: `30s`, `15m`, `1.5h` or `2d`.
        option: name of the option, for the error.

    Raises:
        UsageError: the text has another form.
    """
    if match := re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])", text):
        return int(float(match[1]) * UNITS_MS[match[2]])
    raise UsageError(option, text, "expected a positive number followed by s, m, h or d, for example 30s or 1h")
