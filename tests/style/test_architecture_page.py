"""docs/architecture.md names files and what is in them: each exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "ariane"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PATH = re.compile(r"`([a-z][\w/]*/\w+\.py)`(?: `([\w.]+)`)?")  # of a file, and the name of what it defines
FOLDERS_MAX = 2  # that a reader opens to see the name of a file


def is_defined(name: str, body: list[ast.stmt]) -> bool:
    """Return whether statements define a class, function or method (`Class.method`)."""
    first, _, rest = name.partition(".")
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == first:
            return not rest or is_defined(rest, node.body)
    return False


def faults(page: str) -> list[str]:
    """Return the paths of a page that do not exist, and the names that their files do not define."""
    wrong = []
    for path, name in PATH.findall(page):
        file = next((root / path for root in (PACKAGE, ROOT) if (root / path).is_file()), None)
        if file is None:
            wrong.append(path)
        elif name and not is_defined(name, ast.parse(file.read_text(encoding="utf-8")).body):
            wrong.append(f"{path} {name}")
    return wrong


def test_the_page_names_files_and_definitions_that_exist() -> None:
    assert len(PATH.findall(PAGE)) > 50, "the expression finds no paths"
    assert faults(PAGE) == []


def test_each_decision_is_within_two_folders() -> None:
    section = PAGE.split("## Where is it decided?", 1)[1].split("\n## ", 1)[0]
    decisions = [(path, name) for path, name in PATH.findall(section) if name]
    assert len(decisions) >= 10
    assert [path for path, _ in decisions if path.count("/") > FOLDERS_MAX] == []


def test_the_check_finds_missing_files_and_names() -> None:
    page = "`net/gone.py`, `net/connection.py` `Connection.gone` and `net/connection.py` `Connection.close`"
    assert faults(page) == ["net/gone.py", "net/connection.py Connection.gone"]
