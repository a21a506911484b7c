"""English texts of reports that a reader may translate: a `str` that remembers its templates and values.

text("no samples since %(since)s %(zone)s", since=Moment(at, "%H:%M"), zone=ZONE)
    in a terminal: "no samples since 10:01 UTC"; in the console: its translation, with the time in the zone of the page
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple


class Moment(NamedTuple):
    """A time in a text."""

    at: datetime
    format: str
    """Its format, as for strftime."""


class Zone(NamedTuple):
    """The zone of the times in a text."""

    zone: tzinfo = UTC
    name: str = "UTC"


ZONE = Zone()
"""As a value of a text: the name of the reader's zone. As the zone of a reader: UTC."""


class Text(str):
    """An English text, with times in UTC. `parts` are its sentences: templates and values."""

    parts: tuple[tuple[str, Mapping[str, object]], ...]

    def translated(self, translate: Callable[[str], str], zone: Zone) -> str:
        """Return the text in another language and zone. `translate` receives templates with `%(name)s`."""
        return " ".join(_fill(translate(template), values, translate, zone) for template, values in self.parts)


def text(template: str, **values: object) -> Text:
    """Return a text.

    Args:
        template: The English text. With values it is a format with `%(name)s`.
        values: Names, numbers, other texts, `Moment` and `ZONE`.
    """
    return _of_parts(((template, values),))


def sentences(*texts: Text | None) -> Text:
    """Return texts one after the other; None is omitted."""
    return _of_parts(tuple(part for text in texts if text is not None for part in text.parts))


def _of_parts(parts: tuple[tuple[str, Mapping[str, object]], ...]) -> Text:
    result = Text(" ".join(_fill(template, values, str, ZONE) for template, values in parts))
    result.parts = parts
    return result


def _fill(template: str, values: Mapping[str, object], translate: Callable[[str], str], zone: Zone) -> str:
    if not values:
        return template
    return template % {name: _value_text(value, translate, zone) for name, value in values.items()}


def _value_text(value: object, translate: Callable[[str], str], zone: Zone) -> str:
    match value:
        case Text():
            return value.translated(translate, zone)
        case Moment(at, pattern):
            return f"{at.astimezone(zone.zone):{pattern}}"
        case Zone():
            return zone.name
        case int():
            return f"{value:,}"
    return str(value)
