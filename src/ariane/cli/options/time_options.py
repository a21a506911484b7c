"""Time options: a duration before now, or a date and time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from ariane.cli.options.option_kinds import time_option
from ariane.cli.options.shared_options import FILTERS
from ariane.clock import SYSTEM_CLOCK, ms_of
from ariane.errors import UsageError

UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time(text: str, now_ms: int, option: str) -> int:
    """Return a time in ms since the epoch: `15m` (before now) or `2026-01-31T10:00` (UTC unless it has an offset).

    Raises:
        UsageError: the text is neither, or before 1970. Names the option.
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
    """Return the ms of `30s`, `15m`, `1.5h` or `2d`. The error of another form names the option."""
    if match := re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])", text):
        return int(float(match[1]) * UNITS_MS[match[2]])
    raise UsageError(option, text, "expected a positive number followed by s, m, h or d, for example 30s or 1h")


@dataclass(frozen=True, kw_only=True)
class StoreTimeOptions:
    """Options that select messages by the time at which they were stored."""

    since: Annotated[
        str | None,
        time_option(
            help="Stored since: a duration before now (15m, 2d) or a UTC time (2026-11-21T10:00).", panel=FILTERS
        ),
    ] = None
    until: Annotated[str | None, time_option(help="Stored before, in the same forms.", panel=FILTERS)] = None

    def parse(self) -> tuple[int | None, int | None]:
        """Return both in ms since the epoch.

        Raises:
            UsageError: a time is invalid, or the range is empty.
        """
        now_ms = SYSTEM_CLOCK.now_ms()
        since_ms = None if self.since is None else parse_time(self.since, now_ms, "--since")
        until_ms = None if self.until is None else parse_time(self.until, now_ms, "--until")
        if since_ms is not None and until_ms is not None and since_ms >= until_ms:
            raise UsageError("--since", self.since, f"not before --until {self.until}; specify an earlier time")
        return since_ms, until_ms
