"""deploy/systemd: commands that exist, and units that `systemd-analyze security` rates as hardened."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from ariane.cli.main import app

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
EXPOSURE_MAX = 3.0


@pytest.mark.parametrize("name", SERVICES)
def test_each_command_and_its_options_exist(name: str) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNITS / name)
    program, *words = unit["Service"]["ExecStart"].split()
    assert program == "/opt/ariane/bin/ariane"
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", ()):
        command = command.commands[words.pop(0)]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options
    assert command.name in ("namesrv", "broker", "proxy", "console", "create")


@pytest.mark.parametrize("name", SERVICES)
def test_units_are_hardened(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze of systemd")
    shutil.copytree(UNITS, tmp_path / "etc" / "systemd" / "system")
    unit = name.replace("@.", "@broker-a.")
    command = ["systemd-analyze", "security", "--offline=true", f"--root={tmp_path}", unit]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    level = re.search(rf"exposure level for {re.escape(unit)}: ([\d.]+)", result.stdout)
    assert level, result.stdout + result.stderr
    assert float(level[1]) < EXPOSURE_MAX, result.stdout
