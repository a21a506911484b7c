"""`ariane bench` as a process with client processes: every mode and method, failures, Ctrl-C, a client that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ariane.testing import LocalCluster

MESSAGE_MAX = 10_000
LIMIT_S = 120.0
COMMAND = [sys.executable, "-m", "ariane.cli", "bench"]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("bench"), max_message_size=MESSAGE_MAX) as running:
        yield running


def bench(servers: LocalCluster | str, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    namesrv = servers if isinstance(servers, str) else servers.namesrv
    command = [*COMMAND, *arguments, "-n", namesrv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done


def measured(servers: LocalCluster, *arguments: str, status: int = 0) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(bench(servers, *arguments, "--json", status=status).stdout)
    result["by_role"] = {one["role"]: one for one in result["throughputs"]}
    return result


def test_sends_of_every_method_and_then_consumes(servers):
    arguments = ("-t", "sends", "-c", "200", "--warm-up", "50", "--queues", "2")
    first = bench(servers, "send", "-m", "sync", *arguments)
    assert "Note: created topic sends with 2 queues per broker" in first.stderr
    assert f"ariane admin deleteTopic -n '{servers.namesrv}' -c DefaultCluster -t sends" in first.stderr
    lines = first.stdout.splitlines()
    assert lines[0] == "send · topic sends · 2 queues"
    assert any(
        line.startswith("broker  broker-a 127.0.0.1:") and "Ariane V4_9_4, ASYNC_FLUSH" in line for line in lines
    )
    assert any(line.split()[:2] == ["send", "150"] for line in lines)
    for method, latencies in (("async", 150), ("batch", 5), ("one-way", None)):
        result = measured(servers, "send", "-m", method, *arguments)
        send = result["by_role"]["send"]
        count = 136 if method == "batch" else 150  # batches of 32: the second one contains messages of the warm-up
        assert (send["completed"], send["messages"], result["failed"], result["missing"]) == (200, count, 0, 0)
        assert send["messages_per_s"] > 0
        assert (send["latency"] and send["latency"]["count"]) == latencies
        assert not result["is_topic_created"]
        assert "secret_key" not in result["plan"]
    consumed = bench(servers, "consume", "-t", "sends", "--clients", "2", "--json")
    assert "stores only 800 messages" in consumed.stderr
    (consume,) = json.loads(consumed.stdout)["throughputs"]
    assert (consume["completed"], consume["errors"]) == (800, {})
    assert (
        "--queues = 3: topic sends has 2 on broker-a"
        in bench(servers, "send", "-t", "sends", "--queues", "3", status=1).stderr
    )


def test_both_measures_the_way_from_sender_to_consumer(servers):
    result = measured(
        servers, "both", "-t", "both", "-c", "600", "--clients", "2", "--consumers", "2", "--rate", "2000/s"
    )
    send, consume = result["by_role"]["send"], result["by_role"]["consume"]
    assert (send["completed"], send["messages"], consume["completed"], consume["messages"]) == (600, 540, 600, 540)
    assert (result["missing"], consume["duplicates"], send["clients"], consume["clients"]) == (0, 0, 2, 2)
    for latency in (send["latency"], consume["latency"]):
        assert 0 < latency["min_ms"] <= latency["p50_ms"] <= latency["p99_ms"] <= latency["max_ms"]
    assert "when it was due (--rate)" in send["latency_meaning"]
    # A second run in the same topic does not count the messages of the first.
    again = measured(servers, "both", "-t", "both", "-c", "100")
    assert (again["by_role"]["consume"]["completed"], again["missing"]) == (100, 0)


def test_requests_are_answered(servers):
    result = measured(servers, "request", "-t", "requests", "-c", "200")
    request, reply = result["by_role"]["request"], result["by_role"]["reply"]
    assert (request["completed"], reply["completed"], result["failed"]) == (200, 200, 0)
    assert request["latency"]["p99_ms"] > 0


def test_failures_are_counted_by_kind_and_decide_the_exit_status(servers):
    arguments = ("send", "-t", "failures", "-c", "40", "--size", "20k")
    send = measured(servers, *arguments, status=1)["by_role"]["send"]
    assert send["errors"]["MESSAGE_ILLEGAL (13)"]["count"] == 40
    assert (send["completed"], send["messages_per_s"], send["latency"]) == (0, None, None)
    assert "send: 40 failed: MESSAGE_ILLEGAL (13): " in bench(servers, *arguments, status=1).stdout


def test_a_topic_or_name_server_that_does_not_exist_is_an_error(servers):
    assert "no such topic" in bench(servers, "consume", "-t", "nothing", status=1).stderr
    bench(servers, "send", "-t", "empty", "-c", "2", "--size", "20k", status=1)
    assert "stores no messages" in bench(servers, "consume", "-t", "empty", status=1).stderr
    assert "Error: " in bench("127.0.0.1:1", "send", status=1).stderr


def start_slow(servers: LocalCluster, topic: str) -> subprocess.Popen[str]:
    """Start a benchmark that would take an hour, and wait until its client works."""
    command = [
        *COMMAND,
        "send",
        "-t",
        topic,
        "--rate",
        "100/s",
        "-c",
        "360000",
        "--warm-up",
        "0",
        "-n",
        servers.namesrv,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + LIMIT_S
    while len(stored(servers, topic)) < 10:
        if time.monotonic() > deadline_s or process.poll() is not None:
            process.kill()
            raise AssertionError(process.communicate())
    return process


def stored(servers: LocalCluster, topic: str) -> bytes:
    command = [sys.executable, "-m", "ariane.cli", "cat", topic, "-e", "-f", ".", "-n", servers.namesrv]
    return subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False).stdout


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def test_ctrl_c_prints_what_was_measured_until_then(servers):
    process = start_slow(servers, "interrupted")
    workers = children(process.pid)
    assert workers
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "Interrupted: these are the measurements until then." in output
    (row,) = (line for line in output.splitlines() if line.startswith("send   "))
    assert int(row.split()[1].replace(",", "")) >= 10
    assert "Interrupted." in errors
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_a_client_that_dies_is_a_failure(servers):
    process = start_slow(servers, "killed")
    (worker,) = children(process.pid)
    os.kill(worker, signal.SIGKILL)
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, errors
    assert "no measurements: send client 1: ended without a report (signal 9)" in output, errors
