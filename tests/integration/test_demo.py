"""The demo end to end, encrypted: its broker is killed during the run, then the timeline is printed. Needs Java for Spark."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from ariane.pipeline.spark_session import java_fault
from ariane.testing.java import free_ports

DEMO_S = 240


@pytest.mark.long(
    "tests/integration/test_up.py::test_the_endless_demo_consumes_orders_and_feeds_its_slave",
    "tests/spark/test_pipeline_records.py::test_from_a_broker_to_the_reports",
    "tests/integration/test_local_cluster_kill.py::test_acknowledged_messages_survive_a_kill_under_load",
)
@pytest.mark.spark
@pytest.mark.timeout(DEMO_S + 60)
def test_a_killed_broker_loses_and_reorders_no_messages(tmp_path: Path):
    if find_spec("pyspark") is None:
        pytest.skip("needs pyspark: pip install 'ariane[spark]'")
    if fault := java_fault():
        pytest.skip(fault)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "ARIANE_HOME": str(tmp_path / "none")}
    namesrv, broker = map(str, free_ports())
    ports = ["--namesrv-port", namesrv, "--broker-port", broker, "--grpc-port", "0"]
    ariane = [sys.executable, "-m", "ariane.cli"]
    out, errors = tmp_path / "demo.out", tmp_path / "demo.err"
    with out.open("w") as output, errors.open("w") as reported:
        demo = subprocess.Popen(
            [*ariane, "up", "--tls", "--demo", "--exit", *ports], stdout=output, stderr=reported, env=environment
        )
    try:
        killed = kill_the_broker(demo, out, errors)
        status = demo.wait(DEMO_S)
    finally:
        if demo.poll() is None:
            demo.terminate()
            demo.wait(60)
    assert status == 0, out.read_text() + errors.read_text()
    assert f"broker (pid {killed}) ended: SIGKILL" in out.read_text()
    last = json.loads(out.read_text().splitlines()[-1])
    times = last.pop("produce_to_consume_ms")
    assert last == {"sent": 3000, "consumed": 6000, "journeys": 6000, "lost": 0, "out_of_order": 0}
    assert 0 < times["p50"] <= times["p99"]

    trace = subprocess.run(
        [*ariane, "trace", "--key", "ORDER-17", "--json"], capture_output=True, text=True, env=environment, check=True
    )
    journeys = [json.loads(line) for line in trace.stdout.splitlines()]
    seen = {(journey["tags"], journey["consumer_group"]) for journey in journeys}
    assert seen == {(step, group) for step in ("created", "paid", "shipped") for group in ("stock", "billing")}
    assert len(journeys) == 6


def kill_the_broker(demo: subprocess.Popen[bytes], out: Path, errors: Path) -> int:
    """Kill the broker with SIGKILL once orders are in flight. Return its pid."""
    deadline = time.monotonic() + 60
    while "sending" not in out.read_text():
        assert demo.poll() is None, out.read_text() + errors.read_text()
        assert time.monotonic() < deadline, out.read_text()
        time.sleep(0.02)
    time.sleep(0.5)
    started = re.search(r"broker +pid (\d+)", out.read_text())
    assert started, out.read_text()
    os.kill(int(started[1]), signal.SIGKILL)
    return int(started[1])
