"""Values of a report as people read them: no digits that say nothing, and no zero that is none."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime

from ariane.reports.report import Report, Value

UNKNOWN = "?"
LEGEND = f"{UNKNOWN} = not known"
SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
PER_CENT_FINE = 99  # between this and 100 the digits matter, and nothing is rounded up to 100
LEAST = 0.001


def format_value(value: Value, unit: str = "") -> str:
    """A cell, without its unit."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%m-%d %H:%M:%S}"
    if isinstance(value, str):
        return value
    if unit.startswith("B"):
        return _scaled(value)
    if isinstance(value, int):
        return f"{value:,}"
    if unit == "%" and PER_CENT_FINE < value < 100:
        return f"{math.floor(value * 100) / 100:.2f}"
    return format_number(value, unit)


def format_number(value: float, unit: str = "") -> str:
    """Three digits, of ms two below 100; never 0 for what is not."""
    size = abs(value)
    fine = unit != "ms"
    if size == 0 or size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.{1 * fine}f}"
    if size >= 1:
        return f"{value:.{1 + fine}f}"
    return f"{value:.2g}" if size >= LEAST else f"<{LEAST}"


def is_number(values: Iterable[Value]) -> bool:
    """Whether a column is to be set flush right: it has numbers only."""
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)


def is_time(values: Iterable[Value]) -> bool:
    return any(isinstance(value, datetime) for value in values)


def freshness_line(report: Report) -> str:
    """As of when an answer is, and whether it is complete."""
    if report.as_of is None:
        return "as of: nothing is known yet"
    state = "complete" if not report.warnings else "NOT COMPLETE"
    return f"as of {report.as_of.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, {state}"


def source_line(home: str) -> str:
    """Where an answer comes from."""
    return f"tables: {home}"


def _scaled(value: float) -> str:
    for size, name in SCALES:
        if abs(value) >= size:
            return f"{format_number(value / size)}{name}"
    return format_number(value)
