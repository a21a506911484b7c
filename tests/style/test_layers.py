"""Import contracts between packages, checked by import-linter, and a proof that a violation is detected."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("importlinter")


def lint(directory: Path, source: Path) -> subprocess.CompletedProcess[str]:
    run = f"lint_imports(config_filename={str(ROOT / '.importlinter')!r}, no_cache=True)"
    program = (
        f"import sys; sys.path.insert(0, {str(source)!r}); from importlinter.cli import lint_imports; sys.exit({run})"
    )
    return subprocess.run(
        [sys.executable, "-c", program], cwd=directory, capture_output=True, text=True, check=False, timeout=120
    )


def test_every_import_contract_holds():
    done = lint(ROOT, ROOT / "src")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_the_architecture_page_lists_the_layers():
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    layers = contracts["importlinter:contract:layers"]["layers"].split("\n")
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = page.split("## Layers", 1)[1].split("```")[1].strip()
    # Packages of one layer begin their lines with "|", except the first.
    shown = "\n".join(re.split(r"\s{2,}", line)[0] for line in block.splitlines()).replace("\n| ", " | ")
    assert shown.split("\n") == [layer for layer in layers if layer]


def test_a_reverse_import_is_detected(tmp_path: Path):
    """Check the contracts on a copy of the packages in which the store imports the broker."""
    copy = tmp_path / "ariane"
    for path in (ROOT / "src" / "ariane").rglob("*.py"):
        target = copy / path.relative_to(ROOT / "src" / "ariane")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    with (copy / "store" / "disk" / "segments.py").open("a", encoding="utf-8") as source:
        source.write("\nimport ariane.broker.broker\n")
    done = lint(tmp_path, tmp_path)
    assert done.returncode != 0
    assert "ariane.store.disk.segments -> ariane.broker.broker" in done.stdout, done.stdout + done.stderr
