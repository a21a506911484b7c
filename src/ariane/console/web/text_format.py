"""Filters of templates: values as texts. None is unknown and becomes `?`, never 0."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

UNKNOWN = "?"


def number(value: float | None, digits: int = 0) -> str:
    """Return a number with thousands separators."""
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def utc_time(ms: int | None) -> str:
    """Return a time of milliseconds since the epoch."""
    return UNKNOWN if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


FILTERS: dict[str, Callable[..., str]] = {"number": number, "time": utc_time}
