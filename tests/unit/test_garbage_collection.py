"""Full collections of a server visit new objects only, and free cycles that were frozen."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from ariane.cli.servers.process.garbage_collection import FULL, POSTPONED_MAX, FrozenSurvivors

GROWTH_MAX = 50_000


@pytest.fixture
def survivors() -> Iterator[FrozenSurvivors]:
    survivors = FrozenSurvivors(thaw_every=3, growth_max=GROWTH_MAX)
    survivors.start()
    yield survivors
    survivors.stop()


def visited_by_the_next_collection() -> int:
    return len(gc.get_objects(generation=FULL))


@pytest.mark.usefixtures("survivors")
def test_a_full_collection_visits_no_object_that_survived_the_last_one() -> None:
    """With 30,000 topics a full collection took 0.15 s, sixteen times while they were created."""
    topics = [[number] for number in range(100_000)]
    gc.collect()
    assert visited_by_the_next_collection() < 1_000
    assert gc.get_freeze_count() > len(topics)


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def frozen_garbage() -> weakref.ref[Cycle]:
    """Return a reference to a cycle that was frozen before it became garbage, by the first of three collections."""
    cycle = Cycle()
    gc.collect()
    return weakref.ref(cycle)


@pytest.mark.usefixtures("survivors")
def test_frozen_cycles_are_freed_by_a_later_collection() -> None:
    garbage = frozen_garbage()
    gc.collect()
    assert garbage() is not None
    gc.collect()  # the third one visits all objects
    assert garbage() is None


@pytest.mark.long(
    "tests/unit/test_garbage_collection.py::test_a_full_collection_visits_no_object_that_survived_the_last_one",
    "tests/unit/test_garbage_collection.py::test_frozen_cycles_are_freed_by_a_later_collection",
)
@pytest.mark.usefixtures("survivors")
@pytest.mark.parametrize("are_freed", [True, False])
def test_frozen_objects_are_not_visited_while_there_are_many_more_than_at_the_start(are_freed: bool) -> None:
    """A collection took 1.2 s while clients held requests of POP."""
    held = [[number] for number in range(GROWTH_MAX + 1)]
    garbage = frozen_garbage()
    for _ in range(2):
        gc.collect()
    assert garbage() is not None
    if are_freed:
        held.clear()
    for _ in range(3 if are_freed else 3 * POSTPONED_MAX):
        assert garbage() is not None
        gc.collect()
    assert garbage() is None, "after a while they are visited nevertheless"
