"""The in-sync set: every member that may lead has every confirmed record, at every instant and whatever swaps become of."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ariane.broker.replication.in_sync_set import UNKNOWN_END, InSyncRules, InSyncSet
from ariane.failover.leader_record import InSyncMember

A, B, C = InSyncMember("a", "1"), InSyncMember("b", "1"), InSyncMember("c", "1")
ALONE, PAIR = frozenset({A}), frozenset({A, B})


def leader(*others: InSyncMember, log_end: int = 0, **rules: float | bool) -> InSyncSet:
    return InSyncSet(A, {A, *others}, InSyncRules(**rules), log_end=log_end, now_s=0.0)  # type: ignore[arg-type]


def test_a_record_is_confirmed_when_every_member_has_it() -> None:
    members = leader(B, C)
    members.on_append(100, 1.0)
    members.on_report(B, 100)
    assert members.confirmed == 0
    members.on_report(C, 60)
    assert members.confirmed == 60
    members.on_report(C, 100)
    assert members.confirmed == 100
    members.on_disconnect(C)
    members.on_append(200, 2.0)
    members.on_report(B, 200)
    assert members.confirmed == 100  # the absent member of the set stops it


def test_a_leader_without_others_confirms_what_it_has() -> None:
    members = leader()
    members.on_append(100, 1.0)
    assert (members.confirmed, members.least_size, members.update(9.0)) == (100, 1, None)


def test_a_member_leaves_that_lacks_what_the_leader_had_a_lag_ago() -> None:
    members = leader(B, C)
    members.on_append(100, 10.0)
    for member in (B, C):
        members.on_report(member, 100)
    assert members.update(1000.0) is None  # idle members have everything
    for tick in range(100):  # B is always 0.5 s behind and stays; C reports nothing more
        members.on_append(200 + tick * 10, 20.0 + tick / 10)
        members.on_report(B, 150 + tick * 10)
        assert members.update(20.0 + tick / 10) == (None if tick < 15 else PAIR), tick


def test_a_set_that_is_too_small_takes_a_member_back_at_once() -> None:
    """Sends are refused meanwhile: 5 s of proof that it keeps up would be 5 s without a master."""
    for least, returns in ((1, False), (2, True)):
        members = leader(log_end=100, least=least)
        members.on_append(100, 0.0)
        members.on_report(B, 40)
        assert members.update(2.0) is None, "it is behind"
        members.on_report(B, 100)
        assert (members.update(2.1) == PAIR) is returns


def test_a_set_never_becomes_smaller_than_its_least_size() -> None:
    """A record of the leader alone would confirm nothing, and keep members with every acknowledged message from leading."""
    members = leader(B, C, least=2)
    for member in (B, C):
        members.on_report(member, 100)
    members.on_append(100, 0.0)
    members.on_append(200, 1.0)
    assert members.update(2.0) is None
    assert (members.complete_size, members.least_size) == (3, 3), "late by less than a lag"
    assert members.update(2.6) is None
    assert (members.complete_size, members.least_size) == (1, 3)
    members.on_report(C, 200)
    assert members.update(2.7) == frozenset({A, C})
    assert members.confirmed == 100, "until the record has the smaller set"


def test_a_replaced_member_of_a_small_set_leaves_when_its_new_data_is_complete() -> None:
    members = leader(B, least=2)
    members.on_append(100, 0.0)
    members.on_append(100, 3.0)
    restarted = InSyncMember("b", "2")
    members.on_report(restarted, 40)
    assert members.update(3.0) is None
    members.on_report(restarted, 100)
    assert members.update(3.1) == frozenset({A, restarted})


def test_a_burst_alone_drops_no_member() -> None:
    members = leader(B)
    members.on_report(B, 0)
    members.on_append(1 << 30, 10.0)
    members.on_report(B, 1 << 20)
    assert members.update(11.0) is None
    assert members.update(11.6) == ALONE


def test_a_set_is_smaller_only_after_its_swap() -> None:
    members = leader(B)
    members.on_append(100, 1.0)
    wanted = members.update(5.0)
    assert wanted == ALONE
    members.begin_swap(wanted)
    assert (members.confirmed, members.required, members.least_size) == (0, {A, B}, 1)
    members.on_stored(wanted, 1)
    assert (members.confirmed, members.required) == (100, ALONE)


def test_a_new_member_is_required_before_its_swap() -> None:
    members = leader(log_end=100)
    members.on_append(100, 0.0)
    members.on_report(B, 90)
    assert members.update(1.0) is None  # it lacks a part of the former epoch
    members.on_report(B, 100)
    wanted = members.update(1.0)
    assert wanted == PAIR
    members.begin_swap(wanted)
    members.on_append(200, 1.0)
    assert members.confirmed == 100
    members.on_refused(wanted)
    assert (members.confirmed, members.required) == (100, PAIR)  # it still joins
    members.on_disconnect(B)
    assert (members.confirmed, members.required) == (200, ALONE)
    with pytest.raises(ValueError, match="lacks confirmed records"):
        members.begin_swap(wanted)


def test_a_member_joins_a_busy_leader_that_confirms_alone() -> None:
    """Its reports are always some appends old: the leader has to wait for it once."""
    members = leader()
    members.on_report(B, 0)
    admitted_s = None
    for tick in range(2000):
        now_s = tick / 100
        members.on_report(B, max(0, tick - 2) * 1000)
        members.on_append(tick * 1000, now_s)
        wanted = members.update(now_s)
        if wanted == PAIR:
            members.begin_swap(wanted)
            members.on_stored(wanted, members.version + 1)
            admitted_s = admitted_s or now_s
        assert wanted in (None, PAIR)
    assert admitted_s is not None
    assert members.confirmed == 1997 * 1000
    assert members.replicated == members.confirmed


def test_a_swap_without_an_answer_may_be_applied_until_the_version_has_changed() -> None:
    members = leader(log_end=100)
    members.on_report(B, 100)
    assert members.update(0.9) == PAIR
    members.begin_swap(PAIR)
    members.on_append(200, 1.0)
    members.on_stored(ALONE, 0)  # a read shows the former set: the write may still be on its way
    assert (members.confirmed, members.required) == (100, PAIR)
    assert members.update(1.1) == PAIR  # another swap decides
    members.on_disconnect(B)
    assert (members.confirmed, members.required) == (100, PAIR)
    members.on_stored(ALONE, 1)
    assert (members.confirmed, members.required) == (200, ALONE)


def test_a_member_with_new_data_leaves_and_returns() -> None:
    members = leader(B)
    members.on_append(100, 1.0)
    members.on_report(B, 100)
    members.on_disconnect(B)
    restarted = InSyncMember("b", "2")
    members.on_report(restarted, 40)
    members.on_append(100, 3.0)
    assert members.update(3.0) == ALONE
    members.begin_swap(ALONE)
    members.on_stored(ALONE, 1)
    members.on_report(restarted, 100)
    assert members.update(4.0) is None  # it was behind less than 5 s ago
    assert members.update(8.1) == frozenset({A, restarted})


def test_without_failover_a_member_leaves_with_its_connection() -> None:
    members = leader(B, leaves_at_disconnect=True)
    members.on_report(B, 0)
    assert members.update(0.1) is None
    members.on_disconnect(B)
    assert members.update(0.2) == ALONE


def test_a_change_is_confirmed_when_every_member_has_applied_it() -> None:
    members = leader(B)
    members.on_change(3, 1.0)
    assert members.confirmed_changes == 0
    members.on_report(B, 0, 2)
    assert members.confirmed_changes == 2
    members.on_disconnect(B)
    members.on_change(4, 1.1)
    assert members.confirmed_changes == 2  # the absent member of the set stops it
    assert members.update(1.2) is None
    assert members.update(3.0) == ALONE  # the log does not grow, but it lacks changes of 1.5 s ago
    members.begin_swap(ALONE)
    members.on_stored(ALONE, 1)
    assert members.confirmed_changes == 4


def test_a_member_joins_once_it_has_a_snapshot_and_what_was_answered() -> None:
    members = leader()
    members.on_change(7, 1.0)
    members.on_report(B, 0, UNKNOWN_END)
    assert members.update(5.0) is None
    members.on_report(B, 0, 7)
    assert members.update(5.1) == PAIR  # to wait for a snapshot is not to be late
    members.on_change(8, 5.2)
    assert members.confirmed_changes == 7  # it is required from now on
    behind = leader()
    behind.on_change(7, 1.0)
    behind.on_report(B, 0, 6)
    assert behind.update(1.1) is None


def test_a_member_that_takes_no_changes_is_not_waited_for() -> None:
    members = leader(B)
    members.on_report(B, 0)
    members.on_change(1, 1.0)
    assert members.confirmed_changes == 1
    assert members.update(9.0) is None


# --- any order of events, and what a swap may become of ---


class Cluster:
    """A leader and two members with logs, and a record that is changed by compare-and-swap."""

    def __init__(self, seed: int, in_sync: type[InSyncSet], *, unknown_is_no: bool, keeps_incarnation: bool) -> None:
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.log_end = 0
        self.ends = {"b": 0, "c": 0}  # what the members really have
        self.last_change, self.applied = 0, {"b": 0, "c": 0}
        self.incarnations = {"a": 1, "b": 1, "c": 1}
        self.connected = {"b": False, "c": False}
        self.record, self.version = frozenset({A, B, C}), 0
        self.pending: list[tuple[frozenset[InSyncMember], int]] = []  # writes without an answer
        self.set = in_sync(A, self.record, InSyncRules(), log_end=0, now_s=0.0)
        self.unknown_is_no, self.keeps_incarnation = unknown_is_no, keeps_incarnation
        self.swaps = 0
        self.confirmed = 0

    def member(self, name: str) -> InSyncMember:
        return InSyncMember(name, str(self.incarnations[name]))

    def apply(self, members: frozenset[InSyncMember], version: int) -> bool:
        if version == self.version:
            self.record, self.version = members, version + 1
            self.swaps += 1
            return True
        return False

    def append(self) -> None:
        self.log_end += self.rng.randint(1, 100)
        self.set.on_append(self.log_end, self.now_s)

    def change(self) -> None:
        self.last_change += 1
        self.set.on_change(self.last_change, self.now_s)

    def report(self, name: str) -> None:
        self.set.on_report(self.member(name), self.ends[name], self.applied[name])

    def copy(self) -> None:
        name = self.rng.choice("bc")
        if self.connected[name]:
            self.ends[name] = self.rng.randint(self.ends[name], self.log_end)
            self.applied[name] = self.rng.randint(self.applied[name], self.last_change)
            if self.rng.random() < 0.8:
                self.report(name)

    def catch_up(self) -> None:
        for name in "bc":
            if self.connected[name]:
                self.ends[name], self.applied[name] = self.log_end, self.last_change
                self.report(name)

    def connect(self) -> None:
        name = self.rng.choice("bc")
        self.connected[name] = True
        self.report(name)

    def disconnect(self) -> None:
        name = self.rng.choice("bc")
        self.connected[name] = False
        self.set.on_disconnect(self.member(name))

    def lose_power(self) -> None:
        name = self.rng.choice("bc")
        self.connected[name] = False
        self.set.on_disconnect(self.member(name))
        self.ends[name] = self.rng.randint(self.ends[name] // 2, self.ends[name])
        self.applied[name] = self.rng.randint(self.applied[name] // 2, self.applied[name])
        if not self.keeps_incarnation:
            self.incarnations[name] += 1

    def swap(self) -> None:
        wanted = self.set.update(self.now_s)
        if wanted is None:
            return
        self.set.begin_swap(wanted)
        version = self.set.version
        outcome = self.rng.choice(("done", "done", "refused", "unknown"))
        if self.rng.random() < 0.5:  # meanwhile
            self.append()
            self.copy()
            self.check()
        if outcome == "done" and self.apply(wanted, version):
            self.check()
            self.set.on_stored(wanted, self.version)
        elif outcome == "unknown":
            self.pending.append((wanted, version))
            if self.unknown_is_no:
                self.set.on_refused(wanted)
        else:
            self.set.on_refused(wanted)

    def apply_late(self) -> None:
        if self.pending:
            self.apply(*self.pending.pop(self.rng.randrange(len(self.pending))))

    def read(self) -> None:
        self.set.on_stored(self.record, self.version)

    def wait(self) -> None:
        self.now_s += self.rng.choice((0.05, 0.5, 2.0, 6.0))

    def check(self) -> None:
        confirmed = self.set.confirmed
        assert self.confirmed <= confirmed <= self.log_end
        self.confirmed = confirmed
        for member in self.record - {A}:
            if member == self.member(member.name):  # the data that was admitted: this member may lead
                assert self.ends[member.name] >= confirmed, f"{member} may lead and lacks confirmed records"
                has_changes = self.applied[member.name] >= self.set.confirmed_changes
                assert has_changes, f"{member} may lead and lacks confirmed changes"

    def run(self, steps: int) -> None:
        events: list[Callable[[], None]] = [
            *[self.append, self.change, self.copy, self.swap, self.wait] * 4,
            *[self.catch_up, self.connect, self.apply_late, self.read] * 2,
            *[self.disconnect, self.lose_power],
        ]
        for _ in range(steps):
            self.rng.choice(events)()
            self.check()


def run(
    in_sync: type[InSyncSet] = InSyncSet,
    *,
    unknown_is_no: bool = False,
    keeps_incarnation: bool = False,
    seeds: int = 60,
) -> tuple[int, int]:
    """Run events of some seeds; return the swaps that were applied, and the confirmed bytes."""
    swaps = confirmed = 0
    for seed in range(seeds):
        cluster = Cluster(seed, in_sync, unknown_is_no=unknown_is_no, keeps_incarnation=keeps_incarnation)
        cluster.run(300)
        swaps += cluster.swaps
        confirmed += cluster.confirmed
    return swaps, confirmed


def test_each_member_that_may_lead_has_every_confirmed_record() -> None:
    swaps, confirmed = run()
    assert swaps > 250
    assert confirmed > 50_000


class ByMaximum(InSyncSet):
    """A record counts once the best member has it."""

    def _confirm(self) -> None:
        others = [self._ends.get(member, UNKNOWN_END) for member in self.required if member != self._own]
        self.confirmed = max(self.confirmed, *others) if others else max(self.confirmed, self._ends[self._own])


class SmallerBeforeItsSwap(InSyncSet):
    """Records count without a member that is still in the stored set."""

    def begin_swap(self, members: frozenset[InSyncMember]) -> None:
        super().begin_swap(members)
        self.required = members
        self._confirm()


class LargerWithoutUnion(InSyncSet):
    """A new member is required only once its swap has succeeded."""

    def _require(self) -> None:
        self.required = self.stored
        self._confirm()


class ReadDecides(InSyncSet):
    """A read of the former set counts as the refusal of a write without an answer."""

    def on_stored(self, members: frozenset[InSyncMember], version: int) -> None:
        self._open.clear()
        super().on_stored(members, version)


class EntersBehind(InSyncSet):
    """A member is admitted that lacks confirmed records."""

    def _may_enter(self, member: InSyncMember) -> bool:
        return member in self._connected


class EntersWithoutChanges(InSyncSet):
    """A member is admitted that has the log, and lacks changes."""

    def _may_enter(self, member: InSyncMember) -> bool:
        return self._has_epoch_start(member) and self._ends[member] >= self.confirmed


@pytest.mark.parametrize("planted", [ByMaximum, SmallerBeforeItsSwap, LargerWithoutUnion, ReadDecides, EntersBehind])
def test_planted_faults_of_the_set_are_found(planted: type[InSyncSet]) -> None:
    with pytest.raises(AssertionError, match="may lead and lacks confirmed"):
        run(planted)


def test_a_member_that_is_admitted_without_changes_is_found() -> None:
    with pytest.raises(AssertionError, match="may lead and lacks confirmed changes"):
        run(EntersWithoutChanges)


def test_a_write_without_an_answer_that_is_taken_as_refused_is_found() -> None:
    with pytest.raises(AssertionError, match="may lead and lacks confirmed"):
        run(unknown_is_no=True)


def test_a_member_that_lost_power_and_keeps_its_incarnation_is_found() -> None:
    with pytest.raises(AssertionError, match="may lead and lacks confirmed"):
        run(keeps_incarnation=True)
