"""Translations of the console's texts. The English text is the key.

Templates: {{ _("Topics") }}, {{ _("Topics: %(count)s", count=3) }}, {{ _n("%(count)s topic", "%(count)s topics", 3, count=3) }}.
Python:    from ariane.console.texts.translation import gettext as _

translations/zh/<area>.json ─→ catalog ─→ gettext: the text in the language of the current request
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

from ariane.console.texts import preferences
from ariane.reports.texts import Text, Zone


def gettext(text: str, **values: object) -> str:
    """Return a text in the language of the current request.

    Args:
        text: English text. With values it is a format with `%(name)s`.
        values: Values of the format.
    """
    language = preferences.current().language
    translated = text if language == "en" else catalog(language).get(text, text)
    return translated % values if values else translated


def ngettext(singular: str, plural: str, number: float | None, **values: object) -> str:
    """Return the form of a text for a number in the language of the current request.

    Args:
        singular: English text for 1. It has no translation: Chinese has one form for all numbers.
        plural: English text for other numbers, and unknown ones; its translation is that of both.
        values: Values of the format, also of the number itself.
    """
    is_singular = number == 1 and preferences.current().language == "en"
    return gettext(singular if is_singular else plural, **values)


def report_text(text: str) -> str:
    """Return a text of a report in the language and the time zone of the current request. A plain text is a constant."""
    reader = preferences.current()
    if isinstance(text, Text):
        return text.translated(gettext, Zone(reader.zone, reader.zone_name))
    return gettext(text)


def gettext_noop(text: str) -> str:
    """Return the text unchanged: marks a constant that a template translates later with `_(value)`."""
    return text


@cache
def catalog(language: str) -> dict[str, str]:
    """Return the translations of a language by English text, from the files of all areas."""
    texts: dict[str, str] = {}
    for file in (resources.files("ariane.console.texts") / "translations" / language).iterdir():
        if file.name.endswith(".json"):
            texts |= json.loads(file.read_text(encoding="utf-8"))
    return texts
