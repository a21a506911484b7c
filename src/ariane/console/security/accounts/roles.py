"""Roles of the console: a viewer reads, an operator changes topics, groups and messages, an admin also accounts and rules."""

from __future__ import annotations

import enum

from ariane.errors import ConfigError


class ConsoleRole(enum.StrEnum):
    """What an account may do. Each role includes the earlier ones."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: ConsoleRole) -> bool:
        """Return whether this role may do everything that `other` may do."""
        return _RANKS[self] >= _RANKS[other]


_RANKS = {role: rank for rank, role in enumerate(ConsoleRole)}


def parse_role(text: str) -> ConsoleRole:
    """Return the role of a name.

    Raises:
        ConfigError: there is no such role.
    """
    try:
        return ConsoleRole(text.strip().lower())
    except ValueError:
        raise ConfigError("role", text, f"expected one of {', '.join(ConsoleRole)}") from None
