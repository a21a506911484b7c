"""Many consumer groups in one process for a while: nothing is lost, and nothing grows. `benches/many_groups.py` runs an hour."""

from __future__ import annotations

import importlib
import json
import logging
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ariane.client.consuming.consume_rates import ConsumeRates
from ariane.testing.virtual.virtual_cluster import virtual_cluster

BENCHES = Path(__file__).parents[2] / "benches"
MINUTES = (
    "9"  # the first sample is at a sixth: by then the rates of a minute and the first timers have reached their size
)


@pytest.fixture
def many_groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The bench's module, with allocations traced and without log lines."""
    monkeypatch.syspath_prepend(BENCHES)
    logger = logging.getLogger("ariane")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    tracemalloc.start(1)
    yield importlib.import_module("many_groups")
    tracemalloc.stop()
    logger.setLevel(level)


@pytest.mark.long("tests/simulation/test_many_groups.py::test_a_leak_is_detected")
def test_many_groups_consume_everything_and_nothing_grows(tmp_path: Path) -> None:
    """In a new process: a cache that other tests have half filled would grow here without its old size being known."""
    out = tmp_path / "result.json"
    size = ("--groups", "12", "--topics", "6", "--queues", "5", "--minutes", MINUTES)
    command = (sys.executable, str(BENCHES / "many_groups.py"), *size, "--out", str(out))
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(out.read_text())
    assert result["faults"] == []
    assert result["messages"] > 20


def test_a_leak_is_detected(many_groups: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    retained: list[object] = []
    record_pull = ConsumeRates.record_pull

    def leak(self: ConsumeRates, topic: str, messages: int, took_s: float) -> None:
        retained.append(ConsumeRates(lambda: 0.0))
        record_pull(self, topic, messages, took_s)

    monkeypatch.setattr(ConsumeRates, "record_pull", leak)
    with virtual_cluster() as world:
        groups = many_groups.ManyGroups(world, groups=12, topics=6, queues=5)
        world.run(groups.run((1, 2)))
    assert any(fault.startswith("objects grew from") for fault in many_groups.growth(groups.samples))
