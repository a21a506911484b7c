"""Translations of the console's texts. The English text is the key.

Templates: {{ _("Topics") }}, {{ _("%(count)s topics", count=3) }}.
Python:    from ariane.console.web.translation import gettext as _

translations/zh/<area>.json ─→ catalog ─→ gettext: the text in the language of the current request
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

from ariane.console.web import preferences


def gettext(text: str, **values: object) -> str:
    """Return a text in the language of the current request.

    Args:
        text: English text. With values it is a format with `%(name)s`.
        values: Values of the format.
    """
    language = preferences.current().language
    translated = text if language == "en" else catalog(language).get(text, text)
    return translated % values if values else translated


def gettext_noop(text: str) -> str:
    """Return the text unchanged: marks a constant that a template translates later with `_(value)`."""
    return text


@cache
def catalog(language: str) -> dict[str, str]:
    """Return the translations of a language by English text, from the files of all areas."""
    texts: dict[str, str] = {}
    for file in (resources.files("ariane.console") / "translations" / language).iterdir():
        if file.name.endswith(".json"):
            texts |= json.loads(file.read_text(encoding="utf-8"))
    return texts
