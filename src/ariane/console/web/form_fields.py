"""Fields of forms that need more than pydantic's types: optional numbers, names in a list, and times."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

from ariane.errors import UsageError
from ariane.model.topic import topic_name_fault

# Start of the year 9999: times up to some hours later, in any zone, are still in the calendar.
TIME_END_MS = 253_370_764_800_000
TEXT_MAX = 255  # of a name or text in a search
UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhd])", re.ASCII)
_MS = re.compile(r"\d{11,15}", re.ASCII)  # fewer digits are seconds, or a typing error


def _blank_to_none(value: Any) -> Any:
    # A browser sends an empty text for an input without a value.
    return None if isinstance(value, str) and not value.strip() else value


def _stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def without_blanks(values: Any) -> Any:
    """Return a list of texts without blank ones, which a browser sends for empty inputs with the name of the list."""
    return [value for value in values if str(value).strip()] if isinstance(values, list | tuple) else values


OptionalInt = Annotated[int | None, BeforeValidator(_blank_to_none)]
OptionalBool = Annotated[bool | None, BeforeValidator(_blank_to_none)]
OptionalText = Annotated[str | None, BeforeValidator(_blank_to_none)]
Name = Annotated[str, BeforeValidator(_stripped), Field(max_length=TEXT_MAX)]
VerbatimText = Annotated[str, StringConstraints(strip_whitespace=False)]
"""A text whose white space at both ends belongs to it, such as the body of a message."""


def check_topic(name: str, field: str = "topic") -> None:
    """Check the name of a topic, unless it is empty.

    Raises:
        UsageError: the name is invalid.
    """
    if name and (fault := topic_name_fault(name)):
        raise UsageError(field, name, f"{fault}; enter the name of a topic")


def parse_duration_ms(text: str, field: str) -> int:
    """Return the ms of `30s`, `15m`, `1.5h` or `2d`.

    Raises:
        UsageError: the text has another form, or is 0.
    """
    match = _DURATION.fullmatch(text.strip())
    ms = int(float(match[1]) * UNITS_MS[match[2]]) if match else 0
    if not ms:
        raise UsageError(field, text, "expected a positive number followed by s, m, h or d, for example 15m")
    return ms


def parse_time_ms(text: str, now_ms: int, field: str, *, zone: tzinfo = UTC) -> int:
    """Return a time in ms since the epoch.

    Args:
        text: `15m` (15 minutes ago), `2026-01-31T10:00` (of `zone` unless it has an offset), or ms since the epoch.
        field: Name of the field, for the error.
        zone: Time zone of texts without an offset.

    Raises:
        UsageError: the text is none of these, or a time before 1970 or after 9998.
    """
    text = text.strip()
    if _MS.fullmatch(text):
        ms = int(text)
    elif _DURATION.fullmatch(text):
        ms = now_ms - parse_duration_ms(text, field)
    else:
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            fix = (
                "expected a duration before now (15m, 2h, 1d), a date and time (2026-01-31T10:00) or ms since the epoch"
            )
            raise UsageError(field, text, fix) from None
        ms = round((time if time.tzinfo else time.replace(tzinfo=zone)).timestamp() * 1000)
    if ms < 0:
        raise UsageError(field, text, "before 1970; expected a later time")
    if ms >= TIME_END_MS:
        raise UsageError(field, text, "after the year 9998; expected an earlier time")
    return ms


def parse_time_range(since: str, until: str, now_ms: int, *, zone: tzinfo = UTC) -> tuple[int | None, int | None]:
    """Return begin and end of a time range in ms since the epoch; None where the text is empty.

    Args:
        since: Begin, in a form of `parse_time_ms`.
        zone: Time zone of texts without an offset.

    Raises:
        UsageError: a time is invalid, or the range is empty.
    """
    since_ms = parse_time_ms(since, now_ms, "since", zone=zone) if since.strip() else None
    until_ms = parse_time_ms(until, now_ms, "until", zone=zone) if until.strip() else None
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise UsageError("since", since, f"is not before until = {until}; specify an earlier time")
    return since_ms, until_ms
