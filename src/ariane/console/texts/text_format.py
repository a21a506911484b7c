"""Filters of templates: values as texts, in the time zone and language of the reader.

None is unknown and becomes `?` with a title, never 0. The results are HTML; inside an attribute use `| striptags`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from ariane.console.texts import preferences
from ariane.console.texts.sparkline import spark_path
from ariane.console.texts.translation import gettext as _
from ariane.console.texts.translation import ngettext
from ariane.model.quantities import duration_text
from ariane.net.listening.certificates import WARNING_DAYS

BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CODE_SPAN = re.compile(r"`([^`\n]+)`")


def unknown(reason: str = "") -> Markup:
    """Return the sign of an unknown value, with the reason as its title."""
    title = reason or _("Unknown: not reported")
    return Markup('<span class="unknown" title="{0}">?<span class="sr"> ({0})</span></span>').format(title)


def number(value: float | None, digits: int = 0) -> str:
    """Return a number with thousands separators."""
    return unknown() if _is_unknown(value) else f"{value:,.{digits}f}"


def byte_count(value: float | None) -> str:
    """Return a number of bytes with a binary unit: `1.5 GiB`."""
    if value is None or _is_unknown(value):
        return unknown()
    size, unit = float(value), 0
    while abs(size) >= 1024 and unit < len(BYTE_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:,.0f} {BYTE_UNITS[unit]}" if unit == 0 or abs(size) >= 100 else f"{size:,.1f} {BYTE_UNITS[unit]}"


def milliseconds(value: float | None, digits: int = 0) -> str:
    """Return a time span as milliseconds, or as seconds above ten seconds."""
    if value is None or _is_unknown(value):
        return unknown()
    return duration(value) if abs(value) >= 10_000 else f"{value:,.{digits}f} ms"


def duration(value: float | None) -> str:
    """Return a time span of milliseconds with its two largest units: `3 h 12 min`."""
    if value is None or _is_unknown(value):
        return unknown()
    return duration_text(value)


def unit(name: str, value: float | None) -> str:
    """Return a unit in the reader's language, after 1 in the singular: `1 message`, `2 messages`, `1 msg/s`."""
    singular = name.removesuffix("s") if len(name) > 1 and name.isalpha() else name
    return ngettext(singular, name, value)


def percent(fraction: float | None, digits: int = 1) -> str:
    """Return a fraction of one as percent: `12.5 %`."""
    return unknown() if fraction is None or _is_unknown(fraction) else f"{fraction * 100:,.{digits}f} %"


def time(ms: float | None, digits: int = 0) -> str:
    """Return a time in the reader's zone as a `<time>` element, with the zone as its title.

    Args:
        ms: Milliseconds since the epoch.
        digits: 3 shows milliseconds.
    """
    instant = _instant(ms)
    if instant is None:
        return unknown()
    local = instant.astimezone(preferences.current().zone)
    title = f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03d} {local:%z} ({preferences.current().zone_name})"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        instant.isoformat(timespec="milliseconds"), title, time_text(ms, digits)
    )


def time_text(ms: float | None, digits: int = 0) -> str:
    """Return a time in the reader's zone as plain text, for attributes and labels."""
    instant = _instant(ms)
    if instant is None:
        return "?"
    local = instant.astimezone(preferences.current().zone)
    fraction = f".{local.microsecond // 1000:03d}" if digits else ""
    return f"{local:%Y-%m-%d %H:%M:%S}{fraction}"


def ago(ms: float | None, as_of_ms: float) -> str:
    """Return how long before another time a time is: `3 min ago`; the title has the time itself."""
    if _instant(ms) is None or ms is None:
        return unknown()
    if abs(ms - as_of_ms) < 1_000:
        text = _("just now")
    elif ms > as_of_ms:
        text = _("in %(span)s", span=duration(ms - as_of_ms))
    else:
        text = _("%(span)s ago", span=duration(as_of_ms - ms))
    return Markup('<span title="{}">{}</span>').format(time_text(ms, 3), text)


def expiry(days: float | None) -> str:
    """Return when a certificate expires: `expires in 12 days`, `expired`. Empty if that is far, unknown, or there is none."""
    if days is None or days >= WARNING_DAYS:
        return ""
    if days < 0:
        return _("expired")
    whole = math.floor(days)
    return ngettext("expires in %(days)s day", "expires in %(days)s days", whole, days=whole)


def path_segment(name: object) -> str:
    """Return a name percent-encoded as one segment of a path: `%RETRY%g/1` becomes `%25RETRY%25g%2F1`."""
    return quote(str(name), safe="")


def code_spans(text: str) -> Markup:
    """Return a text whose parts in backticks are code."""
    # Every second part was between two backticks; without its partner a backtick stays as it is.
    parts = _CODE_SPAN.split(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if at % 2 else escape(part) for at, part in enumerate(parts)
    )


def _is_unknown(value: float | None) -> bool:
    return value is None or not _is_finite(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold: JSON of other servers and clients may contain one
        return False


def _instant(ms: float | None) -> datetime | None:
    """Return the time, or None if it is unknown or outside of the years that can be shown."""
    if ms is None or not _is_finite(ms):
        return None
    try:
        instant = EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None
    # The first and the last day have no local time in some zones.
    return instant if 1 < instant.year < 9999 else None


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "bytes": byte_count,
    "ms": milliseconds,
    "duration": duration,
    "percent": percent,
    "unit": unit,
    "time": time,
    "time_text": time_text,
    "ago": ago,
    "expiry": expiry,
    "code_spans": code_spans,
    "path_segment": path_segment,
    "spark_path": spark_path,
}
"""Filters by their names in templates."""
