"""Parses Spark's options: texts with case-insensitive names, converted by a table of readers.

    parse_options(options, "rocketmq source", SourceOptions, READERS, ALIASES)  → {member: value} for the struct

A reader gets the option's name, in its documented spelling, and its text; it raises ConfigError with what to write instead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from ariane.errors import ConfigError

Reader = Callable[[str, str], object]
Readers = Mapping[str, Reader]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
_DIGITS_MAX = len(str(LONG_MAX))
_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


# A str, so that it can be used everywhere; only the repr, which logs and messages use, hides it.
class Secret(str):
    """A text whose repr hides it."""

    def __repr__(self) -> str:
        return "..." if self else "''"


def parse_options(
    options: Mapping[str, str],
    format_name: str,
    option_struct: type[msgspec.Struct],
    readers: Readers,
    aliases: Mapping[str, str] | None = None,
    ignored: Collection[str] = (),
) -> dict[str, Any]:
    """Return the struct members that `options` sets.

    Args:
        options: Option names (case-insensitive) and texts.
        format_name: Name of the source or sink, for messages.
        option_struct: Struct whose members are the options.
        readers: Readers by lower-case option name; others are plain texts.
        aliases: Alternative names → names, both in lower case.
        ignored: Lower-case names of options that are not ours.

    Raises:
        ConfigError: an option is unknown (probably a typing error), empty, set twice by an alias, or invalid.
    """
    # Names are compared without case, so the words of a name are not visible in it.
    members = {name.replace("_", ""): name for name in option_struct.__struct_fields__}
    parsed: dict[str, Any] = {}
    for option, text in options.items():
        lower = option.lower()
        if lower in ignored:
            continue
        name = (aliases or {}).get(lower, lower)
        if name not in members:
            # The value is not shown, because an unknown option may hold a secret.
            options_there = f"expected one of {', '.join(map(camel_case, members.values()))}"
            raise ConfigError(
                option,
                Secret("..."),
                f"is not an option of the {format_name}; {_suggestion(lower, members)}{options_there}",
            )
        member = members[name]
        if not text.strip():
            raise ConfigError(
                camel_case(member) if name == lower else option,
                "",
                "is empty: set a value, or remove the option if it is optional",
            )
        if member in parsed:
            shown = "" if "secret" in name or "token" in name else text
            raise ConfigError(option, shown, f"is an alias of {camel_case(member)}, which is set, too: keep one")
        parsed[member] = readers.get(name, text_option)(camel_case(member) if name == lower else option, text.strip())
    return parsed


def reject_changed(values: msgspec.Struct, reasons: Mapping[str, str]) -> None:
    """Raise ConfigError for the first member in `reasons` whose value differs from its default.

    Args:
        values: Parsed options.
        reasons: Members that have no effect in this context → why, and what to do instead.
    """
    for field in msgspec.structs.fields(values):
        value = getattr(values, field.name)
        if field.name in reasons and value != field.default:
            shown = value if isinstance(value, str) else str(value).lower() if isinstance(value, int) else ""
            raise ConfigError(camel_case(field.name), shown, reasons[field.name])


def _suggestion(option: str, members: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(option, members, n=1)
    return f"did you mean {camel_case(members[close[0]])}? " if close else ""


def camel_case(member: str) -> str:
    first, *rest_words = member.split("_")
    return first + "".join(part.capitalize() for part in rest_words)


# --- readers ---


def text_option(name: str, text: str) -> str:
    return text


def secret_option(name: str, text: str) -> Secret:
    return Secret(text)


def list_option(separator: str) -> Callable[[str, str], tuple[str, ...]]:
    def read(name: str, text: str) -> tuple[str, ...]:
        values = tuple(value.strip() for value in text.split(separator) if value.strip())
        if not values:
            raise ConfigError(name, text, f"expected values separated by {separator!r}")
        return values

    return read


def boolean_option(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(name, text, "expected true or false")
    return text.lower() == "true"


def integer_option(minimum: int, maximum: int = INT_MAX, alternatives: str = "") -> Callable[[str, str], int]:
    """Return a reader of integers; `alternatives` names other accepted values in the error message."""

    def read(name: str, text: str) -> int:
        is_one = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
        if not is_one or not minimum <= int(text) <= maximum:
            raise ConfigError(name, text, f"expected {alternatives}an integer from {minimum} to {maximum}")
        return int(text)

    return read


def duration_option(name: str, text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,12})\s*(ms|s|m|h|d|)", text)
    if match is None:
        raise ConfigError(name, text, "expected a number of ms, or a duration such as 30s, 15m, 1h")
    return int(match[1]) * _UNITS_MS[match[2]]


def size_option(name: str, text: str) -> int:
    """Parse a number of bytes; suffixes k, m, g are powers of 1024, as in Spark."""
    match = re.fullmatch(r"([0-9]{1,15})\s*([kmg]?)b?", text.lower())
    count = int(match[1]) << 10 * " kmg".index(match[2] or " ") if match else 0
    if not 1 <= count <= LONG_MAX:
        raise ConfigError(name, text, "expected a number of bytes, or a size such as 64m, 1g")
    return count
