"""Distribution of tests over test processes by shared Spark sessions and servers (tests/conftest.py)."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def conftest() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tests_conftest", TESTS / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    return conftest


def test_tests_are_grouped_by_shared_resources(conftest: ModuleType):
    assert conftest.group("tests/spark/test_sink.py::test_a") == "spark"
    assert conftest.group("tests/interop/test_differential.py::test_a[b::c]") == "tests/interop/test_differential.py"
    assert conftest.group("tests/integration/test_acl_command.py::t") == "tests/integration/test_acl_command.py"
    assert conftest.group("tests/console/browser/test_crawl.py::test_a") == "browser"
    assert conftest.group("tests/unit/test_acl.py::test_a") == "tests/unit/test_acl.py"
    assert conftest.group("tests/integration/test_up.py::test_a") == "tests/integration/test_up.py::test_a"
    for name in conftest.LONG_GROUPS_S:
        if name not in ("spark", "spark programs", "browser"):
            assert (TESTS.parent / name.partition("::")[0]).exists()
            assert conftest.group(name if "::" in name else f"{name}::test_a") == name, "no group has this name"


def test_long_groups_start_first_and_those_that_wait_alternate_with_those_that_compute(conftest: ModuleType):
    server, peer = "tests/integration/test_a.py::test_a", "tests/interop/test_b.py"
    sizes = Counter(
        {"tests/unit/test_c.py": 1, server: 1, "tests/unit/test_d.py": 9, peer: 5, "browser": 2, "spark": 7}
    )
    expected = ["spark", "browser", peer, "tests/unit/test_d.py", server, "tests/unit/test_c.py"]
    assert conftest.order_groups(sizes) == expected
