"""Distribution of tests over test processes by shared Spark sessions and servers (tests/conftest.py)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_tests_are_grouped_by_shared_resources():
    spec = importlib.util.spec_from_file_location("tests_conftest", TESTS / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)

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
