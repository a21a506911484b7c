"""docs/api.md documents every public name of the client packages, by a directive for it or for its module."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

import ariane
import ariane.blocking
import ariane.testing
from ariane.client.sender import MessageSender

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
DIRECTIVES = set(re.findall(r"^::: (\S+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
PACKAGES = (ariane, ariane.blocking, ariane.testing)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_documented(package: ModuleType):
    names = package.__all__
    assert len(names) >= 8
    assert [name for name in names if not is_documented(getattr(package, name))] == []


def test_the_test_detects_a_missing_name():
    assert not is_documented(MessageSender)


def is_documented(value: object) -> bool:
    if isinstance(value, ModuleType):
        return value.__name__ in DIRECTIVES
    module, name = value.__module__, value.__qualname__
    return bool({module, f"{module}.{name}"} & DIRECTIVES)
