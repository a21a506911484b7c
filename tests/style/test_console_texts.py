"""Texts of the console: each has a Chinese translation, and no translation is unused.

Read are the calls of `_`, `gettext` and `gettext_noop` with a constant text, in templates and in Python, and the plural texts of
`_n` and `ngettext`: Chinese has one form for all numbers. Reports have texts and columns: `text("…")` and `Column("…")`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import Environment, nodes

CONSOLE = Path(__file__).resolve().parents[2] / "src" / "ariane" / "console"
REPORTS = CONSOLE.parent / "reports"
TRANSLATIONS = sorted((CONSOLE / "texts" / "translations" / "zh").glob("*.json"))
# Position of the text to translate.
MARKERS = {
    "_": 0,
    "gettext": 0,
    "gettext_noop": 0,
    "_n": 1,
    "ngettext": 1,
    "text": 0,
    "Column": 0,
}
PLACEHOLDER = re.compile(r"%\((\w+)\)[sd]")
CHINESE = re.compile(r"[\u4e00-\u9fff]")
PRODUCT_NAMES = {"NameServer"}


def template_texts(source: str) -> Iterator[str]:
    for call in Environment(autoescape=True).parse(source).find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name in MARKERS:
            text = call.args[MARKERS[call.node.name]]
            if isinstance(text, nodes.Const):
                yield text.value


def python_texts(source: str) -> Iterator[str]:
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in MARKERS and call.args:
            text = call.args[MARKERS[call.func.id]]
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield text.value


def used_texts() -> dict[str, str]:
    """Return the file of each text."""
    texts: dict[str, str] = {}
    for path in sorted(CONSOLE.rglob("*.html")):
        texts |= dict.fromkeys(template_texts(path.read_text(encoding="utf-8")), path.name)
    for path in sorted((*CONSOLE.rglob("*.py"), *REPORTS.rglob("*.py"))):
        texts |= dict.fromkeys(python_texts(path.read_text(encoding="utf-8")), path.name)
    return texts


def chinese_texts() -> dict[str, str]:
    texts: dict[str, str] = {}
    for path in TRANSLATIONS:
        for english, chinese in json.loads(path.read_text(encoding="utf-8")).items():
            assert texts.get(english, chinese) == chinese, f"{path.name} translates {english!r} differently"
            texts[english] = chinese
    return texts


def test_every_text_has_a_translation() -> None:
    chinese = chinese_texts()
    missing = {text: name for text, name in used_texts().items() if text not in chinese}
    assert missing == {}, "add the Chinese text to src/ariane/console/texts/translations/zh/<area>.json"


def test_no_translation_is_unused() -> None:
    assert sorted(chinese_texts().keys() - used_texts().keys()) == []


@pytest.mark.parametrize("path", TRANSLATIONS, ids=lambda path: path.stem)
def test_translations_have_the_same_placeholders(path: Path) -> None:
    for english, chinese in json.loads(path.read_text(encoding="utf-8")).items():
        assert sorted(PLACEHOLDER.findall(english)) == sorted(PLACEHOLDER.findall(chinese)), english
        assert chinese.strip(), english


def test_translations_are_chinese() -> None:
    # Names, units and abbreviations are the same in both languages.
    chinese = chinese_texts().items()
    same = [
        english
        for english, text in chinese
        if not CHINESE.search(text) and english != text and text not in PRODUCT_NAMES
    ]
    assert same == []


def test_the_check_reads_templates_and_python() -> None:
    assert list(
        template_texts('{{ _("Topics") }}{% set x = _("%(n)s rows", n=1) %}{{ _(name) }}{{ _n("topic", "topics", 2) }}')
    ) == [
        "Topics",
        "%(n)s rows",
        "topics",
    ]
    assert list(python_texts('a = _("Created.")\nb = gettext_noop("viewer")\nc = _(a)\nd = other("x")')) == [
        "Created.",
        "viewer",
    ]
