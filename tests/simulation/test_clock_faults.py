"""Inferred clock offsets under planted faults: in each of them the bounds hold for at least 99.9 % of the corrected records."""

from __future__ import annotations

from functools import reduce
from operator import add

import pytest

import clock_model as model

SEEDS = 15
HOLD = 0.999
# Least part of the records whose times are corrected: not those around a step, and not those that contradict the others.
CORRECTED = {"step": 0.75, "suspended": 0.7, "outliers": 0.98}


@pytest.mark.parametrize("fault", model.FAULTS)
def test_bounds_hold_under_a_fault(fault: str) -> None:
    tallies = []
    for seed in range(SEEDS):
        records = model.simulate(fault, seed)
        tallies.append(model.tally(records, model.clocks_of(records)))
    total = reduce(add, tallies)
    assert total.corrected / total.records >= CORRECTED.get(fault, 0.999)
    assert total.held / total.corrected >= HOLD
    assert total.width_ms / total.corrected < 60, "the bounds say nothing"


@pytest.mark.parametrize(
    ("fault", "constant", "value"), [("drift", "DRIFT_MS", 0), ("outliers", "TRIMMED_FROM", 10_000)]
)
def test_bounds_do_not_hold_without_their_allowance(
    monkeypatch: pytest.MonkeyPatch, fault: str, constant: str, value: int
) -> None:
    """The simulation contains the fault: without the allowance for it, the bounds do not hold."""
    monkeypatch.setattr(model, constant, value)
    records = [model.simulate(fault, seed, 4_000) for seed in range(3)]
    total = reduce(add, (model.tally(some, model.clocks_of(some)) for some in records))
    assert total.held / total.records < HOLD
