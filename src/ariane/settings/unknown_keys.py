"""Keys of a configuration file that are not settings of the server: without effect, unsupported, or unknown.

    without effect   4.9.4 has the key, this server does not need it         one line per reason
    unsupported      ignoring the value would change what is stored, or      refused, unless it is Java's default
                     who can read or find it
    unknown          any other key, for example a typing error               one line, with the most similar key

A file that Java's broker has written holds all keys of 4.9.4, so Java's defaults are never refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

import msgspec

from ariane.errors import ConfigError

SIMILARITY_MIN = 0.75  # ratio of difflib from which an unknown key counts as a typing error


class Unsupported(msgspec.Struct, frozen=True):
    """A key of 4.9.4 that stops a start unless it has Java's default."""

    java_default: str
    fix: str
    """What ignoring the value would change, and what to do."""
    unless_set: str = ""
    """A setting that makes the key irrelevant if it has a value."""
    unless_reason: str = ""
    """Why the key has no effect then."""

    def is_default(self, text: str) -> bool:
        """Return whether a text means Java's default. For a switch, that is everything but `true`, as Java reads it."""
        text = text.strip()
        return text.lower() != "true" if self.java_default == "false" else text == self.java_default


def check_unknown_keys(
    unknown: Mapping[str, str],
    settings: Iterable[str],
    without_effect: Mapping[str, str],
    unsupported: Mapping[str, Unsupported],
) -> list[str]:
    """Return a line for each group of keys that have no effect.

    Args:
        unknown: Keys of a file, with their texts, that are not among `settings`.
        settings: Keys that the server has a setting for.
        without_effect: Reasons by key.
        unsupported: Refused keys.

    Raises:
        ConfigError: an unsupported key does not have Java's default.
    """
    # Refusals first: a start that fails should not print remarks before the reason.
    for key, text in unknown.items():
        if key in unsupported and not unsupported[key].is_default(text):
            raise ConfigError(key, text, unsupported[key].fix)
    keys_by_reason: dict[str, list[str]] = {}
    for key in unknown:
        if key in without_effect:
            keys_by_reason.setdefault(without_effect[key], []).append(key)
    lines = [
        f"{', '.join(keys)} {'has' if len(keys) == 1 else 'have'} no effect: {reason}"
        for reason, keys in keys_by_reason.items()
    ]
    candidates = [*settings, *without_effect, *unsupported]
    return lines + [
        describe_unknown_key(key, candidates) for key in unknown if key not in without_effect and key not in unsupported
    ]


def describe_unknown_key(key: str, candidates: Iterable[str]) -> str:
    """Return the line for a key that RocketMQ does not have, with the most similar candidate."""
    # Compared without case: difflib would count each letter of another case as different.
    by_lower_case = {name.lower(): name for name in candidates}
    similar = difflib.get_close_matches(key.lower(), by_lower_case, 1, SIMILARITY_MIN)
    suggestion = f" Did you mean '{by_lower_case[similar[0]]}'?" if similar else ""
    return f"Unknown key '{key}' has no effect.{suggestion}"
