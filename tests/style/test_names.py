"""Names have one meaning: class names are unique, module names occur at most twice."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "ariane"
TREES = {path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
MODULE_REPEATS_MAX = 2  # two layers may name their half of one subject alike: `tables/journeys` and `pipeline/journeys`


def repeated(names: dict[str, list[str]], most: int) -> dict[str, list[str]]:
    return {name: places for name, places in names.items() if len(places) > most}


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path))
    assert len(places) > 400, "the trees are not the package's"
    assert repeated(places, 1) == {}


def test_module_names_occur_at_most_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in TREES:
        if path.name not in ("__init__.py", "__main__.py"):
            places[path.stem].append(str(path))
    assert repeated(places, MODULE_REPEATS_MAX) == {}


def test_the_check_finds_repeated_names() -> None:
    assert repeated({"Found": ["a.py", "b.py"], "Message": ["c.py"]}, 1) == {"Found": ["a.py", "b.py"]}
