"""Texts of messages and clients without invisible characters."""

from __future__ import annotations

import unicodedata

BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def visible(text: str) -> str:
    """Return a text with escapes for characters that cannot be seen or that reorder others; line ends and tabs remain."""
    return "".join(char if _is_visible(char) else f"\\u{ord(char):04x}" for char in text)


def _is_visible(char: str) -> bool:
    if char in "\n\t":
        return True
    return char not in BIDI_CONTROLS and unicodedata.category(char) not in ("Cc", "Cs", "Co", "Cn")
