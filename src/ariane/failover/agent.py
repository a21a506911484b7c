"""The agent of a member: runs its decisions, with one request to the coordination service at a time.

    observations ──► decide ──► requests to the service, one at a time ──► observation
                          └──► work at the broker, in order           ──► observation
                          └──► hold, resume, end of an epoch: at once

A broker gives it a `FailoverReplica`. Its clock is CLOCK_BOOTTIME, and each answer of the broker is checked by `may_answer`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection
from typing import Protocol

from ariane.errors import ArianeError
from ariane.failover import decisions
from ariane.failover.coordination import UNKNOWN_RESULT, Coordination, WriteOutcome, WriteResult
from ariane.failover.leader_record import InSyncMember, LeaderRecord
from ariane.failover.member_state import (
    AcquireLease,
    AskFailsafe,
    BrokerAction,
    CompareEnds,
    EndEpoch,
    EndsCompared,
    EpochNamed,
    FailsafeAnswered,
    FenceMembers,
    FollowHolder,
    HoldAnswers,
    MemberAction,
    MemberEnd,
    MemberState,
    Observation,
    Promoted,
    PromoteLog,
    PromotionFailed,
    ReadRecord,
    ReleaseLease,
    RenewLease,
    ResumeAnswers,
    ServiceAnswered,
    ServiceRequest,
    StoreEpoch,
    SwapRecord,
    TimePassed,
)

log = logging.getLogger("ariane.failover")

TICK_S = 0.25  # between checks of deadlines and due requests; answers are checked by themselves
CANCELLED_BY_END = (FenceMembers, PromoteLog)


class BootClock(Protocol):
    """The clock of decisions."""

    def boottime(self) -> float:
        """Return seconds since an arbitrary instant, suspended time included (CLOCK_BOOTTIME)."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait until `seconds` have passed."""
        ...


class FailoverReplica(Protocol):
    """The broker of a member, for its agent."""

    def health(self) -> TimePassed:
        """Return when disk and event loop responded last."""
        ...

    def hold(self) -> None:
        """Answer nothing and do not register; waiters stay."""
        ...

    def resume(self, epoch: int) -> None:
        """Serve as master of `epoch`."""
        ...

    def end_epoch(self, epoch: int) -> None:
        """Stop serving `epoch`, fail its waiters, and answer held pulls."""
        ...

    async def store_epoch(self, epoch: int) -> None:
        """Store `epoch` durably, and refuse lower ones from then on."""
        ...

    async def fence(self, epoch: int) -> int:
        """Ask every reachable member to store `epoch`. Return the highest epoch that one of them has."""
        ...

    async def promote(self, epoch: int) -> None:
        """Cut an incomplete tail and store the start of `epoch`."""
        ...

    async def follow(self, record: LeaderRecord) -> None:
        """Follow `record.holder` from now on; returns at once. The broker reports `Reconciled` to the agent."""
        ...

    async def ends(self, members: Collection[InSyncMember]) -> tuple[MemberEnd, ...]:
        """Return the ends of the logs of reachable members, its own included."""
        ...

    async def ask_failsafe(self, epoch: int, members: Collection[str]) -> frozenset[str]:
        """Return which of `members` agree that this member goes on."""
        ...


class FailoverAgent:
    """Runs the decisions of one member."""

    def __init__(
        self, state: MemberState, *, service: Coordination, replica: FailoverReplica, clock: BootClock
    ) -> None:
        self.state = state
        self._service = service
        self._replica = replica
        self._clock = clock
        self._request: ServiceRequest | None = None  # decided, not sent
        self._work: deque[BrokerAction] = deque()  # at the broker, in order
        self._running: asyncio.Task[None] | None = None  # the first of that work
        self._changed = asyncio.Event()  # a request or work was added

    def observe(self, observation: Observation) -> None:
        """Decide, and start what follows."""
        before = self.state
        decision = decisions.decide(before, observation, self._clock.boottime())
        self.state = decision.state
        if self.state.role is not before.role:
            log.info(
                "Role of %s: %s -> %s, epoch %d (%s)",
                self.state.me.name,
                before.role.name,
                self.state.role.name,
                self.state.epoch,
                self.state.fault or type(observation).__name__,
            )
        for action in decision.actions:
            self._start(action)

    def may_answer(self, epoch: int) -> bool:
        """Return whether answers of `epoch` may be written now."""
        return decisions.may_answer(self.state, epoch, self._clock.boottime())

    def answer_failsafe(self, holder: str, epoch: int) -> bool:
        """Return whether this member agrees that `holder` goes on without the coordination service."""
        self.state, agrees = decisions.answer_failsafe(self.state, holder, epoch, self._clock.boottime())
        return agrees

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            tasks.create_task(self._send_requests())
            tasks.create_task(self._do_work())

    def _start(self, action: MemberAction) -> None:
        match action:
            case HoldAnswers():
                self._replica.hold()
            case ResumeAnswers(epoch):
                self._replica.resume(epoch)
            case EndEpoch(epoch):
                self._work = deque(work for work in self._work if not isinstance(work, CANCELLED_BY_END))
                if self._running is not None:
                    self._running.cancel()
                self._replica.end_epoch(epoch)
            case ReadRecord() | AcquireLease() | RenewLease() | SwapRecord() | ReleaseLease():
                self._request = action
                self._changed.set()
            case _:
                self._work.append(action)
                self._changed.set()

    async def _tick(self) -> None:
        while True:
            self.observe(self._replica.health())
            await self._clock.sleep(TICK_S)

    async def _send_requests(self) -> None:
        while True:
            while (request := self._request) is None:
                await self._wait_changed()
            self._request = None
            try:
                result = await self._send(request)
            except ArianeError as error:
                log.warning("The coordination service did not answer %s: %s", type(request).__name__, error)
                result = UNKNOWN_RESULT
            except Exception:  # such as an unexpected answer: the member must take part again with the next one
                log.exception("The request %s failed", type(request).__name__)
                result = UNKNOWN_RESULT
            self.observe(ServiceAnswered(request, result))

    async def _send(self, request: ServiceRequest) -> WriteResult:
        service = self._service
        match request:
            case AcquireLease(expected, record):
                return await service.acquire(expected, record)
            case RenewLease(expected):
                return await service.renew(expected)
            case SwapRecord(expected, record):
                return await service.swap(expected, record)
            case ReleaseLease(expected, record):
                return await service.release(expected, record)
            case ReadRecord():
                return WriteResult(WriteOutcome.DONE, await service.read())

    async def _do_work(self) -> None:
        while True:
            while not self._work:
                await self._wait_changed()
            action = self._work.popleft()
            if not isinstance(action, CANCELLED_BY_END):
                await self._do(action)
                continue
            self._running = asyncio.create_task(self._do(action))
            await asyncio.wait([self._running])
            task, self._running = self._running, None
            if not task.cancelled():
                task.result()

    async def _do(self, action: BrokerAction) -> None:
        replica = self._replica
        match action:
            case StoreEpoch(epoch):
                await replica.store_epoch(epoch)
            case FenceMembers(epoch):
                self.observe(EpochNamed(await replica.fence(epoch)))
            case PromoteLog(epoch):
                try:
                    await replica.promote(epoch)
                except ArianeError as error:
                    self.observe(PromotionFailed(str(error)))
                else:
                    self.observe(Promoted(epoch))
            case FollowHolder(record):
                await replica.follow(record)
            case CompareEnds(record):
                self.observe(EndsCompared(await replica.ends(record.in_sync)))
            case AskFailsafe(epoch, members):
                asked_at = self._clock.boottime()
                self.observe(FailsafeAnswered(epoch, await replica.ask_failsafe(epoch, members), asked_at))

    async def _wait_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()
