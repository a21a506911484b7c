"""The language of docstrings, comments, messages and pages: no word of the list that docs/glossary.md replaces.

Of tests, benches and examples only docstrings and comments are read (their texts quote other programs), of scripts only comments.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted(path for name in ("tests", "benches", "examples") for path in (ROOT / name).rglob("*.py"))
SCRIPTS = sorted(path for name in (".ci", "scripts") for path in (ROOT / name).iterdir() if path.is_file())
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])

# Dialect, and the plain word for it (docs/glossary.md has the terms of the field).
FORBIDDEN = {
    r"anew": "again",
    r"besides?": "alongside, next to, in addition",
    r"news": "updates, changes",
    r"tells?|told|telling": "report, notify, print",
    r"believe[ds]?": "assume, trust",
    r"(re)?folds?|(re)?folded|(re)?folding": "aggregate, rebuild",
    r"halves": "half messages, open transactions",
    r"whoever|nobody|somebody|whom": "name the actor",
    r"thereby|thereof|therein|likewise": "say what",
    r"under way": "in flight, in progress",
    r"so long": "while, until",
    r"of which": "name it again",
    r"left out|leaves? out": "omitted, skipped",
    r"for ever": "permanently, without limit",
    r"what (waits|lies|is due|there is|it was|was asked)": "pending, stored, due",
    r"who (asks?|waits?|is there|needs?|wants?)": "name the actor",
    r"that which|(that|which) is none": "name it",
    r"(is|are) no (?!longer\b|more\b|such\b)[a-z]+": "is not a …",
    r"(lies?|lay|lying) (in|at|on|there|behind|under|below|above|between|beyond|outside|within)": "is stored in",
    r"as of when": "as-of time",
    r"(given|gives?) up": "abandoned, stopped retrying",
}
PATTERN = re.compile("|".join(rf"\b(?:{word})\b" for word in FORBIDDEN), re.IGNORECASE)
CODE = re.compile(r"`[^`]*`|\{[^}]*\}")  # names in backticks and expressions in f-strings are not prose


def faults(text: str) -> list[str]:
    return [match.group() for match in PATTERN.finditer(CODE.sub("", text))]


def python_prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield line numbers and texts of comments, docstrings and strings with a space in them: messages, help, logs."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_text = token.type == tokenize.STRING and " " in token.string.strip("rbfu\"' ")
        if is_text or token.type == tokenize.COMMENT:
            for number, line in enumerate(token.string.splitlines()):
                yield token.start[0] + number, line


def comments_and_docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line numbers and texts of comments and docstrings."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node, clean=False)
        ):
            for number, line in enumerate(text.splitlines()):
                yield node.body[0].lineno + number, line


def script_prose(script: str) -> Iterator[tuple[int, str]]:
    """Yield line numbers and comments of a shell script."""
    for number, line in enumerate(script.splitlines(), 1):
        _, hash_sign, comment = line.partition("#")
        if hash_sign:
            yield number, comment


def page_prose(page: str) -> Iterator[tuple[int, str]]:
    """Yield line numbers and texts of a page outside its code blocks."""
    is_code = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, line


Prose = Callable[[str], Iterator[tuple[int, str]]]


def faults_of_files(paths: Iterable[Path], prose: Prose) -> list[str]:
    """Return the faults of the prose of these files, with their places."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {fault!r}"
        for path in paths
        for number, line in prose(path.read_text(encoding="utf-8"))
        for fault in faults(line)
    ]


@pytest.mark.parametrize(("paths", "prose"), [(SOURCES, python_prose), (PAGES, page_prose)], ids=["sources", "pages"])
def test_texts_use_the_terms_of_the_glossary(paths: list[Path], prose: Prose) -> None:
    assert faults_of_files(paths, prose) == [], "docs/glossary.md has the terms"


def test_comments_of_tests_and_scripts_use_the_terms_of_the_glossary() -> None:
    python = [path for path in (*TESTS, *SCRIPTS) if path.suffix == ".py" and path != Path(__file__).resolve()]
    shell = [path for path in SCRIPTS if path.suffix != ".py"]
    wrong = faults_of_files(python, comments_and_docstrings) + faults_of_files(shell, script_prose)
    assert wrong == [], "docs/glossary.md has the terms"


def test_the_list_finds_dialect_and_spares_code() -> None:
    assert faults("what waits is folded anew; nobody is told") == ["what waits", "folded", "anew", "nobody", "told"]
    assert faults("the file is no segment") == ["is no segment"]
    assert faults("The broker is no longer registered. `fold` and {told} are names.") == []
