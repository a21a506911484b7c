"""The native load program: its own tests, and what it counts against a broker's own counts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ariane.testing import LocalCluster

NATIVE = Path(__file__).resolve().parents[2] / "native"
RUSTUP_BIN = Path.home() / ".cargo" / "bin"
QUEUES = 3


def environment() -> Mapping[str, str]:
    """Return the environment of cargo: without network it fails soon."""
    path = f"{os.environ.get('PATH', '')}{os.pathsep}{RUSTUP_BIN}"
    return {"CARGO_NET_RETRY": "0", "CARGO_HTTP_TIMEOUT": "15", **os.environ, "PATH": path}


def cargo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run cargo in the workspace."""
    program = shutil.which("cargo", path=environment()["PATH"])
    if program is None:
        pytest.skip("cargo is not installed; see native/README.md")
    command = [program, *arguments, "--locked"]
    return subprocess.run(command, cwd=NATIVE, env=environment(), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def load_program() -> Path:
    """The path of the load program, built without optimization, which takes seconds."""
    fetched = cargo("fetch")
    if fetched.returncode:
        pytest.skip(f"cargo cannot download the dependencies: {fetched.stderr.strip().splitlines()[-1]}")
    built = cargo("build", "--package", "ariane-load", "--message-format", "json")
    assert built.returncode == 0, built.stderr
    artifacts = [json.loads(line) for line in built.stdout.splitlines()]
    return Path(next(a["executable"] for a in artifacts if a.get("executable")))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as servers:
        yield servers.broker.addr


def run(program: Path, *arguments: object, status: int = 0) -> dict[str, Any]:
    """Run the load program and return its report."""
    command = [str(program), *map(str, arguments), "--queues", str(QUEUES), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.long(
    "tests/integration/test_load_program.py::test_everything_that_was_sent_is_read",
)
def test_its_own_tests_pass(load_program: Path) -> None:
    done = cargo("test", "--package", "ariane-load")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test result: ok." in done.stdout


JSON = pytest.mark.long("tests/integration/test_load_program.py::test_everything_that_was_sent_is_read")


@pytest.mark.parametrize("header", [pytest.param("json", marks=JSON), "binary"])
def test_everything_that_was_sent_is_read(load_program: Path, broker: str, header: str) -> None:
    to = ("--broker", broker, "--topic", f"Load-{header}", "--header", header)
    plain = run(load_program, "send", *to, "--create-topic", "--messages", 1000, "--connections", 2, "--keys")
    tagged = run(load_program, "send", *to, "--code", 10, "--messages", 300, "--tag", "A", "--size", 1000)
    batches = run(load_program, "send", *to, "--code", 320, "--batch", 10, "--messages", 200, "--tag", "B")
    assert [report["messages"] for report in (plain, tagged, batches)] == [1000, 300, 200]
    assert [report["codes"] for report in (plain, tagged, batches)] == [{"0": 1000}, {"0": 300}, {"0": 20}]
    everything = run(load_program, "pull", *to, "--connections", 2, "--crc", "--expect", 1500)
    assert everything["queues_at_end"] == QUEUES
    assert everything["bytes"] > 1000 * 128 + 300 * 1000 + 200 * 128
    of_two_tags = run(load_program, "pull", *to, "--tag", "A || B")
    assert of_two_tags["messages"] == 500
    assert run(load_program, "pull", *to, "--from", 400)["messages"] == 1500 - 400 * QUEUES


def test_tls_needs_a_program_that_was_built_with_it(load_program: Path, broker: str) -> None:
    command = [str(load_program), "send", "--broker", broker, "--topic", "Load", "--tls"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "--features tls" in done.stderr


def test_errors_are_counted_and_decide_the_exit_status(load_program: Path, broker: str) -> None:
    report = run(load_program, "pull", "--broker", broker, "--topic", "Unknown", status=1)
    assert report["codes"] == {"17": QUEUES}
    assert "Unknown" in report["remarks"]["17"]
