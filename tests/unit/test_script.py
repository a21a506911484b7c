"""The script `./ariane`, with a fake Python that prints its arguments: nothing is installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = {"core": "requirements.lock", "spark": "requirements-spark.lock", "dev": "requirements-dev.lock"}


def installed(venv: Path) -> None:
    """Make `venv` look complete to the script."""
    python = venv / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    for part, lock in PARTS.items():
        sums = [
            subprocess.check_output(["cksum"], input=(ROOT / name).read_bytes()) for name in (lock, "pyproject.toml")
        ]
        (venv / f".installed-{part}").write_bytes(f"{ROOT}\n".encode() + b"".join(sums))


def test_a_relative_directory_of_the_environment_is_relative_to_the_caller(tmp_path: Path) -> None:
    installed(tmp_path / "venv")
    for arguments in (["--version"], ["test", "-k", "x"]):
        done = subprocess.run(
            [ROOT / "ariane", *arguments],
            cwd=tmp_path, env=os.environ | {"ARIANE_VENV": "venv"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.split()[-len(arguments[1:]) or -1 :] == (arguments[1:] or arguments)


def test_all_tests_run_in_parallel_and_arguments_are_passed_on(tmp_path: Path) -> None:
    installed(tmp_path / "venv")
    environment = os.environ | {"ARIANE_VENV": str(tmp_path / "venv")}
    for arguments, expected in (([], "-n auto --maxprocesses 4"), (["tests/unit"], "tests/unit")):
        command = [ROOT / "ariane", "test", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == f"-m pytest {expected}\n"


def test_the_environment_of_another_clone_is_not_emptied(tmp_path: Path) -> None:
    other = tmp_path / "other"
    installed(other)
    (other / ".installed-core").write_text("/another/clone\n")
    link = tmp_path / "venv"
    link.symlink_to(other)
    environment = os.environ | {"ARIANE_VENV": str(link)}
    done = subprocess.run([ROOT / "ariane", "--version"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{link} is a link to {other}, which would be emptied" in done.stderr
    assert (other / "bin" / "python").exists()
