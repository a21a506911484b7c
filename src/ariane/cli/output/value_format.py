"""Formats the values of a report for people: few digits, but never a zero for a value that is not zero."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ariane.reports.report import Report, Value

UNKNOWN = "?"
LEGEND = f"{UNKNOWN} = unknown"
SI_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
# Between this and 100 % the digits matter: 99.996 % must not be rounded up to 100 %.
PRECISE_PERCENT = 99
LEAST = 0.001  # smaller values are shown as "<0.001"


def format_value(value: Value, unit: str = "") -> str:
    """Return the text of a table cell, without its unit."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%m-%d %H:%M:%S}"
    if isinstance(value, str):
        return escape_control(value)
    if unit.startswith("B"):
        return _format_scaled(value)
    if isinstance(value, int):
        return f"{value:,}"
    if unit == "%" and PRECISE_PERCENT < value < 100:
        return f"{math.floor(value * 100) / 100:.2f}"
    return format_number(value, unit)


def format_number(value: float, unit: str = "") -> str:
    """Return a number with three significant digits (milliseconds below 100: two)."""
    size = abs(value)
    digits = 0 if unit == "ms" else 1
    if size == 0 or size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.{digits}f}"
    if size >= 1:
        return f"{value:.{1 + digits}f}"
    return f"{value:.2g}" if size >= LEAST else f"<{LEAST}"


def format_duration(seconds: float, digits: int = 0) -> str:
    """Return a duration in its largest unit, with one digit; seconds with `digits`."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds:.{digits}f}s"


def escape_control(text: str) -> str:
    """Return the text with control characters escaped: keys and names come from clients and may hold terminal commands."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def is_number(values: Iterable[Value]) -> bool:
    """Return whether a column holds numbers only, and is therefore aligned to the right."""
    present = [value for value in values if value is not None]
    return bool(present) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in present)


def is_time(values: Iterable[Value]) -> bool:
    """Return whether a column holds times."""
    return any(isinstance(value, datetime) for value in values)


def freshness_line(report: Report) -> str:
    """Return the as-of time of a report, whether it is complete, and the zone of all times."""
    if report.as_of is None:
        return "as of: no data yet"
    state = "INCOMPLETE" if report.warnings else "complete"
    return f"as of {report.as_of.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, {state}; times are UTC"


def source_line(tables_dir: str) -> str:
    """Return the line that names the directory which a report was read from."""
    return f"tables: {tables_dir}"


def _format_scaled(value: float) -> str:
    for size, suffix in SI_SCALES:
        if abs(value) >= size:
            return f"{format_number(value / size)}{suffix}"
    return format_number(value)
