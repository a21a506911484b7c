"""Many consumer groups in one process for a while: nothing is lost, and nothing grows. `benches/many_groups.py` runs an hour."""

from __future__ import annotations

import importlib
import logging
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ariane.client.rates import ConsumeRates
from ariane.testing.virtual_cluster import virtual_cluster

MINUTES = (2, 6)  # after two, the rates of a minute and the timers of the first requests have reached their size


@pytest.fixture
def many_groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The bench's module, with allocations traced and without log lines."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benches")
    logger = logging.getLogger("ariane")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    tracemalloc.start(1)
    yield importlib.import_module("many_groups")
    tracemalloc.stop()
    logger.setLevel(level)


def faults_of(many_groups: Any, minutes: tuple[int, int]) -> list[str]:
    with virtual_cluster() as world:
        groups = many_groups.ManyGroups(world, groups=12, topics=6, queues=5)
        faults: list[str] = world.run(groups.run(minutes))
    assert len(groups.sent) > 20
    return faults + many_groups.growth(groups.samples)


def test_many_groups_consume_everything_and_nothing_grows(many_groups: Any) -> None:
    assert faults_of(many_groups, MINUTES) == []


def test_a_leak_is_detected(many_groups: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    retained: list[object] = []
    record_pull = ConsumeRates.record_pull

    def leak(self: ConsumeRates, topic: str, messages: int, took_s: float) -> None:
        retained.append(ConsumeRates(lambda: 0.0))
        record_pull(self, topic, messages, took_s)

    monkeypatch.setattr(ConsumeRates, "record_pull", leak)
    faults = faults_of(many_groups, (1, 2))
    assert any(fault.startswith("objects grew from") for fault in faults)
