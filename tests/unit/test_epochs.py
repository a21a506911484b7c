"""Epochs of a log: their file survives any crash, and two logs are compared by them."""

from __future__ import annotations

import contextlib
import random

import pytest

from ariane.errors import StoreCorrupt, StoreError
from ariane.store.disk.files import write_atomic
from ariane.store.log.epochs import (
    Epoch,
    EpochHistory,
    batch_end,
    common_end,
    epoch_at,
    open_epochs,
    trimmed,
    with_epoch,
)
from ariane.testing.disk import FakeDisk, PowerLost, SurvivingData

A, B, C = Epoch(5, 0, "a"), Epoch(7, 800, "b"), Epoch(9, 1000, "a")


def test_an_epoch_without_records_is_replaced() -> None:
    """Two switches without a write between them: records of epoch 6 belong to 6, not to 5."""
    assert with_epoch((A, B), Epoch(8, 800, "c")) == (A, Epoch(8, 800, "c"))
    assert with_epoch((A, B), C) == (A, B, C)
    with pytest.raises(StoreError, match="cannot follow"):
        with_epoch((A, B), Epoch(7, 900, "c"))


def test_a_record_has_the_epoch_in_which_it_was_written_and_no_batch_has_two() -> None:
    epochs = (B, C)
    assert epoch_at(epochs, 799) is None
    assert [epoch_at(epochs, offset) for offset in (800, 999, 1000, 5000)] == [B, B, C, C]
    assert batch_end(epochs, 0, 5000) == 800
    assert batch_end(epochs, 800, 5000) == 1000
    assert batch_end(epochs, 900, 950) == 950
    assert batch_end(epochs, 1000, 5000) == 5000


def test_the_epoch_of_the_first_record_remains_when_files_are_removed() -> None:
    assert trimmed((A, B, C), 0) == (A, B, C)
    assert trimmed((A, B, C), 799) == (A, B, C)
    assert trimmed((A, B, C), 800) == (B, C)
    assert trimmed((A, B, C), 5000) == (C,)
    assert trimmed((), 5000) == ()


@pytest.mark.parametrize(
    ("own", "own_end", "other", "other_end", "end"),
    [
        ((A,), 500, (A, B), 900, 500),  # behind
        ((A,), 850, (A, B), 900, 800),  # a former leader with records that the next one never had
        ((A, B), 900, (A, B), 900, 900),
        ((A, B), 950, (A, B, C), 2000, 950),
        ((A, B), 1200, (A, B, C), 2000, 1000),
        ((A, Epoch(6, 800, "c")), 900, (A, B), 900, 800),  # equal lengths, different records
        ((A, Epoch(7, 800, "c")), 900, (A, B), 900, 800),  # one number, used twice
        ((A, Epoch(7, 700, "b")), 900, (A, B), 900, 700),
        ((), 900, (), 700, 700),
        ((), 900, (B,), 1000, 800),
        ((C,), 1500, (C,), 1200, 1200),
        ((C,), 1500, (A, B), 1000, 0),  # nothing in common
    ],
)
def test_logs_are_equal_up_to_the_end_of_their_last_common_epoch(
    own: tuple[Epoch, ...], own_end: int, other: tuple[Epoch, ...], other_end: int, end: int
) -> None:
    assert common_end(own, own_end, other, other_end) == end
    assert common_end(other, other_end, own, own_end) == end


def test_random_histories_of_switches_are_compared_exactly() -> None:
    """Members write and copy records named by their writer; epochs find the fork that a comparison of all records finds."""
    differing = 0
    for seed in range(300):
        rng = random.Random(seed)
        logs: dict[str, list[int]] = {name: [] for name in "abc"}
        epochs: dict[str, tuple[Epoch, ...]] = dict.fromkeys("abc", ())
        for number in range(1, 8):
            leader = rng.choice("abc")
            epochs[leader] = with_epoch(epochs[leader], Epoch(number, len(logs[leader]), leader))
            logs[leader] += [number * 100 + n for n in range(rng.choice((0, 0, 1, 3)))]
            for name in "abc":
                if name == leader or rng.random() < 0.4:
                    continue
                log = logs[leader]
                end = common_end(epochs[name], len(logs[name]), epochs[leader], len(log))
                equal = next(
                    (n for n, pair in enumerate(zip(logs[name], log, strict=False)) if pair[0] != pair[1]), None
                )
                assert end <= (min(len(logs[name]), len(log)) if equal is None else equal), f"seed {seed}"
                assert end == (min(len(logs[name]), len(log)) if equal is None else equal), f"seed {seed}"
                differing += equal is not None
                copied = rng.randint(end, len(log))  # the copy may end anywhere
                logs[name] = log[:copied]
                epochs[name] = tuple(epoch for epoch in epochs[leader] if epoch.start < copied or copied == len(log))
    assert differing > 50


def test_a_promise_refuses_lower_epochs_also_after_a_restart() -> None:
    disk = FakeDisk()
    history = open_epochs(disk, "/store", 0)
    assert (history.promised, history.epochs, history.last_number) == (0, (), 0)
    history.promise(5)
    history.begin(A)
    history.promise(8)
    for stale in (7, 5):
        with pytest.raises(StoreError, match="promised epoch 8"):
            history.promise(stale)
        with pytest.raises(StoreError, match="promised epoch 8"):
            history.begin(Epoch(stale, 900, "x"))
    history.adopt((A, B, C), 900)  # received from the leader of epoch 8
    again = open_epochs(disk.after_kill(), "/store", 900)
    assert (again.promised, again.epochs) == (8, (A, B))
    again.begin(C)
    again.trim(1000)
    assert open_epochs(disk, "/store", 900).epochs == (A, B)
    assert (again.promised, again.epochs) == (9, (C,))


def test_a_member_adopts_the_epochs_of_the_data_that_it_receives() -> None:
    history = open_epochs(FakeDisk(), "/store", 0)
    history.begin(Epoch(6, 700, "c"))  # it led once, and wrote nothing
    history.adopt((A, B, C), 800)
    assert history.epochs == (A,)
    history.adopt((A, B, C), 801)
    assert history.epochs == (A, B)
    history.adopt((B, C), 1001)  # the leader has removed older files
    assert history.epochs == (A, B, C)
    history.adopt((), 2000)
    assert (history.promised, history.epochs) == (6, ())


def test_epochs_of_lost_records_are_forgotten_and_promises_are_not() -> None:
    disk = FakeDisk()
    history = open_epochs(disk, "/store", 0)
    history.begin(A)
    history.begin(B)
    assert open_epochs(disk, "/store", 800).epochs == (A, B)
    shorter = open_epochs(disk, "/store", 799)
    assert (shorter.promised, shorter.epochs) == (7, (A,))
    java = open_epochs(disk, "/store", 5000, written_by_java=True)
    assert (java.promised, java.epochs) == (7, ())


@pytest.mark.parametrize(
    ("offset", "common", "remaining"),
    [
        (1100, 1100, (A, B, C)),
        (900, 900, (A, B)),
        (800, 800, (A,)),
        (300, 300, (A,)),
        (0, 0, ()),
        (1200, 1200, (A, B, C)),
    ],
)
def test_records_that_are_not_proven_are_in_no_other_log(
    offset: int, common: int, remaining: tuple[Epoch, ...]
) -> None:
    disk, end = FakeDisk(), 1200
    epochs = EpochHistory(disk, "/store")
    epochs.adopt((A, B, C), end)
    epochs.distrust(offset, "1f")
    stored = open_epochs(disk, "/store", end)
    assert stored.last_number == 9
    assert common_end(stored.epochs, end, (A, B, C), 5000) == common
    assert common_end((A, B, C), 5000, stored.epochs, end) == common
    stored.cut(common)
    assert stored.epochs == remaining


def test_members_with_equal_histories_do_not_trust_each_others_unproven_records() -> None:
    first, second = (EpochHistory(FakeDisk(), "/store") for _ in range(2))
    for history, incarnation in ((first, "1f"), (second, "2e")):
        history.adopt((A, B), 1000)
        history.distrust(900, incarnation)
    assert common_end(first.epochs, 1000, second.epochs, 1000) == 900


def test_a_log_without_epochs_has_no_epoch_of_records_that_are_not_proven() -> None:
    disk = FakeDisk()
    EpochHistory(disk, "/store").distrust(0, "1f")
    assert disk.paths() == []


def test_a_damaged_file_stops_the_start() -> None:
    disk = FakeDisk()
    open_epochs(disk, "/store", 0).begin(A)
    for content in (b"", b"{}", b'{"promised": -1, "epochs": []}', b'{"promised": 1, "epochs": [[0, 0, "a"]]}'):
        write_atomic(disk, "/store/ariane/epochs", content)
        with pytest.raises(StoreCorrupt, match="not a list of epochs"):
            open_epochs(disk, "/store", 0)


def test_a_failed_write_promises_nothing() -> None:
    disk = FakeDisk()
    history = open_epochs(disk, "/store", 0)
    history.promise(1)
    disk.room = 0
    with pytest.raises(StoreError, match="epochs"):
        history.begin(A)
    assert (history.promised, history.epochs) == (1, ())


@pytest.mark.parametrize("kept", list(SurvivingData))
def test_no_power_loss_takes_back_a_promise_or_an_epoch(kept: SurvivingData) -> None:
    def work(disk: FakeDisk, done: list[tuple[int, tuple[Epoch, ...]]]) -> None:
        history = EpochHistory(disk, "/store")
        for step in (A, B, C):
            history.promise(step.number - 1)
            done.append((history.promised, history.epochs))
            history.begin(step)
            done.append((history.promised, history.epochs))

    complete = FakeDisk()
    states: list[tuple[int, tuple[Epoch, ...]]] = [(0, ())]
    work(complete, states)
    for cut in range(1, complete.changes + 1):
        disk = FakeDisk()
        disk.power_off_at = cut
        done: list[tuple[int, tuple[Epoch, ...]]] = [(0, ())]
        with contextlib.suppress(PowerLost):
            work(disk, done)
        again = open_epochs(disk.after_power_loss(kept, random.Random(cut)), "/store", 5000)
        # What was answered is there; at most the change in progress is there as well.
        assert (again.promised, again.epochs) in states[len(done) - 1 : len(done) + 1]
