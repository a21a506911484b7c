"""Fixtures of all tests of the console."""

from __future__ import annotations

import pytest

from ariane.console.security import passwords


@pytest.fixture(autouse=True)
def cheap_password_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash passwords in a millisecond: their real cost is meant for guessers, not for tests."""
    monkeypatch.setattr(passwords, "COST", 2**8)
