"""The two forms of a test run: short for each change, long (ARIANE_CI=long) on a schedule and before a release.

A test with the mark `long` runs in the long form alone. The arguments of the mark name cheaper tests that prove the same in each
run; docs/long-tests.md lists all of them, with faults that show it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import pytest

IS_LONG = os.environ.get("ARIANE_CI") == "long"


def number(name: str, *, short: int, long: int) -> int:
    """Return the value of an environment variable, or its default in this form."""
    return int(os.environ.get(name) or (long if IS_LONG else short))


class Counts(NamedTuple):
    """Numbers of selected tests."""

    run: int
    long: int  # of all

    def text(self) -> str:
        if IS_LONG:
            return f"Long form: {self.run} tests, {self.long} of them only in this form."
        return f"Short form: {self.run} tests; {self.long} more only in the long form (ARIANE_CI=long)."


def select(items: Sequence[pytest.Item], *, is_long: bool = IS_LONG) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests of a form, and the others."""
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (others if not is_long and item.get_closest_marker("long") else chosen).append(item)
    return chosen, others
