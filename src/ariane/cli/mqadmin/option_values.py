"""Parsers of option values: they raise ValueError with what is expected."""

from __future__ import annotations

from collections.abc import Callable


def whole_number(minimum: int, kind: str = "whole number") -> Callable[[str], int]:
    """Return a parser of whole numbers."""

    def parse(text: str) -> int:
        digits = text.removeprefix("-") if minimum < 0 else text
        if not text.isascii() or not digits.isdigit() or int(text) < minimum:
            raise ValueError(f"expected a {kind} of at least {minimum}")
        return int(text)

    return parse


def yes_or_no(text: str) -> bool:
    """Parse the value of Java's options that take `true` or `false`."""
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"
