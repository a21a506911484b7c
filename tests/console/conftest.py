"""Fixtures of all tests of the console."""

from __future__ import annotations

import pytest

from ariane.console.security import login_limits
from ariane.console.security.accounts import passwords


@pytest.fixture(autouse=True)
def cheap_password_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash passwords in a millisecond: their real cost is meant for guessers, not for tests."""
    monkeypatch.setattr(passwords, "COST", 2**8)


@pytest.fixture(autouse=True)
def refused_instead_of_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse log-ins that would be delayed: tests with requests do not sleep."""
    monkeypatch.setattr(login_limits, "WAIT_MAX_S", 0.0)
