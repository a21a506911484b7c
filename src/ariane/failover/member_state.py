"""Values of the decisions of a member: its state, what it observes, and what it does then. `decisions` has the rules."""

from __future__ import annotations

from enum import Enum

import msgspec

from ariane.errors import ConfigError
from ariane.failover.coordination import RecordSnapshot, WriteResult
from ariane.failover.leader_record import InSyncMember, LeaderRecord

NEVER = float("-inf")


class MemberRole(Enum):
    """What a member does in its broker set."""

    FOLLOWER = "F"  # copies the log of the holder, and may become a candidate
    CANDIDATE = "C"  # acquires the lease, then prepares its log
    MASTER = "M"  # serves until its deadline
    HOLDING = "H"  # was master; its deadline passed: answers nothing, and waiters stay
    RECONCILING = "R"  # its log may not be a prefix of the holder's
    INELIGIBLE = "X"  # disk or event loop do not respond, or the operator excluded it


LEADING = frozenset({MemberRole.CANDIDATE, MemberRole.MASTER, MemberRole.HOLDING})


class LeaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a lease in seconds.

    Raises:
        ConfigError: a renewal that needs all its attempts would be later than the deadline.
    """

    ttl_s: float = 10.0
    renew_s: float = 3.0  # from the start of a renewal to the next one
    attempt_s: float = 1.5  # time limit per endpoint; a request tries two
    margin_s: float = 2.0  # before the end of the lease: drift of clocks, and the time from a check to its effect
    poll_s: float = 1.0  # between reads of a member that does not lead
    probe_limit_s: float = 0.0  # age of the last disk probe beyond which a member does not renew; 0: a third of the ttl
    has_failsafe: bool = False  # without the coordination service, serve if every member of the set agrees

    def __post_init__(self) -> None:
        if not all(value > 0 for value in (self.ttl_s, self.renew_s, self.attempt_s, self.margin_s, self.poll_s)):
            raise ConfigError("ttl, renew, attempt, margin, poll", None, "set each of them to more than 0 s")
        if self.renew_s + 2 * self.attempt_s > self.ttl_s - self.margin_s:
            raise ConfigError("ttl", f"{self.ttl_s:g} s", "set it to at least renew + 2 × attempt + margin")

    @property
    def loop_limit_s(self) -> float:
        """Age of the last turn of the event loop beyond which a member does not renew."""
        return self.ttl_s / 3

    @property
    def disk_limit_s(self) -> float:
        """Age of the last disk probe beyond which a member does not renew."""
        return self.probe_limit_s or self.ttl_s / 3

    @property
    def prepare_s(self) -> float:
        """Time within which a candidate has to be master. Its disk and its event loop respond meanwhile, as those of a master."""
        return 30 * self.ttl_s

    @property
    def readmission_s(self) -> float:
        """Time for which disk and event loop of a member that led must respond again before it takes part."""
        return 2 * self.ttl_s


# --- requests to the coordination service: one at a time ---


class ReadRecord(msgspec.Struct, frozen=True):
    """Read the record."""


class AcquireLease(msgspec.Struct, frozen=True):
    """Store `record` with a new lease."""

    expected: RecordSnapshot
    record: LeaderRecord


class RenewLease(msgspec.Struct, frozen=True):
    """Replace the lease by a new one."""

    expected: RecordSnapshot


class SwapRecord(msgspec.Struct, frozen=True):
    """Store `record`, with another in-sync set, under the lease."""

    expected: RecordSnapshot
    record: LeaderRecord


class ReleaseLease(msgspec.Struct, frozen=True):
    """End the lease."""

    expected: RecordSnapshot
    record: LeaderRecord


ServiceRequest = ReadRecord | AcquireLease | RenewLease | SwapRecord | ReleaseLease


# --- actions at the broker ---


class HoldAnswers(msgspec.Struct, frozen=True):
    """Answer nothing and do not register; waiters stay. Takes effect at once."""


class ResumeAnswers(msgspec.Struct, frozen=True):
    """Serve as master of `epoch`. Takes effect at once."""

    epoch: int


class EndEpoch(msgspec.Struct, frozen=True):
    """Stop serving `epoch`: its waiters fail, and a promotion in progress is cancelled. Takes effect at once."""

    epoch: int


class StoreEpoch(msgspec.Struct, frozen=True):
    """Store `epoch` durably; refuse lower ones from then on."""

    epoch: int


class FenceMembers(msgspec.Struct, frozen=True):
    """Ask every reachable member to store `epoch`."""

    epoch: int


class PromoteLog(msgspec.Struct, frozen=True):
    """Cut an incomplete tail, store the start of `epoch`, and prepare to serve. Ends with `Promoted` or `PromotionFailed`."""

    epoch: int


class FollowHolder(msgspec.Struct, frozen=True):
    """Make the log a prefix of the holder's and copy it from then on. `Reconciled` reports the first."""

    record: LeaderRecord


class CompareEnds(msgspec.Struct, frozen=True):
    """Read the ends of the logs of reachable members of the set. Ends with `EndsCompared`."""

    record: LeaderRecord


class AskFailsafe(msgspec.Struct, frozen=True):
    """Ask `members` whether this member may go on without the coordination service. Ends with `FailsafeAnswered`."""

    epoch: int
    members: frozenset[str]


BrokerAction = (
    HoldAnswers
    | ResumeAnswers
    | EndEpoch
    | StoreEpoch
    | FenceMembers
    | PromoteLog
    | FollowHolder
    | CompareEnds
    | AskFailsafe
)
MemberAction = ServiceRequest | BrokerAction


# --- observations ---


class TimePassed(msgspec.Struct, frozen=True):
    """Time passed. Both times are of the clock of decisions."""

    probe_at: float  # start of the last disk probe that completed
    loop_at: float  # last turn of the broker's event loop


class ServiceAnswered(msgspec.Struct, frozen=True):
    """The request in flight ended. A read that failed has an unknown outcome."""

    request: ServiceRequest
    result: WriteResult


class MemberEnd(msgspec.Struct, frozen=True, order=True):
    """The end of a member's log. The order is that of candidates."""

    epoch: int  # of the last record
    end: int
    name: str
    may_lead: bool = True  # False: it would refuse to be a candidate
    has_room: bool = True  # False: its disk is nearly full, so that it would refuse messages


class EndsCompared(msgspec.Struct, frozen=True):
    """The ends of reachable members, this one included."""

    ends: tuple[MemberEnd, ...]


class Promoted(msgspec.Struct, frozen=True):
    """The log is ready to serve `epoch`."""

    epoch: int


class PromotionFailed(msgspec.Struct, frozen=True):
    """The log could not be prepared."""

    reason: str


class Reconciled(msgspec.Struct, frozen=True):
    """The log is a prefix of the log of the holder of `epoch`."""

    epoch: int


class EpochNamed(msgspec.Struct, frozen=True):
    """A member names `epoch`, of this set or of another one: the record shows whether it is one of this set."""

    epoch: int


class HigherEpoch(msgspec.Struct, frozen=True):
    """The record has `epoch`, or a candidate names it while the coordination service cannot be read."""

    epoch: int


class FailsafeAnswered(msgspec.Struct, frozen=True):
    """The members that agreed."""

    epoch: int
    accepted: frozenset[str]
    asked_at: float


class SetWanted(msgspec.Struct, frozen=True):
    """The in-sync set that the master's log suggests. Observed again until the record has it."""

    members: tuple[InSyncMember, ...]


class StopRequested(msgspec.Struct, frozen=True):
    """The member stops; `successor` may be empty."""

    successor: str = ""


class HandOver(msgspec.Struct, frozen=True):
    """The operator wants `successor` to lead; the member follows it then. Empty: any other member."""

    successor: str = ""


class LossAccepted(msgspec.Struct, frozen=True):
    """The operator wants this member to lead with its log: none of the stored set may lead, and what only they have is lost."""


Observation = (
    TimePassed
    | ServiceAnswered
    | EndsCompared
    | Promoted
    | PromotionFailed
    | Reconciled
    | EpochNamed
    | HigherEpoch
    | FailsafeAnswered
    | SetWanted
    | StopRequested
    | HandOver
    | LossAccepted
)


class MemberState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a member. Times are seconds of CLOCK_BOOTTIME."""

    me: InSyncMember
    nonce: str  # unique per process: marks the tokens of its writes
    times: LeaseTimes
    started_at: float
    epoch: (
        int  # highest one that is stored here; the one that it leads in the roles M and H, and in C after it acquired
    )
    epoch_at: float  # when it was stored
    role: MemberRole = MemberRole.RECONCILING
    snapshot: RecordSnapshot | None = None  # last one received
    writes: int = 0  # tokens that were used
    busy_since: float | None = None  # when the request in flight was decided
    request_at: float = NEVER  # when the next read or renewal is due
    deadline: float = NEVER  # until when it may answer; in the role C, until when it must be master
    candidate_since: float = NEVER  # in the role C
    open_write: AcquireLease | SwapRecord | None = None  # its outcome is not known
    following: tuple[str, int] = ("", 0)  # holder and epoch of the last `FollowHolder`
    free_since: float | None = None  # since when it sees the lease free
    healthy_since: float | None = None
    readmission_s: float = 0.0  # how long it must be healthy until it is eligible again
    backoff_until: float = NEVER  # no candidate until then: it released a lease
    failsafe_until: float = NEVER  # no candidate until then: it agreed that the master goes on
    is_comparing: bool = False  # `CompareEnds` has no result yet
    is_stopping: bool = False
    successor: str = ""  # for which it releases the lease when it stops
    fault: str = ""  # why it is ineligible


class Decision(msgspec.Struct, frozen=True):
    """The next state, and what to do, in this order."""

    state: MemberState
    actions: tuple[MemberAction, ...] = ()
