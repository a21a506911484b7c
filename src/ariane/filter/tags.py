"""Tag expressions: `*`, or tags joined by `||`. [FilterAPI, ExpressionMessageFilter]

A broker compares hashes, which may collide; a client compares the tags themselves again.
"""

from __future__ import annotations

from ariane.model.hashes import java_hash

ALL = "*"


def parse(expression: str | None) -> frozenset[str] | None:
    """Return the tags in `expression`; None if it selects every message."""
    if expression is None or expression.strip() in ("", ALL):
        return None
    return frozenset(tag for part in expression.split("||") if (tag := part.strip()))


def codes(tags: frozenset[str] | None) -> frozenset[int] | None:
    """Return the hashes of `tags`, as in consume queue entries; None stays None."""
    return None if tags is None else frozenset(java_hash(tag) for tag in tags)
