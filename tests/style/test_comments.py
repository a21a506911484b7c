"""Every attribute of a class with more than five has its meaning in the source: units, allowed values, or why it exists.

Counts as an explanation: a comment on the attribute's line or directly above it, a docstring below it, a description in its
annotation, or its name in the docstring of the class or of `__init__` (`name` in backticks, or `name:` as in Args).
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
ATTRIBUTES_MAX = 5  # a class with so few is explained by its docstring
WITHOUT_STATE = re.compile(r"Enum|IntFlag|Protocol|TypedDict")  # their members are values or an interface
DESCRIBED = re.compile(r"`([A-Za-z_]\w*)`|^\s*([A-Za-z_]\w*)(?: \([^)]*\))?:", re.MULTILINE)


class Attribute(NamedTuple):
    """An attribute and the statement that defines it."""

    name: str
    node: ast.stmt
    following: ast.stmt | None


def fields(cls: ast.ClassDef) -> Iterator[Attribute]:
    """Yield the fields of a struct, NamedTuple or dataclass."""
    if any(WITHOUT_STATE.search(ast.unparse(parent)) for parent in cls.bases):
        return
    for node, following in zip(cls.body, [*cls.body[1:], None], strict=True):
        is_field = isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)
        if is_field and isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield Attribute(node.target.id, node, following)


def assigned(init: ast.FunctionDef) -> Iterator[Attribute]:
    """Yield the attributes that `__init__` assigns."""
    followers = {id(node): following for node, following in zip(init.body, init.body[1:], strict=False)}
    for node in ast.walk(init):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        for target in targets:
            for item in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(item, ast.Attribute) and ast.unparse(item.value) == "self":
                    yield Attribute(item.attr, node, followers.get(id(node)))


def is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def has_description(node: ast.stmt) -> bool:
    """Return whether a statement contains a sentence, as in `Annotated[int, Meta(description=…)]`."""
    return any(
        isinstance(part, ast.Constant) and isinstance(part.value, str) and " " in part.value for part in ast.walk(node)
    )


def unexplained(source: str) -> Iterator[str]:
    """Yield `line: class.attribute` for each attribute of a large class without an explanation."""
    comments: dict[int, bool] = {}  # line number → whether the comment has the line for itself
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = not token.line[: token.start[1]].strip()
    for cls in ast.walk(ast.parse(source)):
        if not isinstance(cls, ast.ClassDef):
            continue
        inits = [node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        attributes = [*fields(cls), *(attribute for init in inits for attribute in assigned(init))]
        if len({attribute.name for attribute in attributes}) <= ATTRIBUTES_MAX:
            continue
        docs = "\n".join(ast.get_docstring(node) or "" for node in (cls, *inits))
        explained = {name for match in DESCRIBED.finditer(docs) for name in match.groups() if name}
        explained |= {
            attribute.name
            for attribute in attributes
            if any(line in comments for line in range(attribute.node.lineno, (attribute.node.end_lineno or 0) + 1))
            or comments.get(attribute.node.lineno - 1)
            or is_text(attribute.following)
            or has_description(attribute.node)
        }
        for name, node, _ in attributes:
            if name not in explained and name.lstrip("_") not in explained:
                explained.add(name)
                yield f"{node.lineno}: {cls.name}.{name}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_attributes_of_large_classes_are_explained(path: Path) -> None:
    assert list(unexplained(path.read_text(encoding="utf-8"))) == [], (
        f"{path.name}: add a comment to each attribute with its unit, its allowed values or why it exists; not its name again"
    )


CLASS = '''
class Poller:
    """Polls. `seen` counts rounds.

    Args:
        limit: Requests per round.
    """

    def __init__(self, limit, peers, clock):
        self._limit = limit
        self.seen = 0
        self._peers = peers  # one connection per broker
        # Tests replace it.
        self._clock = clock
        self.faults = []
        """Rejected requests, as texts."""
        self._first, self._last = 0, 0
'''


def test_the_check_finds_attributes_without_an_explanation() -> None:
    assert list(unexplained(CLASS)) == ["17: Poller._first", "17: Poller._last"]
    fields_only = "\n".join(["class Row(NamedTuple):", *(f"    {name}: int" for name in "abcdef")])
    assert len(list(unexplained(fields_only))) == 6
    assert list(unexplained(fields_only.replace("    f: int", ""))) == [], "five are few enough"
    assert list(unexplained(fields_only.replace("NamedTuple", "Protocol"))) == []
