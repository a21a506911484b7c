"""The decisions of a member, by role and event (docs/failover.md has the table)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ariane.errors import ConfigError
from ariane.failover import decisions
from ariane.failover.coordination import RecordSnapshot, WriteOutcome, WriteResult
from ariane.failover.leader_record import InSyncMember, LeaderRecord
from ariane.failover.member_state import (
    AcquireLease,
    AskFailsafe,
    CompareEnds,
    EndEpoch,
    EndsCompared,
    FailsafeAnswered,
    FenceMembers,
    FollowHolder,
    HigherEpoch,
    HoldAnswers,
    LeaseTimes,
    LossAccepted,
    MemberAction,
    MemberEnd,
    MemberRole,
    MemberState,
    Observation,
    Promoted,
    PromoteLog,
    PromotionFailed,
    ReadRecord,
    Reconciled,
    ReleaseLease,
    RenewLease,
    ResumeAnswers,
    ServiceAnswered,
    SetWanted,
    StopRequested,
    StoreEpoch,
    SwapRecord,
    TimePassed,
)

F, C, M = MemberRole.FOLLOWER, MemberRole.CANDIDATE, MemberRole.MASTER
H, R, X = MemberRole.HOLDING, MemberRole.RECONCILING, MemberRole.INELIGIBLE
A, B, D = InSyncMember("a", "1"), InSyncMember("b", "1"), InSyncMember("d", "1")
TIMES = LeaseTimes()
UNKNOWN = WriteResult(WriteOutcome.UNKNOWN)


def record(
    holder: str, epoch: int, *members: InSyncMember, token: str = "other.0", successor: str = ""
) -> LeaderRecord:
    return LeaderRecord(
        holder=holder, epoch=epoch, in_sync=members or (A, B, D), set_version=0, token=token, successor=successor
    )


def snapshot(stored: LeaderRecord | None, version: int = 1, lease: str = "") -> RecordSnapshot:
    return RecordSnapshot(stored, str(version), lease)


class Member:
    """Member a, and its time."""

    def __init__(self, *, epoch: int = 5, times: LeaseTimes = TIMES) -> None:
        self.now = 1000.0
        self.state = MemberState(
            me=A, nonce="n", times=times, started_at=self.now - 100, epoch=epoch, epoch_at=self.now - 100
        )

    def observe(self, observation: Observation, after_s: float = 0.0) -> tuple[MemberAction, ...]:
        self.now += after_s
        decision = decisions.decide(self.state, observation, self.now)
        self.state = decision.state
        return decision.actions

    def tick(self, after_s: float = 0.0, *, age_s: float = 0.0) -> tuple[MemberAction, ...]:
        now = self.now + after_s
        return self.observe(TimePassed(now - age_s, now), after_s)

    def read(self, seen: RecordSnapshot) -> tuple[MemberAction, ...]:
        (request,) = self.tick(TIMES.poll_s)
        assert request == ReadRecord()
        return self.observe(ServiceAnswered(request, WriteResult(WriteOutcome.DONE, seen)))

    def answer(self, request: Any, outcome: WriteOutcome, seen: RecordSnapshot | None, after_s: float = 0.0) -> Any:
        return self.observe(ServiceAnswered(request, WriteResult(outcome, seen)), after_s)

    @property
    def epoch(self) -> int:
        return self.state.epoch

    def may_answer(self) -> bool:
        return decisions.may_answer(self.state, self.epoch, self.now)


def follower(**more: Any) -> Member:
    member = Member(**more)
    assert member.read(snapshot(record("b", 5), lease="L")) == (FollowHolder(record("b", 5)),)
    assert member.state.role is R
    member.observe(Reconciled(5))
    assert member.state.role is F
    return member


def candidate(**more: Any) -> tuple[Member, AcquireLease]:
    member = follower(**more)
    assert member.read(snapshot(record("b", 5))) == (CompareEnds(record("b", 5)),)
    (request,) = member.observe(EndsCompared((MemberEnd(5, 10, "a"),)))
    assert isinstance(request, AcquireLease)
    assert member.state.role is C
    return member, request


def led(request: AcquireLease, version: int = 2, lease: str = "L1") -> RecordSnapshot:
    return snapshot(request.record, version, lease)


def master(**more: Any) -> Member:
    member, request = candidate(**more)
    actions = member.answer(request, WriteOutcome.DONE, led(request), after_s=1)
    assert actions == (StoreEpoch(6), FenceMembers(6), PromoteLog(6))
    assert not member.may_answer()
    assert member.observe(Promoted(6)) == (ResumeAnswers(6),)
    assert member.may_answer()
    return member


def renewal(member: Member) -> RenewLease:
    (request,) = member.tick()
    assert isinstance(request, RenewLease)
    return request


def test_a_candidate_takes_the_next_epoch_and_leaves_the_set_as_it_is() -> None:
    _, request = candidate()
    assert request.expected == snapshot(record("b", 5))
    assert request.record == record("a", 6, token="n.0")


def test_the_deadline_counts_from_the_start_of_the_request() -> None:
    member = master()  # the acquisition took 1 s
    assert member.state.deadline == member.now - 1 + 8
    request = renewal(member)
    member.answer(request, WriteOutcome.DONE, replace(request.expected, lease="L2"), after_s=2.5)
    assert member.state.deadline == member.now - 2.5 + 8
    assert member.tick() == (), "the next renewal is due 3 s after the start of this one"
    assert isinstance(member.tick(0.5)[0], RenewLease)


def test_a_master_stops_at_its_deadline_and_resumes_its_epoch_only_under_its_lease() -> None:
    member = master()
    member.observe(ServiceAnswered(renewal(member), UNKNOWN), after_s=2)
    request = renewal(member)
    member.now = member.state.deadline
    assert not member.may_answer(), "before any event"
    assert member.tick() == (HoldAnswers(),)
    assert member.state.role is H
    assert member.answer(request, WriteOutcome.DONE, replace(request.expected, lease="L2"), after_s=8) == (), "too late"
    assert member.state.role is H
    request = renewal(member)
    assert member.answer(request, WriteOutcome.DONE, replace(request.expected, lease="L3")) == (ResumeAnswers(6),)
    assert member.may_answer()


@pytest.mark.parametrize("is_held", [False, True])
def test_a_renewal_that_is_refused_ends_the_epoch(is_held: bool) -> None:
    member = master()
    request = renewal(member)
    seen = snapshot(record("b", 7), 3, "L9") if is_held else replace(request.expected, lease="")
    actions = member.answer(request, WriteOutcome.REFUSED, seen)
    follow = (StoreEpoch(7), FollowHolder(record("b", 7))) if is_held else (CompareEnds(request.expected.record),)  # type: ignore[arg-type]
    assert actions == (EndEpoch(6), *follow)
    assert member.state.role is (R if is_held else F)


def test_a_renewal_that_was_replaced_by_an_earlier_own_one_is_repeated() -> None:
    member = master()
    request = renewal(member)
    deadline = member.state.deadline
    assert member.answer(request, WriteOutcome.REFUSED, replace(request.expected, lease="L2")) == ()
    assert (member.state.role, member.state.deadline) == (M, deadline)
    assert renewal(member).expected.lease == "L2"


def test_of_an_acquisition_without_answer_only_the_record_decides() -> None:
    member, request = candidate()
    started = member.now
    assert member.observe(ServiceAnswered(request, UNKNOWN), after_s=3) == ()
    assert member.tick() == (request,), "the same write"
    actions = member.answer(request, WriteOutcome.REFUSED, led(request), after_s=1)
    assert actions[0] == StoreEpoch(6), "the first attempt was applied"
    assert member.state.deadline == started + 8, "its lease may be as old as the first attempt"


def test_a_candidate_that_is_not_ready_in_time_releases_and_waits() -> None:
    member, request = candidate()
    member.answer(request, WriteOutcome.DONE, led(request))
    actions = member.tick(8)
    assert actions[0] == EndEpoch(6)
    release = actions[1]
    assert isinstance(release, ReleaseLease)
    assert (member.state.role, member.observe(Promoted(6))) == (F, ())
    assert member.answer(release, WriteOutcome.DONE, snapshot(release.record, 3)) == ()
    assert "released" in decisions.refusal(member.state, member.now)
    member.tick(10)
    assert decisions.refusal(member.state, member.now) == ""


def test_an_acquisition_that_is_applied_too_late_is_released() -> None:
    member, request = candidate()
    member.observe(ServiceAnswered(request, UNKNOWN))
    assert member.tick(8) == (EndEpoch(5), ReadRecord())
    actions = member.answer(ReadRecord(), WriteOutcome.DONE, led(request))
    assert actions[0] == StoreEpoch(6)
    assert isinstance(actions[1], ReleaseLease)
    assert member.state.role is F


def test_a_candidate_renews_while_it_prepares_its_log() -> None:
    """A start with 100,000 topics takes longer than a lease: every member would be a candidate in turn, and none a master."""
    member, request = candidate()
    member.answer(request, WriteOutcome.DONE, led(request))
    for number in range(2, 10):
        renew = renewal(member)
        assert not member.may_answer()
        member.answer(renew, WriteOutcome.DONE, led(request, lease=f"L{number}"), after_s=0.2)
        assert member.tick(TIMES.renew_s - 0.3) == ()
        member.now += 0.2
    assert member.observe(Promoted(6)) == (ResumeAnswers(6),)
    assert member.may_answer()


def test_a_candidate_whose_lease_was_lost_ends_its_promotion() -> None:
    member, request = candidate()
    member.answer(request, WriteOutcome.DONE, led(request))
    actions = member.answer(renewal(member), WriteOutcome.REFUSED, led(request, lease=""))
    assert actions[0] == EndEpoch(6)
    assert member.observe(Promoted(6)) == ()


def test_a_candidate_does_not_prepare_for_ever() -> None:
    member, request = candidate()
    member.answer(request, WriteOutcome.DONE, led(request))
    began = member.now
    while member.state.role is C:
        assert member.now < began + TIMES.prepare_s + TIMES.ttl_s
        actions = member.tick(0.25)
        if actions and isinstance(actions[0], RenewLease):
            member.answer(actions[0], WriteOutcome.DONE, led(request))
    assert member.state.role is X
    assert "not prepared within 300 s" in member.state.fault


def test_another_candidate_won() -> None:
    member, request = candidate()
    actions = member.answer(request, WriteOutcome.REFUSED, snapshot(record("b", 6), 2, "L9"))
    assert actions == (StoreEpoch(6), FollowHolder(record("b", 6)))
    assert member.state.role is R


def test_a_better_candidate_is_waited_for_half_a_ttl() -> None:
    member = follower()
    better = EndsCompared((MemberEnd(5, 10, "a"), MemberEnd(5, 11, "b")))
    member.read(snapshot(record("b", 5)))
    assert member.observe(better) == ()
    for _ in range(3):
        member.read(snapshot(record("b", 5)))
        assert member.observe(better) == ()
    member.read(snapshot(record("b", 5)))
    assert isinstance(member.observe(better, after_s=1)[0], AcquireLease)


@pytest.mark.parametrize("better", [MemberEnd(5, 11, "b", may_lead=False), MemberEnd(6, 11, "z")])
def test_ineligible_members_and_strangers_are_not_waited_for(better: MemberEnd) -> None:
    member = follower()
    member.read(snapshot(record("b", 5)))
    assert isinstance(member.observe(EndsCompared((MemberEnd(5, 10, "a"), better)))[0], AcquireLease)


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (None, "does not exist"),
        (record("b", 5, B, D), "not in the in-sync set"),
        (record("b", 5, InSyncMember("a", "0"), B), "not in the in-sync set"),
        (record("b", 5), ""),
    ],
)
def test_only_members_of_the_stored_set_are_candidates(stored: LeaderRecord | None, reason: str) -> None:
    member = follower()
    actions = member.read(snapshot(stored))
    assert bool(actions) is (reason == "")
    assert reason in decisions.refusal(member.state, member.now)
    assert bool(decisions.refusal(member.state, member.now)) is bool(reason)


def test_others_wait_for_a_successor_half_a_ttl() -> None:
    member = follower()
    free = snapshot(record("b", 5, successor="d"))
    for _ in range(5):
        assert member.read(free) == ()
    assert member.read(free) == (CompareEnds(free.record),)  # type: ignore[arg-type]


def test_a_restarted_holder_never_resumes_its_epoch() -> None:
    member = Member(epoch=5)
    assert member.read(snapshot(record("a", 5, token="former-process.3"), lease="L")) == ()
    assert member.read(snapshot(record("a", 5, token="former-process.3"), lease="")) != ()
    (request,) = member.observe(EndsCompared(()))
    assert isinstance(request, AcquireLease)
    assert request.record.epoch == 6


@pytest.mark.parametrize("role", [F, R, C, M, H])
def test_a_hanging_disk_makes_a_member_ineligible(role: MemberRole) -> None:
    member = follower() if role in (F, R) else master()
    member.state = replace(member.state, role=role)
    actions = member.tick(age_s=4)
    assert member.state.role is X
    assert [type(action) for action in actions] == ([EndEpoch, ReleaseLease] if role in (C, M, H) else [])
    assert "does not respond" in decisions.refusal(member.state, member.now)


def test_a_follower_returns_as_soon_as_its_disk_responds() -> None:
    member = follower()
    member.tick(age_s=4)
    member.tick(1)
    assert member.state.role is R


def test_a_member_that_led_returns_after_two_ttls_of_health() -> None:
    member = master()
    _, release = member.tick(age_s=4)
    member.answer(release, WriteOutcome.REFUSED, snapshot(record("b", 7), lease="L"))
    member.read(snapshot(record("b", 7), lease="L"))
    member.tick(18)
    assert member.state.role is X
    member.observe(ServiceAnswered(ReadRecord(), UNKNOWN))
    member.tick(2)
    assert member.state.role is R, "its log may have missed a change of the holder"
    member.observe(ServiceAnswered(ReadRecord(), UNKNOWN))
    assert member.read(snapshot(record("b", 7), lease="L")) == (FollowHolder(record("b", 7)),)


@pytest.mark.parametrize("role", [F, C, M, H, R, X])
def test_a_higher_epoch_is_stored_and_ends_a_lower_one(role: MemberRole) -> None:
    member = master()
    member.state = replace(member.state, role=role)
    actions = member.observe(HigherEpoch(9))
    expected: tuple[MemberAction, ...] = (StoreEpoch(9),)
    assert actions[:2] == ((EndEpoch(6), *expected) if role in (C, M, H) else (*expected, *actions[1:2]))
    assert member.state.role is (X if role is X else R)
    assert (member.epoch, member.may_answer()) == (9, False)
    assert member.observe(HigherEpoch(8)) == ()


def test_the_set_grows_and_shrinks_by_one_write_at_a_time() -> None:
    member = master()
    assert decisions.required_members(member.state) == {A, B, D}
    (request,) = member.observe(SetWanted((A, B)))
    assert isinstance(request, SwapRecord)
    assert (request.record.in_sync, request.record.set_version) == ((A, B), 1)
    assert decisions.required_members(member.state) == {A, B, D}, "until the record has the smaller set"
    assert member.observe(SetWanted((A,))) == (), "one at a time"
    member.answer(request, WriteOutcome.DONE, snapshot(request.record, 3, "L1"))
    assert decisions.required_members(member.state) == {A, B}
    returned = InSyncMember("d", "2")
    (request,) = member.observe(SetWanted((A, B, returned)))
    assert isinstance(request, SwapRecord)
    assert decisions.required_members(member.state) == {A, B, returned}, "before the record has it"
    assert member.observe(SetWanted((B, returned))) == (), "never without the master"


@pytest.mark.parametrize("is_applied", [False, True])
def test_both_sets_are_required_until_the_outcome_of_a_change_is_known(is_applied: bool) -> None:
    member = master()
    (request,) = member.observe(SetWanted((A, B)))
    assert isinstance(request, SwapRecord)
    member.observe(ServiceAnswered(request, UNKNOWN), after_s=3)
    assert decisions.required_members(member.state) == {A, B, D}
    renew = renewal(member)
    member.answer(renew, WriteOutcome.DONE, replace(renew.expected, lease="L2"))
    assert decisions.required_members(member.state) == {A, B, D}, "it may be applied later"
    assert member.tick() == (request,), "the same write"
    stored = request.record if is_applied else record("a", 6, A, D, token="n.7")
    member.answer(request, WriteOutcome.REFUSED, snapshot(stored, 4, "L2"))
    assert decisions.required_members(member.state) == set(stored.in_sync)
    assert member.state.open_write is None


def test_a_service_that_lost_an_epoch_is_not_followed() -> None:
    member = follower()
    member.read(snapshot(record("b", 4), lease="L"))
    assert member.state.role is X
    assert "stores epoch 4, and this member 5" in member.state.fault


def test_a_service_that_lost_an_epoch_is_read_at_intervals() -> None:
    member = follower()
    lost = snapshot(record("b", 4))
    assert member.read(lost) == ()
    assert member.tick(TIMES.poll_s / 2) == ()
    (request,) = member.tick(TIMES.poll_s / 2)
    assert request == ReadRecord()
    assert member.answer(request, WriteOutcome.DONE, lost) == ()


def test_a_master_whose_epoch_the_service_lost_releases_its_lease_once() -> None:
    member = master()
    member.now += 1  # later than the acquisition
    request = renewal(member)
    lost = replace(request.expected, record=replace(request.expected.record, epoch=5))
    (end, release) = member.answer(request, WriteOutcome.DONE, lost)
    assert (end, release.expected) == (EndEpoch(6), lost)
    assert member.answer(release, WriteOutcome.DONE, replace(lost, lease="")) == ()


def test_a_read_from_before_a_higher_epoch_is_outdated() -> None:
    member = follower()
    assert member.tick(1) == (ReadRecord(),)
    member.observe(HigherEpoch(6), after_s=0.1)
    member.answer(ReadRecord(), WriteOutcome.DONE, snapshot(record("b", 5), lease="L"), after_s=0.1)
    assert member.state.role is R
    assert member.tick() == (ReadRecord(),)


def test_a_failed_promotion_makes_a_member_ineligible() -> None:
    member, request = candidate()
    member.answer(request, WriteOutcome.DONE, led(request))
    actions = member.observe(PromotionFailed("the disk is full"))
    assert [type(action) for action in actions] == [EndEpoch, ReleaseLease]
    assert (member.state.role, member.state.fault) == (X, "the disk is full")


def test_a_planned_stop_names_the_successor() -> None:
    member = master()
    ended, release = member.observe(StopRequested("b"))
    assert (ended, member.state.role) == (EndEpoch(6), F)
    assert isinstance(release, ReleaseLease)
    assert release.record.successor == "b"
    assert "stops" in decisions.refusal(member.state, member.now)


def test_failsafe_needs_every_member_of_the_set() -> None:
    member = master(times=LeaseTimes(has_failsafe=True))
    asked = renewal(member)
    asked_at = member.now
    assert member.observe(ServiceAnswered(asked, UNKNOWN), after_s=3) == (AskFailsafe(6, frozenset("bd")),)
    deadline = member.state.deadline
    member.observe(FailsafeAnswered(6, frozenset("b"), asked_at))
    member.observe(FailsafeAnswered(5, frozenset("bd"), asked_at))
    assert member.state.deadline == deadline
    member.observe(FailsafeAnswered(6, frozenset("bd"), asked_at))
    assert member.state.deadline == asked_at + 8


def test_without_failsafe_no_member_is_asked_and_none_agrees() -> None:
    member = master()
    assert member.observe(ServiceAnswered(renewal(member), UNKNOWN)) == ()
    assert decisions.answer_failsafe(follower().state, "b", 5, 1000.0)[1] is False


def test_a_member_that_agreed_or_restarted_is_no_candidate_for_a_ttl() -> None:
    times = LeaseTimes(has_failsafe=True)
    member = follower(times=times)
    assert decisions.answer_failsafe(member.state, "b", 4, member.now)[1] is False
    assert decisions.answer_failsafe(master(times=times).state, "b", 6, 0)[1] is False, "a master"
    member.state, agrees = decisions.answer_failsafe(member.state, "b", 5, member.now)
    assert agrees
    assert member.read(snapshot(record("b", 5))) == ()
    assert "agreed" in decisions.refusal(member.state, member.now)
    member.now += 10
    assert decisions.refusal(member.state, member.now) == ""
    restarted = replace(member.state, started_at=member.now - 9)
    assert "restarted" in decisions.refusal(restarted, member.now)


@pytest.mark.parametrize(
    "times", [{"ttl_s": 7.9}, {"renew_s": 5.1}, {"attempt_s": 2.6}, {"margin_s": 4.1}, {"poll_s": 0}]
)
def test_times_that_leave_no_room_for_a_renewal_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"ttl"):
        LeaseTimes(**times)


def test_with_an_accepted_loss_a_member_leads_alone_that_the_set_does_not_list() -> None:
    restarted = InSyncMember("a", "2")
    member = follower()
    member.state = replace(member.state, me=restarted)
    assert member.read(snapshot(record("b", 5))) == ()
    assert "not in the in-sync set" in decisions.refusal(member.state, member.now)
    (request,) = member.observe(LossAccepted())
    alone = replace(record("a", 6, restarted, token="n.0"), set_version=1)
    assert request == AcquireLease(snapshot(record("b", 5)), alone)
    actions = member.answer(request, WriteOutcome.DONE, led(request))
    assert actions == (StoreEpoch(6), FenceMembers(6), PromoteLog(6))


@pytest.mark.parametrize(
    ("stored", "lease", "reason"),
    [
        (record("b", 5, B, D), "L", "b holds the lease"),
        (record("b", 5), "", "may lead without a loss"),
    ],
)
def test_a_loss_that_is_not_needed_is_not_accepted(stored: LeaderRecord, lease: str, reason: str) -> None:
    member = follower()
    member.read(snapshot(stored, lease=lease))
    assert reason in decisions.refusal(member.state, member.now, accepts_loss=True)
    assert member.observe(LossAccepted()) == ()
    assert member.state.role is F


def test_the_limit_of_the_disk_probe_is_a_setting() -> None:
    busy = master(times=LeaseTimes(probe_limit_s=20.0))
    assert busy.tick(age_s=19.0)
    assert busy.state.role is M
    busy.tick(age_s=21.0)
    assert (busy.state.role, busy.state.fault) == (X, "its disk or its event loop does not respond")
    stalled = master(times=LeaseTimes(probe_limit_s=20.0))
    stalled.observe(TimePassed(stalled.now, stalled.now - 4.0))  # the event loop has its own limit
    assert stalled.state.role is X
