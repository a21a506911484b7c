"""Roles of the console: a viewer reads, an operator changes topics, groups and messages, an admin also accounts and rules."""

from __future__ import annotations

import enum


class ConsoleRole(enum.StrEnum):
    """What an account may do. Each role includes the earlier ones."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: ConsoleRole) -> bool:
        """Return whether this role may do everything that `other` may do."""
        return _RANKS[self] >= _RANKS[other]


_RANKS = {role: rank for rank, role in enumerate(ConsoleRole)}
