"""Options as Spark gives them, to values: texts whose names know no case, read by a table of readers.

    values(options, "rocketmq source", SourceOptions, READ, ALIASES)  → {member: value}, for the struct that has the defaults

A reader gets the option's name, as people write it, and its text; its ConfigError says what to write instead.
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


class Secret(str):
    """A text that shows itself to nobody who prints it."""

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
    """The members of `kind` that are given. Unknown options are refused, as they are mistyped ones, but for `passed_over`.

    `readers` has the options in lower case that are no plain texts, `aliases` other names, in lower case both.
    """
    members = {name.replace("_", ""): name for name in option_struct.__struct_fields__}
    parsed: dict[str, Any] = {}
    for given, text in options.items():
        lower = given.lower()
        if lower in ignored:
            continue
        name = (aliases or {}).get(lower, lower)
        if name not in members:
            # Its value is not shown: an unknown option may hold a secret.
            options_there = f"it has {', '.join(map(camel_case, members.values()))}"
            raise ConfigError(
                given, Secret("..."), f"is no option of the {format_name}; {_suggestion(lower, members)}{options_there}"
            )
        member = members[name]
        if not text.strip():
            raise ConfigError(
                camel_case(member) if name == lower else given,
                "",
                "is empty: give it a value, or leave it out if it is optional",
            )
        if member in parsed:
            shown = "" if "secret" in name or "token" in name else text
            raise ConfigError(given, shown, f"is another name of {camel_case(member)}, which is given too: keep one")
        parsed[member] = readers.get(name, text_option)(camel_case(member) if name == lower else given, text.strip())
    return parsed


def reject_changed(values: msgspec.Struct, reasons: Mapping[str, str]) -> None:
    """Raise ConfigError for the first member in `reasons` whose value differs from its default.

    Args:
        values: Parsed options.
        reasons: For each member that has no effect here: why, and what to do instead.
    """
    for field in msgspec.structs.fields(values):
        value = getattr(values, field.name)
        if field.name in reasons and value != field.default:
            shown = value if isinstance(value, str) else str(value).lower() if isinstance(value, int) else ""
            raise ConfigError(camel_case(field.name), shown, reasons[field.name])


def _suggestion(given: str, members: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(given, members, n=1)
    return f"did you mean {camel_case(members[close[0]])}? " if close else ""


def camel_case(member: str) -> str:
    first, *others = member.split("_")
    return first + "".join(part.capitalize() for part in others)


# --- readers ---


def text_option(name: str, text: str) -> str:
    return text


def secret_option(name: str, text: str) -> Secret:
    return Secret(text)


def list_option(separator: str) -> Callable[[str, str], tuple[str, ...]]:
    def read(name: str, text: str) -> tuple[str, ...]:
        values = tuple(one.strip() for one in text.split(separator) if one.strip())
        if not values:
            raise ConfigError(name, text, f"names nothing: give values, joined by {separator!r}")
        return values

    return read


def boolean_option(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(name, text, "use true or false")
    return text.lower() == "true"


def integer_option(minimum: int, maximum: int = INT_MAX, alternatives: str = "") -> Callable[[str, str], int]:
    """A whole number; `or_else` says what might stand there instead."""

    def read(name: str, text: str) -> int:
        is_one = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
        if not is_one or not minimum <= int(text) <= maximum:
            raise ConfigError(name, text, f"it has to be {alternatives}a whole number from {minimum} to {maximum}")
        return int(text)

    return read


def duration_option(name: str, text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12})\s*(ms|s|m|h|d|)", text)
    if found is None:
        raise ConfigError(name, text, "use a number of ms, or 30s, 15m, 1h")
    return int(found[1]) * _UNITS_MS[found[2]]


def size_option(name: str, text: str) -> int:
    """Bytes, with k, m, g for powers of 1024 as Spark has them."""
    found = re.fullmatch(r"([0-9]{1,15})\s*([kmg]?)b?", text.lower())
    count = int(found[1]) << 10 * " kmg".index(found[2] or " ") if found else 0
    if not 1 <= count <= LONG_MAX:
        raise ConfigError(name, text, "use a number of bytes, or 64m, 1g")
    return count
