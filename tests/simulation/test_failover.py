"""Failover in virtual time: the real agents and decisions over a small model of a replicated log, under faults of members, network,
disks, clocks and the coordination service. Rules are removed one at a time, and each time a seed finds it.

`ARIANE_SEEDS=10` makes it longer; `python tests/failover_faults.py MINUTES` runs for a time and prints figures.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from failover_faults import PLANTED, find, simulate

SEEDS = 6 * int(os.environ.get("ARIANE_SEEDS", "1"))
TRIES = 12


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("ariane.failover")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def test_every_acknowledged_record_survives() -> None:
    results = [simulate(seed) for seed in range(SEEDS)]
    assert sum(result.epochs for result in results) > 2 * SEEDS, "the faults cause no failover"
    assert sum(result.acknowledged for result in results) > 50 * SEEDS
    assert sum(result.is_unavailable for result in results) < SEEDS / 2


def test_a_promotion_may_take_longer_than_a_lease() -> None:
    for seed in range(3):
        simulate(seed, prepare_s=11.0)


def test_equal_seeds_give_equal_runs() -> None:
    assert simulate(3) == simulate(3)


@pytest.mark.parametrize("planted", PLANTED)
def test_a_removed_rule_is_found(planted: str) -> None:
    seed, invariant = find(planted, TRIES)
    assert seed >= 0, f"{TRIES} seeds did not find: {planted}"
    assert invariant in PLANTED[planted][1].split()
