"""docs/api.md documents every public name of the client packages, and docs/client.md the defaults of settings."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

import ariane
import ariane.blocking
import ariane.testing
from ariane.client.sending.sender import MessageSender

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
DIRECTIVES = set(re.findall(r"^::: (\S+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
GUIDE = PAGE.with_name("client.md")
PACKAGES = (ariane, ariane.blocking, ariane.testing)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_documented(package: ModuleType):
    names = package.__all__
    assert len(names) >= 8
    assert [name for name in names if not is_documented(getattr(package, name))] == []


def test_the_tuning_table_of_the_guide_shows_the_defaults():
    rows = re.findall(r"^\| `(\w+Settings)\.(\w+)` \| ([^|]+) \|", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) >= 15
    for settings, name, default in rows:
        number, _, unit = default.strip().partition(" ")
        value = getattr(getattr(ariane, settings)(), name)
        assert str(value // 2**20 if unit == "MiB" else value).removesuffix(".0") == number, name


def test_the_test_detects_a_missing_name():
    assert not is_documented(MessageSender)


def is_documented(value: object) -> bool:
    if isinstance(value, ModuleType):
        return value.__name__ in DIRECTIVES
    module, name = value.__module__, value.__qualname__
    return bool({module, f"{module}.{name}"} & DIRECTIVES)
