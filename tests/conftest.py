"""Settings of all tests: no deadline for examples of property tests, and how test processes share the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("unhurried", deadline=None)  # a busy machine is not a fault
settings.load_profile("unhurried")

# Directories in which tests of a file share what is expensive to start, by the name of their group (None: a group each file).
# One process runs all Spark tests: two sessions on two cores take longer than one after the other.
GROUPED = {"spark": "spark", "interop": None}


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under pytest-xdist (`-n 4 --dist loadgroup`), keep tests that share a server or a Spark session in one process."""
    for item in items:
        directory = item.path.parent.name
        if directory in GROUPED or _has_shared_fixture(item):
            group = "spark" if "spark" in getattr(item, "fixturenames", ()) else GROUPED.get(directory)
            item.add_marker(pytest.mark.xdist_group(group or str(Path(directory) / item.path.name)))


def _has_shared_fixture(item: pytest.Item) -> bool:
    """Whether a fixture of this test lives longer than the test, pytest's own ones apart."""
    info = getattr(item, "_fixtureinfo", None)
    if info is None:
        return False
    definitions = [chosen[-1] for chosen in info.name2fixturedefs.values()]
    return any(one.scope in ("module", "package") for one in definitions)
