"""Keys of a configuration file that a server has no setting for: without effect, unsupported, or unknown.

    without effect   4.9.4 has the key, this server needs no such setting      one line per reason
    unsupported      ignoring the value would change what is stored, or who    refused, unless it is Java's default
                     may read or find it
    unknown          any other key, a typing error for example                 one line, with the nearest known key

A file that Java's broker has written holds all keys of 4.9.4, so Java's defaults are never refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ariane.errors import ConfigError

SIMILAR = 0.75  # ratio of difflib from which an unknown key counts as a typing error of a known one


class Unsupported(NamedTuple):
    """A key of 4.9.4 whose values, apart from Java's default, stop a start."""

    java_default: str
    fix: str
    """What ignoring the value would change, and what to do."""


def check_keys(
    others: Mapping[str, str],
    settings: Iterable[str],
    without_effect: Mapping[str, str],
    unsupported: Mapping[str, Unsupported],
) -> list[str]:
    """Return a line for each group of keys that have no effect.

    Args:
        others: the keys of a file, with their texts, that are not among `settings`.
        settings: the keys that the server has a setting for.

    Raises:
        ConfigError: an unsupported key does not have Java's default.
    """
    for key, text in others.items():
        if key in unsupported and not _is_default(text, unsupported[key].java_default):
            raise ConfigError(key, text, unsupported[key].fix)
    reasons: dict[str, list[str]] = {}
    for key in others:
        if key in without_effect:
            reasons.setdefault(without_effect[key], []).append(key)
    lines = [
        f"{', '.join(keys)} {'has' if len(keys) == 1 else 'have'} no effect: {reason}"
        for reason, keys in reasons.items()
    ]
    known = [*settings, *without_effect, *unsupported]
    return lines + [
        describe_unknown_key(key, known) for key in others if key not in without_effect and key not in unsupported
    ]


def describe_unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the line for a key that is in no table."""
    lower = {name.lower(): name for name in known}
    similar = difflib.get_close_matches(key.lower(), lower, 1, SIMILAR)
    return f"Unknown key '{key}' has no effect." + (f" Did you mean '{lower[similar[0]]}'?" if similar else "")


def _is_default(text: str, java_default: str) -> bool:
    text = text.strip()
    if java_default == "false":
        return text.lower() != "true"  # as Java reads a boolean
    return text == java_default
