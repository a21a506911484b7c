"""Names have one meaning: class names are unique, module names occur at most twice, variables are named by nouns, and no NamedTuple
bundles callables."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "ariane"
PATHS = [path.relative_to(ROOT) for path in sorted(PACKAGE.rglob("*.py"))]
# The asyncio clients under the same names.
TWINS = {
    PACKAGE.relative_to(ROOT) / "blocking" / name for name in ("producers.py", "consumers.py", "simple_consumer.py")
}
MODULE_REPEATS_MAX = 2  # two layers may name their half of one subject alike: `tables/journeys` and `pipeline/journeys`
EMPTY_VARIABLES = {"one", "asked"}  # pronouns and participles: each had several meanings


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def repeated(names: dict[str, list[str]], most: int) -> dict[str, list[str]]:
    return {name: places for name, places in names.items() if len(places) > most}


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in PATHS:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and path not in TWINS:
                places[node.name].append(str(path))
    assert len(places) > 400, "the trees are not the package's"
    assert repeated(places, 1) == {}


def test_module_names_occur_at_most_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in PATHS:
        if path.name not in ("__init__.py", "__main__.py"):
            places[path.stem].append(str(path))
    assert repeated(places, MODULE_REPEATS_MAX) == {}


def test_the_check_finds_repeated_names() -> None:
    assert repeated({"Found": ["a.py", "b.py"], "Message": ["c.py"]}, 1) == {"Found": ["a.py", "b.py"]}


def empty_variables(tree: ast.Module) -> list[str]:
    """Return the arguments and variables with a name of EMPTY_VARIABLES, with their lines."""
    names = [(node.arg, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.arg)]
    names += [(node.id, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return [f"{name}:{line}" for name, line in names if name in EMPTY_VARIABLES]


def test_variables_say_what_they_hold() -> None:
    faults = {str(path): names for path in PATHS if (names := empty_variables(tree_of(path)))}
    assert faults == {}, "use the noun: message, queue, statistic"


def test_the_check_finds_empty_variables() -> None:
    assert empty_variables(ast.parse("asked = [one.key for one in records]")) == ["asked:1", "one:1", "one:1"]


def bundles(tree: ast.Module) -> list[str]:
    """Return the NamedTuples with more than one field that holds a callable: such a value is an object in disguise."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(ast.unparse(parent) == "NamedTuple" for parent in node.bases)
        if sum(isinstance(field, ast.AnnAssign) and "Callable" in ast.unparse(field.annotation) for field in node.body)
        > 1
    ]


def test_no_named_tuple_bundles_callables() -> None:
    faults = {str(path): names for path in PATHS if (names := bundles(tree_of(path)))}
    assert faults == {}, "pass an object with these methods, typed by a Protocol"


def test_the_check_finds_a_bundle() -> None:
    tree = ast.parse(
        "class Parts(NamedTuple):\n    send: Callable[[int], None]\n    pull: Callable[[], int] | None\n    size: int"
    )
    assert bundles(tree) == ["Parts"]
    assert bundles(ast.parse("class Table(NamedTuple):\n    name: str\n    compute: Callable[[], int]")) == []
