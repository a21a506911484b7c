"""Settings of all tests: no deadline for examples of property tests, and how test processes share the tests (`-n 4`)."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

settings.register_profile("unhurried", deadline=None)  # a busy machine is not a fault
settings.load_profile("unhurried")

ROOT = Path(__file__).resolve().parents[1]

# Spark tests whose work happens in driver processes of their own, so a second session costs little alongside them. The
# other Spark tests share one session: starting one takes longer than most tests, and two busy ones exceed two cores.
SPARK_PROGRAMS = {
    "test_connector_page.py",
    "test_lag_end_to_end.py",
    "test_notebook.py",
    "test_pipeline_kills.py",
    "test_source_kills.py",
    "test_standalone_cluster.py",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Run the tests of a group in one process, the largest group first.

    (The marks of `--dist loadgroup` have no effect with pytest 9.2 and pytest-xdist 3.8.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return Scheduler(config, log)


def group(nodeid: str) -> str:
    """Return the group of a test: what shares a Spark session or a server. Other tests are groups of their own."""
    path = nodeid.partition("::")[0]
    return _group_of_file(path) or nodeid


@functools.cache
def _group_of_file(path: str) -> str | None:
    if path.startswith("tests/spark/"):
        return "spark programs" if Path(path).name in SPARK_PROGRAMS else "spark"
    has_servers = path.startswith("tests/interop/") or 'scope="module"' in (ROOT / path).read_text(encoding="utf-8")
    return path if has_servers else None
