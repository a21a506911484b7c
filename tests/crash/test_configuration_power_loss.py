"""Topics, groups, locks, deletions and cloned offsets after a crash: acknowledged changes are present with all effects."""

from __future__ import annotations

import errno
import random

import promises
import pytest

from ariane.testing.disk import SurvivingData

# What remains is between nothing and a torn write. The planted faults are found without these.
LONG = (SurvivingData.NONE, SurvivingData.ALL, SurvivingData.SOME)
LOST = pytest.mark.long("tests/crash/test_planted_faults.py::test_each_planted_fault_is_detected")


@pytest.mark.parametrize(
    ("kept", "seed"),
    [pytest.param(*fate, marks=[LOST] * (fate[0] in LONG)) for fate in promises.FATES],
)
def test_power_lost_at_every_change_of_the_configuration(kept: SurvivingData, seed: int) -> None:
    cases = promises.configuration_changed(
        lambda disk, cut: disk.after_power_loss(kept, random.Random(seed * 1000 + cut))
    )
    assert cases > 150


@pytest.mark.parametrize(
    "config", [pytest.param(promises.CONFIG, marks=LOST), promises.ASYNC_CONFIG], ids=["sync", "async"]
)
def test_killed_at_every_change_of_the_configuration(config: promises.StoreConfig) -> None:
    assert promises.configuration_changed(lambda disk, cut: disk.after_kill(), config) > 120


def test_each_step_changes_the_configuration_as_named() -> None:
    states = dict(zip([name for name, _ in promises.CONFIGURING], promises.configured_states()[1:], strict=True))
    assert states["a topic is created"].topics == {"A": 2}
    assert states["a message creates a topic"].topics == {"A": 2, "B": 2}
    assert states["a message is sent"].bodies == {"A": {b"a1"}, "B": {b"b1"}}
    assert states["a group is created by use"].groups.keys() >= {"G", "H"}
    assert states["another queue is locked"].locks["G"].keys() == {"one", "two"}
    queue = states["one is visible again later"].taken["G"]["A"][0]
    assert (queue.next, queue.taken) == (3, ((0, 3, 4, 1), (2, 1, 2, 1)))
    assert states["one is given back"].taken["G"]["A"][0].taken == ((0, 3, 4, 1), (2, 5, 5, 0))
    assert states["a topic is deleted"].topics == {"B": 2}
    assert states["a topic is deleted"].taken == {}
    assert states["a topic is deleted"].offsets == {}
    assert states["an offset in it is saved"].offsets == {"A@G": {0: 1}}
    assert states["a message is sent to it"].bodies["A"] == {b"a2"}
    assert states["a group is deleted with its offsets"].offsets == {"A@G": {0: 1}, "B@K": {0: 1}}
    assert states["every topic with messages is deleted"].bodies == {}
    assert states["the broker stops"].bodies == {"B": {b"b2"}}


@pytest.mark.parametrize("kind", ["write", "fsync", "fsync_dir", "create", "rename"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_write_of_the_configuration_is_never_acknowledged(kind: str, code: int) -> None:
    assert promises.configuration_fails_in_turn(kind, code) > 0
