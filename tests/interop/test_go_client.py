"""Apache's Go client, unmodified, at our servers that accept only encrypted connections."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import pytest

from ariane.testing import LocalCluster

pytestmark = pytest.mark.long(
    "tests/interop/test_tls_with_java.py::test_java_clients_verify_and_are_verified",
    "tests/interop/test_client_against_java.py::test_java_reads_what_we_compress_and_send_over_tls",
)

SOURCES = Path(__file__).parent / "go_client"
COUNT = 20
PATIENCE_S = 120.0


def go(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["go", *arguments], cwd=SOURCES, capture_output=True, text=True, check=False)


@functools.cache
def unavailable() -> str | None:
    """Return why the client cannot be built on this machine, or None if it can."""
    if shutil.which("go") is None:
        return "go not found on the PATH (apt-get install golang-go)"
    listed = go("list", "-deps", ".")  # downloads the modules
    return f"cannot fetch its modules: {listed.stderr.strip().splitlines()[-1]}" if listed.returncode else None


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program. The first build compiles the library of Go, too: 30 s of CPU time, 40 s with optimizations."""
    if reason := unavailable():
        pytest.skip(f"Go client: {reason}")
    program = tmp_path_factory.mktemp("go") / "client"
    built = go("build", "-gcflags=all=-N -l", "-o", str(program), ".")
    assert built.returncode == 0, built.stderr
    return program


def test_messages_are_sent_and_consumed_encrypted(client: Path) -> None:
    with LocalCluster(tls_server_mode="enforcing") as cluster:
        run = [str(client), cluster.namesrv, "T", str(COUNT)]
        ended = subprocess.run(run, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr[-4000:]
    lines = [line.split(maxsplit=2) for line in ended.stdout.splitlines()]
    sent = {line[1]: f"message {number}" for number, line in enumerate(line for line in lines if line[0] == "sent")}
    assert len(sent) == COUNT
    assert {message_id: body for kind, message_id, *rest in lines for body in rest if kind == "received"} == sent
