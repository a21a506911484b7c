"""The official Python client of RocketMQ 5, unmodified, at the gRPC port of our broker."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ariane.testing import LocalCluster

pytestmark = pytest.mark.interop

CLIENT = "rocketmq-python-client==5.1.2"
PROGRAM = Path(__file__).parent / "python_client" / "client_program.py"


@pytest.fixture(scope="session")
def client_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the Python of an environment with the client: its releases of grpcio and protobuf may differ from ours."""
    home = tmp_path_factory.getbasetemp().parent / "rocketmq-5-client"
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of pytest-xdist share it
        python = home / "bin" / "python"
        if not (home / "installed").exists():
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
            installed = subprocess.run(
                [str(python), "-m", "pip", "install", "-q", CLIENT], capture_output=True, text=True, check=False
            )
            if installed.returncode:
                pytest.skip(f"pip could not install {CLIENT}: {installed.stderr[-200:]}")
            (home / "installed").touch()
    return str(python)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    pytest.importorskip("grpc", reason="the extra grpc is not installed")
    with LocalCluster(grpc_server_enable=True, transaction_check_interval=500, transaction_time_out=500) as cluster:
        for topic in ("Kinds", "Transactions"):
            cluster.create_topic(topic)
        yield cluster.broker.grpc_addr


def run(python: str, address: str, program: str, **values: object) -> list[dict[str, Any]]:
    """Return the events of a program, which has to end by itself."""
    arguments = [f"{name}={value}" for name, value in values.items()]
    done = subprocess.run(
        [python, str(PROGRAM), address, "", "", program, *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events and events[-1] == {"event": "done"}, done.stdout + done.stderr
    return events[:-1]


def test_each_kind_of_message_is_sent_received_and_recalled(client_python: str, address: str) -> None:
    *sent, recalled = run(client_python, address, "produce", topic="Kinds")
    assert recalled == {"event": "recalled", "id": recalled["expected"], "expected": recalled["expected"]}
    assert [bool(event["recall"]) for event in sent] == [False, False, True]

    received = run(client_python, address, "simple", topic="Kinds", group="simple", count=3)
    by_body = {event["body"]: event for event in received}
    assert by_body.keys() == {"normal", "ordered", "delayed"}
    assert [by_body[body]["id"] for body in ("normal", "ordered", "delayed")] == [event["id"] for event in sent]
    normal = by_body["normal"]
    assert (normal["tag"], normal["keys"], normal["properties"]) == ("A", ["key-1"], {"name": "value"})
    assert by_body["ordered"]["group"] == "group-1"
    assert not any(event["is_corrupted"] for event in received)

    pushed = run(client_python, address, "push", topic="Kinds", group="push", count=3)
    assert sorted((event["body"], event["attempt"]) for event in pushed) == [
        (body, attempt) for body in ("delayed", "normal", "ordered") for attempt in (1, 2)
    ]


def test_transactions_are_committed_rolled_back_and_checked(client_python: str, address: str) -> None:
    (checked,) = run(client_python, address, "transactions", topic="Transactions")
    assert checked == {"event": "checked", "body": "checked"}
    received = run(client_python, address, "simple", topic="Transactions", group="transactions", count=2)
    assert sorted(event["body"] for event in received) == ["checked", "commit"]
