"""Interop tests need the real Java 4.9.4 peers; without them they are skipped with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from ariane.testing import java

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this directory is an interop test."""
    interop_items = [item for item in items if HERE in Path(item.fspath).parents]
    reason = java.available() if interop_items else None
    for item in interop_items:
        item.add_marker(pytest.mark.interop)
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"Java peers: {reason}"))
