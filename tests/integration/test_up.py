"""`ariane up` as a process: servers restart after kill -9 and never outlive their parent; the console is a part of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ariane.testing.java import free_ports


@contextmanager
def up(home: Path, ports: tuple[int, int], *options: str) -> Iterator[subprocess.Popen[str]]:
    arguments = ["--home", str(home), "--namesrv-port", str(ports[0]), "--broker-port", str(ports[1])]
    arguments += ["--grpc-port", "0"]
    arguments += options or ["--no-console"]
    with (home.parent / "up.out").open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "ariane.cli", "up", *arguments], stdout=out, stderr=out, text=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def until(reached: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def said(home: Path) -> str:
    return (home.parent / "up.out").read_text()


def pid(home: Path, name: str) -> int:
    return int((home / f"{name}.pid").read_text())


def alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{number}/stat")
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_a_killed_broker_restarts_on_the_same_port_and_sigterm_stops_everything(home: Path):
    ports = free_ports()
    with up(home, ports) as process:
        until(lambda: "ready     namesrv" in said(home))
        first = pid(home, "broker")
        os.kill(first, signal.SIGKILL)
        until(lambda: "broker restarted" in said(home))
        second = pid(home, "broker")
        assert second != first
        assert f"broker (pid {first}) ended: SIGKILL; restarting" in said(home)
        socket.create_connection(("127.0.0.1", ports[1]), timeout=5).close()
        name_server = pid(home, "namesrv")
        process.terminate()
        assert process.wait(30) == 0
    assert not alive(second)
    assert not alive(name_server)
    assert sorted(path.name for path in home.glob("*.pid")) == ["up.pid"]


def test_clients_of_rocketmq_5_have_a_port(home: Path):
    with up(home, free_ports()) as process:
        until(lambda: "ready     broker for clients of RocketMQ 5: 127.0.0.1:" in said(home))
        port = int(said(home).split("for clients of RocketMQ 5: 127.0.0.1:")[1].split()[0])
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        process.terminate()
        assert process.wait(30) == 0


def test_no_server_outlives_a_killed_parent(home: Path):
    with up(home, free_ports()) as process:
        until(lambda: "ready     namesrv" in said(home))
        servers = [pid(home, "broker"), pid(home, "namesrv")]
        process.kill()
        process.wait(30)
        until(lambda: not any(map(alive, servers)))
    assert not (home / "store" / "abort").exists(), "the broker stopped in order"


def test_a_port_in_use_is_named(home: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with up(home, (port, free_ports()[1])) as process:
            assert process.wait(30) == 1
    assert str(port) in said(home)
    assert "--namesrv-port" in said(home)


def test_the_console_starts_after_the_broker_and_restarts_when_it_is_killed(home: Path):
    pytest.importorskip("uvicorn", reason="the extra console is not installed")
    with up(home, free_ports(), "--console-port", "0") as process:
        until(lambda: "console   pid" in said(home))
        assert said(home).index("ready     namesrv") < said(home).index("console   pid")
        url = re.search(r"http://127\.0\.0\.1:\d+", said(home))
        assert url
        assert urllib.request.urlopen(url[0], timeout=10).status == 200
        os.kill(pid(home, "console"), signal.SIGKILL)
        until(lambda: "console restarted" in said(home))
        assert urllib.request.urlopen(url[0], timeout=10).status == 200
        process.terminate()
        assert process.wait(30) == 0
    assert sorted(path.name for path in home.glob("*.pid")) == ["up.pid"]


def test_a_console_that_cannot_start_is_reported_and_the_broker_continues(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Found before the installed packages, so that the console's process fails when it imports its server.
    for package in ("fastapi", "uvicorn", "python_multipart"):
        (tmp_path / "broken" / package).mkdir(parents=True)
        (tmp_path / "broken" / package / "__init__.py").write_text("raise ImportError('a damaged installation')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "broken"), os.environ.get("PYTHONPATH", "")]))
    with up(home, free_ports(), "--console-port", "0") as process:
        until(lambda: "console   off: " in said(home))
        assert "a damaged installation" in said(home)
        os.kill(pid(home, "broker"), signal.SIGKILL)
        until(lambda: "broker restarted" in said(home))
        process.terminate()
        assert process.wait(30) == 0


def test_a_port_of_the_console_in_use_is_named(home: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with up(home, free_ports(), "--console-port", port) as process:
            assert process.wait(30) == 1
    assert port in said(home)
    assert "--console-port" in said(home)


def test_with_tls_the_printed_lines_are_what_a_client_needs(home: Path):
    with up(home, free_ports(), "--tls", "--no-console"):
        until(lambda: "export ARIANE_TLS_CA_FILE=" in said(home))
        lines = dict(re.findall(r"^export (\w+)=(.+)$", said(home), re.MULTILINE))
        assert lines.keys() == {"NAMESRV_ADDR", "ARIANE_TLS", "ARIANE_TLS_CA_FILE"}
        command = [sys.executable, "-m", "ariane.cli", "topic", "list"]
        plain = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        assert subprocess.run(command, env=plain | lines, check=False).returncode == 0
        del lines["ARIANE_TLS"], lines["ARIANE_TLS_CA_FILE"]
        assert subprocess.run(command, env=plain | lines, check=False).returncode == 1
    assert "Listening" in (home / "logs" / "namesrv.log").read_text()
    assert {path.stat().st_mode & 0o777 for path in (home / "tls").iterdir()} == {0o600}


@pytest.mark.parametrize("options", [(), ("--tls",)], ids=["plain", "tls"])
def test_the_endless_demo_consumes_orders_and_feeds_its_slave(
    home: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("JAVA_HOME", str(home))  # no pipeline: Spark takes a minute of CPU time
    with up(home, free_ports(), "--demo", "--no-console", *options) as process:
        until(lambda: re.search(r"consumed [1-9]", said(home)) is not None)
        until(lambda: "slave     pid" in said(home))
        until(lambda: "Following the master" in (home / "logs" / "slave.log").read_text())
        process.terminate()
        assert process.wait(30) == 0
    assert "pipeline  off:" in said(home)
    # Ports of five digits and the longest figures of a minute fit a terminal.
    own = [line for line in said(home).splitlines() if str(home) not in line and "off:" not in line]
    assert max(map(len, own)) <= 80, own


@pytest.mark.long(
    "tests/integration/test_broker_set_failover.py::test_a_killed_master_is_replaced_and_returns_without_its_last_records",
)
@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (Debian: etcd-server)")
def test_a_killed_master_of_the_failover_demo_loses_nothing(home: Path):
    options = ("--demo", "--failover", "--exit", "--kills", "1", "--kill-every", "1", "--tls")
    with up(home, (0, 0), *options) as process:
        assert process.wait(120) == 0, said(home)
    lines = said(home).splitlines()
    report = json.loads(lines[-1])
    assert (report["kills"], report["lost"]) == (1, 0)
    assert report["acknowledged"] > 0
    assert max(len(line) for line in lines[:-1] if str(home) not in line) <= 80, lines
    assert sorted(path.name for path in home.glob("*.pid")) == ["up.pid"]


@pytest.mark.long("tests/integration/test_up.py::test_the_endless_demo_consumes_orders_and_feeds_its_slave")
def test_two_brokers_with_slaves_serve_one_topic(home: Path):
    with up(home, (0, 0), "--brokers", "2", "--slaves", "--no-console") as process:
        until(lambda: "slave-b   pid" in said(home))
        namesrv = re.search(r"ready     namesrv (\S+)", said(home))
        assert namesrv
        command = [sys.executable, "-m", "ariane.cli", "cluster", "status", "--json", "-n", namesrv[1]]
        until(lambda: subprocess.run(command, capture_output=True, check=False).stdout.count(b'"broker-b"') == 2)
        process.terminate()
        assert process.wait(30) == 0
