"""What a member of a broker set does next: a function of its state, an observation and the time, without I/O.

    decide(state, observation, now) -> state, actions
    may_answer(state, epoch, now)      checked by the function that writes answers, for each batch
    required_members(state)            the members that must have a record before it is acknowledged

`now` is CLOCK_BOOTTIME in seconds: it goes on while the machine is suspended. docs/failover.md has the table of roles and events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from ariane.failover.coordination import RecordSnapshot, WriteOutcome
from ariane.failover.leader_record import InSyncMember, LeaderRecord, sorted_members
from ariane.failover.member_state import (
    LEADING,
    AcquireLease,
    AskFailsafe,
    CompareEnds,
    Decision,
    EndEpoch,
    EndsCompared,
    EpochNamed,
    FailsafeAnswered,
    FenceMembers,
    FollowHolder,
    HandOver,
    HigherEpoch,
    HoldAnswers,
    LeaseTimes,
    LossAccepted,
    MemberAction,
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
    ServiceRequest,
    SetWanted,
    StopRequested,
    StoreEpoch,
    SwapRecord,
    TimePassed,
)

F, C, M = MemberRole.FOLLOWER, MemberRole.CANDIDATE, MemberRole.MASTER
H, R, X = MemberRole.HOLDING, MemberRole.RECONCILING, MemberRole.INELIGIBLE


def decide(state: MemberState, observation: Observation, now: float) -> Decision:
    """Return what a member does after an observation."""
    return RULES[type(observation)](state, observation, now)


def may_answer(state: MemberState, epoch: int, now: float) -> bool:
    """Return whether a master may write answers of `epoch`."""
    return state.role is M and state.epoch == epoch and now < state.deadline


def required_members(state: MemberState) -> frozenset[InSyncMember]:
    """Return the members that must have a record before it is acknowledged: the stored set, and the set of a write whose outcome is
    open, because the next holder may be a member of either."""
    stored = state.snapshot.record.in_sync if state.snapshot and state.snapshot.record else ()
    proposed = state.open_write.record.in_sync if isinstance(state.open_write, SwapRecord) else ()
    return frozenset(stored) | frozenset(proposed)


def refusal(state: MemberState, now: float, *, accepts_loss: bool = False) -> str:
    """Return why a member may not be promoted; empty if it may.

    Args:
        state: Of the member.
        now: CLOCK_BOOTTIME.
        accepts_loss: The operator wants this member instead of those of the stored set.
    """
    record = state.snapshot.record if state.snapshot else None
    is_admitted = record is not None and record.admits(state.me)
    is_led = state.snapshot is not None and bool(state.snapshot.lease)
    restarted = state.times.has_failsafe and now < state.started_at + state.times.ttl_s
    reasons = {
        "the record was not read": state.snapshot is None,
        "the record of the broker set does not exist": state.snapshot is not None and record is None,
        "it stops": state.is_stopping,
        f"it is ineligible: {state.fault}": state.role is X,
        f"its role is {state.role.value}": state.role is not F,
        "it is not in the in-sync set": record is not None and not is_admitted and not accepts_loss,
        "it is in the in-sync set, and may lead without a loss": is_admitted and accepts_loss,
        f"{record.holder if record else ''} holds the lease": is_led and accepts_loss,
        "it has not stored the epoch of the record": record is not None and record.epoch != state.epoch,
        "it released a lease a short time ago": now < state.backoff_until,
        "it agreed that the master goes on": now < state.failsafe_until,
        "it restarted, and may have agreed before that the master goes on": restarted,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def answer_failsafe(state: MemberState, holder: str, epoch: int, now: float) -> tuple[MemberState, bool]:
    """Return whether a member agrees that the master goes on without the service. It cannot be a candidate for a ttl then."""
    agrees = state.times.has_failsafe and state.role not in LEADING and epoch == state.epoch and holder != state.me.name
    return (replace(state, failsafe_until=now + state.times.ttl_s) if agrees else state), agrees


def first_record(members: list[InSyncMember], token: str, *, epoch: int = 0) -> LeaderRecord:
    """Return the record with which an operator creates a broker set. Its members must have equal logs, and have promised `epoch`
    at most: when a former record was lost, a lower one would exclude them."""
    return LeaderRecord(holder="", epoch=epoch, in_sync=sorted_members(members), set_version=0, token=token)


# --- rules by observation ---


def on_time(state: MemberState, observation: TimePassed, now: float) -> Decision:
    """Check health and deadlines, and send the request that is due."""
    if not is_healthy(observation, state.times, now):
        state = replace(state, healthy_since=None)
        return (
            _exclude(state, "its disk or its event loop does not respond", now)
            if state.role is not X
            else _idle(state, now)
        )
    healthy_since = now if state.healthy_since is None else state.healthy_since
    state = replace(state, healthy_since=healthy_since) if state.healthy_since is None else state
    if state.role is X and now >= healthy_since + state.readmission_s:
        return _then(replace(state, role=R, fault="", readmission_s=0.0, following=("", 0)), _idle, now)
    if state.role is C and now >= state.candidate_since + state.times.prepare_s:
        return _exclude(state, f"its log was not prepared within {state.times.prepare_s:g} s", now)
    if state.role is C and now >= state.deadline:
        return _yield(state, F, now)
    if state.role is M and now >= state.deadline:
        return _then(replace(state, role=H), _lead, now, HoldAnswers())
    return _lead(state, now) if state.role in LEADING else _idle(state, now)


def on_answer(state: MemberState, observation: ServiceAnswered, now: float) -> Decision:
    """Take the result of the request in flight."""
    request, result = observation.request, observation.result
    started = state.busy_since if state.busy_since is not None else now
    state = replace(state, busy_since=None)
    if result.outcome is WriteOutcome.UNKNOWN or result.snapshot is None:
        return _on_unknown(state, request, now)
    done = result.outcome is WriteOutcome.DONE
    if done and isinstance(request, RenewLease) and state.role in LEADING and _is_led(state, result.snapshot):
        state = replace(state, snapshot=result.snapshot, request_at=started + state.times.renew_s)
        return _extend(state, lease_deadline(state.times, started), now)
    if isinstance(request, ReleaseLease) and done:
        state = replace(state, backoff_until=now + state.times.ttl_s)
    return _on_snapshot(state, result.snapshot, started, now)


def on_ends(state: MemberState, observation: EndsCompared, now: float) -> Decision:
    """Become a candidate if no better one is reachable: one with room on its disk, then with the greatest end.

    Each member of the set has everything confirmed: the order only keeps more of the records that are not confirmed, so that it is
    not waited for without limit.
    """
    state = replace(state, is_comparing=False)
    snapshot = state.snapshot
    if (
        snapshot is None
        or snapshot.record is None
        or snapshot.lease
        or state.busy_since is not None
        or refusal(state, now)
    ):
        return Decision(state)
    names = {member.name for member in snapshot.record.in_sync}
    ends = (end for end in observation.ends if end.may_lead and end.name in names)
    best = max(ends, key=lambda end: (end.has_room, end), default=None)
    waited = now - (state.free_since if state.free_since is not None else now)
    is_meant = snapshot.record.successor == state.me.name
    if not is_meant and best is not None and best.name != state.me.name and waited < state.times.ttl_s / 2:
        return Decision(state)
    return _acquire(state, snapshot, snapshot.record, now)


def on_loss_accepted(state: MemberState, observation: LossAccepted, now: float) -> Decision:
    """Become a candidate as the only member of the set: the others make their logs prefixes of this one, and return."""
    snapshot = state.snapshot
    if (
        snapshot is None
        or snapshot.record is None
        or state.busy_since is not None
        or refusal(state, now, accepts_loss=True)
    ):
        return Decision(state)
    record = replace(snapshot.record, in_sync=(state.me,), set_version=snapshot.record.set_version + 1)
    return _acquire(state, snapshot, record, now)


def on_promoted(state: MemberState, observation: Promoted, now: float) -> Decision:
    """Serve, if the lease is still held."""
    if state.role is not C or state.epoch != observation.epoch or state.open_write is not None:
        return Decision(state)
    if now >= state.deadline:
        return _yield(state, F, now)
    return Decision(replace(state, role=M), (ResumeAnswers(state.epoch),))


def on_promotion_failed(state: MemberState, observation: PromotionFailed, now: float) -> Decision:
    """Leave the lease to another member."""
    return _exclude(state, observation.reason, now) if state.role is C else Decision(state)


def on_reconciled(state: MemberState, observation: Reconciled, now: float) -> Decision:
    """Follow, unless another holder is to be followed since."""
    return Decision(replace(state, role=F) if state.role is R and observation.epoch == state.following[1] else state)


def on_epoch_named(state: MemberState, observation: EpochNamed, now: float) -> Decision:
    """Read the record, or renew: a member promises an epoch only after the record has it. Nothing is stored before that is known,
    because a member of another set, or one that was restored from a backup, would exclude all others for good."""
    if observation.epoch <= state.epoch:
        return Decision(state)
    return (_lead if state.role in LEADING else _idle)(replace(state, request_at=now), now)


def on_higher_epoch(state: MemberState, observation: HigherEpoch, now: float) -> Decision:
    """Store a higher epoch, stop serving a lower one, and read the record."""
    if observation.epoch <= state.epoch:
        return Decision(state)
    ended = _end_epoch(state)
    role = X if state.role is X else R
    state = replace(state, role=role, epoch=observation.epoch, epoch_at=now, request_at=now, open_write=None)
    return _then(state, _idle, now, *ended, StoreEpoch(observation.epoch))


def on_failsafe(state: MemberState, observation: FailsafeAnswered, now: float) -> Decision:
    """Serve on if every other member agreed, counted from before they were asked."""
    names = {member.name for member in required_members(state)} - {state.me.name}
    if state.role is not M or observation.epoch != state.epoch or not names <= observation.accepted:
        return Decision(state)
    return _extend(state, lease_deadline(state.times, observation.asked_at), now)


def on_set_wanted(state: MemberState, observation: SetWanted, now: float) -> Decision:
    """Change the in-sync set, one change at a time. `required_members` contains both sets from now on."""
    snapshot = state.snapshot
    if state.role is not M or state.busy_since is not None or state.open_write or not snapshot or not snapshot.record:
        return Decision(state)
    members = sorted_members(observation.members)
    if members == snapshot.record.in_sync or state.me not in members:
        return Decision(state)
    record = replace(snapshot.record, in_sync=members, set_version=snapshot.record.set_version + 1, token=_token(state))
    request = SwapRecord(snapshot, record)
    return _send(replace(state, open_write=request), request, now)


def on_stop(state: MemberState, observation: StopRequested, now: float) -> Decision:
    """Release the lease, for the successor if one is named."""
    state = replace(state, is_stopping=True, successor=observation.successor)
    if state.role not in LEADING:
        return Decision(state)
    return _yield(state, F, now)


def on_hand_over(state: MemberState, observation: HandOver, now: float) -> Decision:
    """Release the lease for the successor, and be no candidate for a ttl."""
    return _yield(replace(state, successor=observation.successor), F, now) if state.role is M else Decision(state)


RULES: dict[type[Observation], Callable[[MemberState, Any, float], Decision]] = {
    TimePassed: on_time,
    ServiceAnswered: on_answer,
    EndsCompared: on_ends,
    Promoted: on_promoted,
    PromotionFailed: on_promotion_failed,
    Reconciled: on_reconciled,
    EpochNamed: on_epoch_named,
    HigherEpoch: on_higher_epoch,
    FailsafeAnswered: on_failsafe,
    SetWanted: on_set_wanted,
    StopRequested: on_stop,
    HandOver: on_hand_over,
    LossAccepted: on_loss_accepted,
}


# --- parts of rules ---


def is_healthy(observation: TimePassed, times: LeaseTimes, now: float) -> bool:
    """Return whether the last completed disk probe and turn of the event loop are recent: a hanging fsync reports no error."""
    is_disk_healthy = now - observation.probe_at <= times.disk_limit_s
    return is_disk_healthy and now - observation.loop_at <= times.loop_limit_s


def lease_deadline(times: LeaseTimes, started: float) -> float:
    """Return until when a member may answer. The service cannot free a lease earlier than a ttl after its request started."""
    return started + times.ttl_s - times.margin_s


def _acquire(state: MemberState, snapshot: RecordSnapshot, record: LeaderRecord, now: float) -> Decision:
    """Acquire the lease with the next epoch, and the set of `record`."""
    record = replace(record, holder=state.me.name, epoch=record.epoch + 1, successor="", token=_token(state))
    request = AcquireLease(snapshot, record)
    state = replace(
        state, role=C, candidate_since=now, successor="", open_write=request, deadline=lease_deadline(state.times, now)
    )
    return _send(state, request, now)


def _on_unknown(state: MemberState, request: object, now: float) -> Decision:
    """Keep the write open: it may be applied later. It is repeated with the same content until its outcome is known."""
    if state.role not in LEADING:
        return Decision(replace(state, request_at=now + state.times.poll_s))
    state = replace(state, request_at=now)
    if isinstance(request, RenewLease) and state.role is M and state.times.has_failsafe:
        names = frozenset(member.name for member in required_members(state)) - {state.me.name}
        return Decision(state, (AskFailsafe(state.epoch, names),))
    return Decision(state)


def _on_snapshot(state: MemberState, snapshot: RecordSnapshot, started: float, now: float) -> Decision:
    """Compare the stored record with what this member does."""
    record = snapshot.record
    if record is not None and record.epoch < state.epoch:
        # Read before the epoch was stored here: outdated. Read after it: the service lost a write.
        if started <= state.epoch_at:
            return Decision(replace(state, request_at=now))
        fault = f"the coordination service stores epoch {record.epoch}, and this member {state.epoch}: was it restored?"
        # The service may return such a record for hours: it is read at intervals, and a lease of this member is released once.
        return _exclude(replace(state, snapshot=snapshot, request_at=now + state.times.poll_s), fault, now)
    opened = state.open_write
    state = replace(state, snapshot=snapshot, request_at=now if state.role in LEADING else now + state.times.poll_s)
    if opened is not None and (
        _has_token(snapshot, opened.record.token) or snapshot.version != opened.expected.version
    ):
        state = replace(state, open_write=None)  # applied, or refused for good
        if isinstance(opened, AcquireLease) and state.role is C:
            return _on_acquired(state, snapshot, opened, now)
    if state.role is C and isinstance(state.open_write, AcquireLease):
        return Decision(state)
    if state.role in LEADING and _is_led(state, snapshot):
        return Decision(state)
    return _follow(state, snapshot, now)


def _on_acquired(state: MemberState, snapshot: RecordSnapshot, opened: AcquireLease, now: float) -> Decision:
    """Prepare to serve, if the lease was acquired."""
    if not _has_token(snapshot, opened.record.token) or not snapshot.lease:
        return _follow(replace(state, role=F), snapshot, now)
    epoch = opened.record.epoch
    state = replace(state, epoch=epoch, epoch_at=now, free_since=None)
    return Decision(state, (StoreEpoch(epoch), FenceMembers(epoch), PromoteLog(epoch)))


def _follow(state: MemberState, snapshot: RecordSnapshot, now: float) -> Decision:
    """Follow the record's holder, or try to succeed it. A member that led has stopped before."""
    actions = _end_epoch(state)
    record = snapshot.record
    state = replace(state, open_write=None, role=R if state.role in LEADING else state.role)
    if record is None:
        return Decision(state, actions)
    if record.epoch > state.epoch:
        state = replace(state, epoch=record.epoch, epoch_at=now, role=X if state.role is X else R)
        actions += (StoreEpoch(record.epoch),)
    if snapshot.lease and record.holder != state.me.name:
        state = replace(state, free_since=None)
        if state.following == (record.holder, record.epoch):
            return Decision(state, actions)
        state = replace(state, following=(record.holder, record.epoch), role=X if state.role is X else R)
        return Decision(state, (*actions, FollowHolder(record)))
    if snapshot.lease:  # a lease of this member that it does not lead by: of an earlier process, or acquired too late
        state = replace(state, free_since=None, role=F if state.role is R else state.role)
        return _then(state, _idle, now, *actions)
    # The lease is free. The log of a member of the set has everything confirmed, whether it is reconciled or not.
    free_since = now if state.free_since is None else state.free_since
    state = replace(state, free_since=free_since, role=F if state.role is R else state.role)
    waits = record.successor not in ("", state.me.name) and now < free_since + state.times.ttl_s / 2
    if refusal(state, now) or waits or state.is_comparing:
        return Decision(state, actions)
    return Decision(replace(state, is_comparing=True), (*actions, CompareEnds(record)))


def _idle(state: MemberState, now: float) -> Decision:
    """Send the request that is due of a member that does not lead. It releases a lease that is its own."""
    if state.busy_since is not None:
        return Decision(state)
    if (snapshot := state.snapshot) is not None and snapshot.lease and _is_own(state, snapshot.record):
        assert snapshot.record is not None
        record = replace(snapshot.record, token=_token(state), successor=state.successor)
        return _send(state, ReleaseLease(snapshot, record), now)
    return _send(state, ReadRecord(), now) if now >= state.request_at else Decision(state)


def _lead(state: MemberState, now: float) -> Decision:
    """Send the request that is due of a member that leads: a renewal, or the write whose outcome is open.

    A candidate renews as well: to open a store with many topics may take longer than a lease.
    """
    if state.busy_since is not None:
        return Decision(state)
    has_lease = state.role is not C or state.open_write is None
    if has_lease and now >= state.request_at and state.snapshot is not None:
        return _send(state, RenewLease(state.snapshot), now)
    return _send(state, state.open_write, now) if state.open_write is not None else Decision(state)


def _send(state: MemberState, request: ServiceRequest, now: float) -> Decision:
    writes = state.writes + (not isinstance(request, ReadRecord | RenewLease))
    return Decision(replace(state, busy_since=now, writes=writes), (request,))


def _extend(state: MemberState, deadline: float, now: float) -> Decision:
    state = replace(state, deadline=max(state.deadline, deadline))
    if state.role is H and now < state.deadline:
        return Decision(replace(state, role=M), (ResumeAnswers(state.epoch),))
    return Decision(state)


def _yield(state: MemberState, role: MemberRole, now: float) -> Decision:
    """Stop leading, release the lease, and be no candidate for a ttl, so that another member gets it."""
    actions = _end_epoch(state)
    state = replace(state, role=role, open_write=None, backoff_until=now + state.times.ttl_s)
    return _then(state, _idle, now, *actions)


def _exclude(state: MemberState, fault: str, now: float) -> Decision:
    """Make a member ineligible: for a while if it led, so that it is not elected again at once."""
    readmission_s = state.times.readmission_s if state.role in LEADING else state.readmission_s
    return _yield(replace(state, fault=fault, readmission_s=readmission_s), X, now)


def _end_epoch(state: MemberState) -> tuple[MemberAction, ...]:
    return (EndEpoch(state.epoch),) if state.role in LEADING else ()


def _then(
    state: MemberState, rule: Callable[[MemberState, float], Decision], now: float, *actions: MemberAction
) -> Decision:
    """Return the decision of `rule`, with `actions` before its own."""
    decision = rule(state, now)
    return Decision(decision.state, actions + decision.actions)


def _is_own(state: MemberState, record: LeaderRecord | None) -> bool:
    """Return whether this process wrote the record as its holder: a name alone does not say which process."""
    return record is not None and record.holder == state.me.name and record.token.rpartition(".")[0] == state.nonce


def _is_led(state: MemberState, snapshot: RecordSnapshot) -> bool:
    return bool(snapshot.lease) and _is_own(state, snapshot.record) and _epoch(snapshot) == state.epoch


def _epoch(snapshot: RecordSnapshot) -> int:
    return snapshot.record.epoch if snapshot.record is not None else -1


def _has_token(snapshot: RecordSnapshot, token: str) -> bool:
    return snapshot.record is not None and snapshot.record.token == token


def _token(state: MemberState) -> str:
    return f"{state.nonce}.{state.writes}"
