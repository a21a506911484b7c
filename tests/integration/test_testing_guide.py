"""docs/testing.md: its applications and tests run with pytest, in a process of their own that has only the installed plugins."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
FILES = dict(
    re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
)


def test_every_example_has_the_name_of_its_file() -> None:
    assert len(FILES) == PAGE.read_text(encoding="utf-8").count("```python\n") == 8


def test_the_examples_pass(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    tests = sum(len(re.findall(r"^\s*(?:async )?def test_", text, re.MULTILINE)) for text in FILES.values())
    assert f"{tests} passed" in done.stdout


def test_an_invalid_marker_is_an_error_of_the_test(tmp_path: Path) -> None:
    (tmp_path / "test_marker.py").write_text(
        "import pytest\n@pytest.mark.ariane_cluster(brokers=0)\ndef test_it(ariane_cluster): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert "brokers = 0" in done.stdout
    assert "1 error" in done.stdout
