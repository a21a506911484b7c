"""Settings of all tests: no deadline for examples of property tests, and how test processes share the tests (`-n 4`)."""

from __future__ import annotations

import functools
import math
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer.testing
from hypothesis import settings

import ci_form
import spark_classes
from ariane.net import connection
from ariane.net.limits import tick_shares

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling
    from xdist.workermanage import WorkerController

# A busy machine is not a fault.
settings.register_profile("form", deadline=None, max_examples=100 if ci_form.IS_LONG else 50)
settings.load_profile("form")

# Typer's CliRunner builds all commands again for each call, which takes fifty times as long as most of the calls.
vars(typer.testing)["_get_command"] = functools.cache(typer.main.get_command)

ROOT = Path(__file__).resolve().parents[1]
COUNTS = pytest.StashKey[ci_form.Counts]()

# Spark tests that need no session in the test process: their work happens in programs of their own.
WITHOUT_SESSION = {"test_pipeline_restarts.py", "test_standalone_cluster.py"}
# Spark tests that leave their session idle for most of the time, so a second session costs little alongside them. The other Spark
# tests share one session: starting one takes longer than most tests, and two busy ones exceed two cores.
SPARK_PROGRAMS = {
    "test_connector_page.py",
    "test_lag_end_to_end.py",
    "test_notebook.py",
    "test_pipeline_kills.py",
    "test_source_kills.py",
}

# Files of tests so short that handing out each of them would take as long, or that share what they compute.
SHORT_FILES = ("tests/unit/", "tests/style/", "tests/property/", "tests/console/")
# Groups that take long, in seconds of a whole run on two cores, longest first: one that starts last would run alone at the end.
# `.ci/run` prints the slowest tests. The order is all that matters, so the figures may be rough.
LONG_GROUPS_S = {
    "spark": 450,
    "spark programs": 400,  # of the long form, as those of the next two
    "browser": 350,
    "tests/spark/test_standalone_cluster.py": 260,
    "tests/spark/test_pipeline_restarts.py": 200,
    "tests/interop/test_pipeline_on_java.py": 130,
    "tests/interop/test_order_with_java.py": 85,
    "tests/interop/test_transactions_java.py": 80,
    "tests/interop/test_delays_with_java.py": 75,
    "tests/interop/test_java_5x_clients.py": 70,
    "tests/interop/test_client_against_java.py": 70,
    "tests/interop/test_store_directory.py": 70,
    "tests/integration/test_demo.py::test_a_killed_broker_loses_and_reorders_no_messages": 70,
    "tests/interop/test_retries_java.py": 65,
    "tests/integration/test_broker_set_failover.py": 55,
    "tests/interop/test_client_features_at_java.py": 55,
    "tests/interop/test_query_by_key.py": 45,
    "tests/interop/test_java_statistics.py": 45,
    "tests/integration/test_attacks.py": 45,
    "tests/interop/test_namespace_with_java.py": 40,
    "tests/interop/test_collector_at_java.py": 40,
    "tests/interop/test_cat_and_bench_at_java.py": 40,
    "tests/interop/test_official_5x_clients.py": 40,
    "tests/interop/test_external_commit_log.py": 40,
    "tests/interop/test_java_replication.py": 40,
    "tests/interop/test_sink_with_java.py": 40,
    "tests/interop/test_spark_on_java.py": 40,
    "tests/interop/test_sql_with_java.py": 40,
    "tests/integration/test_cat.py": 35,
    "tests/interop/test_limits_with_java.py": 35,
    "tests/interop/test_mixed_groups.py": 35,
    "tests/interop/test_mqadmin_groups.py": 30,
    "tests/integration/test_up.py::test_a_killed_master_of_the_failover_demo_loses_nothing": 25,
    "tests/interop/test_encrypted_accounts_at_java.py": 20,
    "tests/integration/test_bench.py": 20,
}
# Tests of servers and Java peers, which wait for most of their time. They alternate with tests that compute, so that the cores
# always have work and never too much of it.
WAITING_TESTS = ("tests/integration/", "tests/interop/")


def pytest_configure(config: pytest.Config) -> None:
    """Make Spark drivers of all tests start quickly, and programs stop on Ctrl-C. (All processes inherit it from the first one.)"""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell runs the tests in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if spark_classes.DRIVER_OPTIONS not in os.environ and (path := spark_classes.archive()):
        spark_classes.activate(path)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests of this form. Order those of parallel runs by groups."""
    items[:], others = ci_form.select(items)
    if others:
        config.hook.pytest_deselected(items=others)
    long = sum(item.get_closest_marker("long") is not None for item in (*items, *others))
    config.stash[COUNTS] = ci_form.Counts(len(items), long)
    if not hasattr(config, "workerinput"):
        return
    config.workeroutput["counts"] = (len(items), long)  # type: ignore[attr-defined]
    sizes = Counter(group(item.nodeid) for item in items)
    position = {name: number for number, name in enumerate(order_groups(sizes))}
    items.sort(key=lambda item: position[group(item.nodeid)])


def order_groups(sizes: Counter[str]) -> list[str]:
    """Return the groups in the order of their start, given the number of their tests: those that take longest first."""

    def positions(names: list[str]) -> dict[str, float]:
        """Return the part of these groups that starts before each of them: the groups of most tests first."""
        return {name: i / len(names) for i, name in enumerate(sorted(names, key=lambda name: -sizes[name]))}

    long = sorted(sizes.keys() & LONG_GROUPS_S.keys(), key=list(LONG_GROUPS_S).index)
    short = [name for name in sizes if name not in LONG_GROUPS_S]
    waiting = positions([name for name in short if name.startswith(WAITING_TESTS)])
    computing = positions([name for name in short if not name.startswith(WAITING_TESTS)])
    return [*long, *sorted(waiting | computing, key=(waiting | computing).__getitem__)]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController, error: object) -> None:
    """Take the counts from a process of a parallel run: each collects all tests."""
    if counts := getattr(node, "workeroutput", {}).get("counts"):
        node.config.stash[COUNTS] = ci_form.Counts(*counts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if counts := config.stash.get(COUNTS, None):
        terminalreporter.write_line(counts.text())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Run the tests of a group in one process, the groups in the order of the collected tests.

    (The marks of `--dist loadgroup` have no effect with pytest 9.2 and pytest-xdist 3.8.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False
    return Scheduler(config, log)


@pytest.fixture(scope="module")
def untimed_ticks() -> Iterator[None]:
    """Let requests of any duration share a tick: on a busy machine they take longer than they cost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "TICK_S", math.inf)
        for limit in ("TICK_S", "CONTENDED_S", "SHARE_S"):
            patch.setattr(tick_shares, limit, math.inf)
        yield


def group(nodeid: str) -> str:
    """Return the group of a test: what shares a Spark session or a server. Other tests are groups of their own."""
    path = nodeid.partition("::")[0]
    return _group_of_file(path) or nodeid


@functools.cache
def _group_of_file(path: str) -> str | None:
    if path.startswith("tests/spark/"):
        name = Path(path).name
        return path if name in WITHOUT_SESSION else "spark programs" if name in SPARK_PROGRAMS else "spark"
    if path.startswith("tests/console/browser/"):
        return "browser"
    if path.startswith(SHORT_FILES):
        return path
    has_servers = path.startswith("tests/interop/") or 'scope="module"' in (ROOT / path).read_text(encoding="utf-8")
    return path if has_servers else None
