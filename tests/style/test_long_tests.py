"""Tests of the long form alone (mark `long`): each names cheaper tests that exist, run in each form, and are listed with it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "long-tests.md").read_text(encoding="utf-8")
EXAMPLE = """
import pytest
@pytest.mark.long("tests/a.py::test_b")
def test_long(): pass
@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.long("tests/a.py::test_b"))])
def test_partly_long(n): pass
"""


def marks() -> dict[str, list[tuple[str, ...]]]:
    """Return the arguments of the marks in each file."""
    results: dict[str, list[tuple[str, ...]]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.long(" not in text or path == Path(__file__):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.long":
                instead = tuple(ast.literal_eval(argument) for argument in node.args)
                results.setdefault(str(path.relative_to(ROOT)), []).append(instead)
    return results


def long_functions(path: str) -> set[str]:
    """Return the test functions of a file that have the mark themselves."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {item.name for item in functions if any("mark.long(" in ast.unparse(mark) for mark in item.decorator_list)}


def test_each_long_test_names_cheaper_ones_that_run_in_each_form() -> None:
    assert len(marks()) > 5
    for file, found in marks().items():
        for instead in found:
            assert instead, f"{file}: name the cheaper tests that prove the same"
            for test in instead:
                path, _, name = test.partition("::")
                assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.M), test
                assert name not in long_functions(path), f"{file}: {test} is itself long"


def test_each_long_test_is_on_the_page() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    for file, found in marks().items():
        for instead in found:
            names = [f"`{test.removeprefix('tests/')}`" for test in instead]
            assert any(
                f"`{file.removeprefix('tests/')}" in row and all(name in row for name in names) for row in rows
            ), f"docs/long-tests.md lacks a row for {file} with {', '.join(names)}"


def test_each_form_selects_its_tests(tmp_path: Path) -> None:
    example = tmp_path / "tests" / "unit" / "test_example.py"
    example.parent.mkdir(parents=True)
    example.write_text(EXAMPLE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")

    def output(form: str, *options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", *options, "tests"]
        env = {"ARIANE_CI": form, "PYTHONPATH": str(ROOT / "tests"), "PATH": "", "HOME": str(tmp_path)}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout

    for parallel in ((), ("-n", "1")):
        short, long = output("", *parallel), output("long", *parallel)
        assert "1 passed" in short
        assert "Short form: 1 tests; 2 more only in the long form (ARIANE_CI=long)." in short
        assert "3 passed" in long
        assert "Long form: 3 tests, 2 of them only in this form." in long
