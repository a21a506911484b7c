"""A broker set in virtual time: three members with a small log, the real agents and decisions, clients, and faults.

    run = simulate(seed, faults=40)        # raises InvariantBroken
    simulate(seed, planted="…")            # a rule removed: some seed raises

The members replicate a list of records by polling; the broker's own replication is not part of it. Everything else that decides is
the code of `ariane.failover`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Collection
from contextvars import Context
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from ariane.errors import ArianeError, CoordinationUnavailable
from ariane.failover import decisions
from ariane.failover.agent import FailoverAgent
from ariane.failover.coordination import WriteOutcome
from ariane.failover.leader_record import InSyncMember, LeaderRecord
from ariane.failover.member_state import (
    NEVER,
    EpochNamed,
    HigherEpoch,
    LeaseTimes,
    MemberEnd,
    MemberRole,
    MemberState,
    Reconciled,
    SetWanted,
    StopRequested,
    TimePassed,
)
from ariane.testing.virtual.virtual_time import ProcessKilled, VirtualLoop
from coordination_model import CoordinationModel
from failover_checker import FailoverChecker, InvariantBroken, LogEntry

NAMES = ("a", "b", "c")
CALL_S = 0.3  # time limit of a call between members
FETCH_S = 0.25
LAG_S = 1.5
FLUSH_S = 0.5
REOPEN_S = 5.0
SERVING = (MemberRole.MASTER, MemberRole.HOLDING)


class Unreachable(ArianeError):
    """A member did not answer, or refused."""


class MemberDisk:
    """What a member has stored."""

    def __init__(self, name: str) -> None:
        self.member = InSyncMember(name, "0")
        self.log: list[LogEntry] = []
        self.flushed = 0
        self.epoch = 0
        self.boots = 0
        self.hung_until = 0.0
        # Since a failed flush: entries from here on can be read, and are not on the disk, although later flushes succeed.
        self.dropped: int | None = None
        self.proven: int | None = None  # where the entries end that the member trusts; None: it trusts all

    def epochs(self) -> list[int]:
        return [epoch for epoch, _ in self.log]

    def next_incarnation(self) -> None:
        self.boots += 1
        self.member = InSyncMember(self.member.name, str(self.boots))

    def cut(self, end: int) -> None:
        del self.log[end:]
        self.flushed = min(self.flushed, end)
        self.proven = None
        if self.dropped is not None and end <= self.dropped:
            self.dropped = None  # what is written there from now on is flushed

    def lose_cache(self, end: int) -> None:
        """Lose the entries from `end` on, and those that a failed flush dropped."""
        end = end if self.dropped is None else min(end, self.dropped)
        del self.log[end:]
        self.flushed, self.dropped = min(self.flushed, end), None


class MemberClock:
    """CLOCK_BOOTTIME of a machine: drifts, and starts anywhere."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self._loop = loop
        self._rate = 1 + rng.uniform(-0.0005, 0.0005)
        self._start = rng.uniform(0, 1000)
        self.suspended_s = 0.0  # planted fault: CLOCK_MONOTONIC, which stands still meanwhile

    def boottime(self) -> float:
        return self._start + (self._loop.time() - self.suspended_s) * self._rate

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SimulatedMember:
    """One process of a member; its disk and clock outlive it."""

    def __init__(self, world: FailoverWorld, name: str) -> None:
        self.world, self.name = world, name
        self.disk, self.clock = world.disks[name], world.clocks[name]
        world.starts += 1
        now = self.clock.boottime()
        state = MemberState(
            me=self.disk.member,
            nonce=f"{name}{world.starts}",
            times=world.times,
            started_at=now,
            epoch=self.disk.epoch,
            epoch_at=now,
        )
        self.service = world.service.client(name)
        self.agent = FailoverAgent(state, service=self.service, replica=self, clock=self.clock)
        self.process = world.loop.process(name)
        self.confirmed = 0
        self.own = self.disk.member  # the incarnation that leads
        self.has_failed = False  # a flush, until the store is opened again
        self.epoch_start = 0  # where the log of the epoch that it leads begins
        self.target: LeaderRecord | None = None  # record of the holder that it follows
        self.is_reconciled = False
        self.copied: dict[InSyncMember, int] = {}  # of members that copied from this epoch
        self.caught_up_at: dict[InSyncMember, float] = {}
        self.complete: set[InSyncMember] = set()  # members that have all records, as of the last look at the set
        self.waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.probe_at = self.loop_at = now
        for work in (self.agent.run, self._probe, self._turn, self._flush, self._follow, self._maintain_set):
            self.process.start(self._guard(work)).add_done_callback(retrieved, context=Context())

    @property
    def state(self) -> MemberState:
        return self.agent.state

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:
            self.world.broken(error)

    # --- background ---

    async def _disk(self) -> None:
        while self.world.loop.time() < self.disk.hung_until:
            await asyncio.sleep(0.1)

    async def _probe(self) -> None:
        while True:
            started = self.clock.boottime()
            await self._disk()
            self.probe_at = started
            await asyncio.sleep(0.5)

    async def _turn(self) -> None:
        while True:
            self.loop_at = self.clock.boottime()
            await asyncio.sleep(0.5)

    async def _flush(self) -> None:
        while True:
            await self._disk()
            self.disk.flushed = len(self.disk.log)
            await asyncio.sleep(FLUSH_S)

    async def _maintain_set(self) -> None:
        while True:
            await asyncio.sleep(0.3)
            if self.state.role is not MemberRole.MASTER or self.state.snapshot is None:
                continue
            now = self.clock.boottime()
            fresh = {m for m, at in self.caught_up_at.items() if now - at <= LAG_S and self.copied[m] >= self.confirmed}
            self.complete = {self.own, *fresh}
            wanted, names = set(self.complete), {member.name for member in self.complete}
            if len(wanted) < self.world.min_in_sync and self.world.planted != "set below the least size":
                wanted |= {member for member in self.stored_set() if member.name not in names}
            self.agent.observe(SetWanted(tuple(wanted)))
            self.confirm()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(FETCH_S)
            target = self.target
            is_leading = self.state.role in decisions.LEADING
            if target is None or target.holder == self.name or is_leading or self.has_failed:
                continue
            try:
                await self._copy(target)
            except Unreachable:
                continue

    async def _copy(self, target: LeaderRecord) -> None:
        disk = self.disk
        if not self.is_reconciled:
            epochs = await self.world.call(self.name, target.holder, "handshake", target.epoch)
            if not self._is_current(target):
                return
            same = next((at for at, (a, b) in enumerate(zip(epochs, disk.epochs(), strict=False)) if a != b), None)
            end = min(len(epochs), len(disk.log)) if same is None else same
            if disk.proven is not None and self.world.planted != "records of a failed flush are trusted":
                end = min(end, disk.proven)
            self.world.checker.on_cut(disk.member, disk.log, end)
            disk.cut(end)
            self.is_reconciled = True
            self.agent.observe(Reconciled(target.epoch))
        await self._disk()
        if self.world.has_flushed_acks and self.world.planted != "acknowledged before the flush":
            disk.flushed = len(disk.log)
        if self.has_failed:
            return
        answer = await self.world.call(self.name, target.holder, "fetch", disk.member, target.epoch, len(disk.log))
        epoch, start, entries, confirmed = answer
        if not self._is_current(target) or epoch < disk.epoch or start != len(disk.log):
            return
        disk.log.extend(entries)
        self.confirmed = min(confirmed, len(disk.log))

    def _is_current(self, target: LeaderRecord) -> bool:
        is_following = self.target is target and self.state.role not in decisions.LEADING
        return is_following and target.epoch >= self.disk.epoch and not self.has_failed

    # --- calls of other members and of clients ---

    def _check_epoch(self, epoch: int) -> None:
        self.agent.observe(EpochNamed(epoch))
        if self.state.role not in SERVING or epoch != self.state.epoch:
            raise Unreachable(f"{self.name} does not lead epoch {epoch}")

    async def handshake(self, epoch: int) -> list[int]:
        self._check_epoch(epoch)
        return self.disk.epochs()

    async def fetch(self, member: InSyncMember, epoch: int, end: int) -> tuple[int, int, list[LogEntry], int]:
        self._check_epoch(epoch)
        for former in [other for other in self.copied if other.name == member.name and other != member]:
            del self.copied[former]
            self.caught_up_at.pop(former, None)
        self.copied[member] = end
        if end >= len(self.disk.log):
            self.caught_up_at[member] = self.clock.boottime()
        self.confirm()
        return self.state.epoch, end, self.disk.log[end : end + 50], self.confirmed

    async def promise(self, epoch: int) -> int:
        await self._disk()
        with contextlib.suppress(CoordinationUnavailable):
            record = (await self.service.read()).record
            epoch = min(epoch, record.epoch if record is not None else 0)
        self.agent.observe(HigherEpoch(epoch))
        await self.store_epoch(epoch)
        return self.disk.epoch

    async def end(self) -> MemberEnd:
        reason = decisions.refusal(self.state, self.clock.boottime())
        return MemberEnd(self.disk.log[-1][0] if self.disk.log else 0, len(self.disk.log), self.name, not reason)

    async def agree(self, holder: str, epoch: int) -> bool:
        return self.agent.answer_failsafe(holder, epoch)

    async def send(self, value: str) -> None:
        epoch = self.state.epoch
        await self._disk()
        if not self.agent.may_answer(epoch) or len(self.complete) < self.world.min_in_sync or self.has_failed:
            raise Unreachable("not a master, too few members, or a failed disk")
        self.disk.log.append((epoch, value))
        position = len(self.disk.log) - 1
        waiter: asyncio.Future[None] = self.world.loop.create_future()
        waiter.add_done_callback(retrieved, context=Context())
        self.waiters.append((position, waiter))
        if self.world.has_flushed_acks:
            await asyncio.sleep(0.01)
            await self._disk()
            self.disk.flushed = len(self.disk.log)
        self.confirm()
        is_checked = self.world.planted != "check when the wait begins"
        await waiter
        await asyncio.sleep(self.world.rng.choice((0, 0.05)))  # the turn in which the answer is written
        if is_checked and not self.agent.may_answer(epoch):
            raise Unreachable("the epoch ended")
        self.world.checker.on_acknowledged(self.name, epoch, position, value)

    async def read(self) -> None:
        epoch = self.state.epoch
        # The confirmed end of a former holder may be higher until this epoch has confirmed what it began with.
        if not self.agent.may_answer(epoch) or self.confirmed < self.epoch_start:
            raise Unreachable("not a master")
        self.world.checker.on_read(self.name, epoch, self.confirmed)

    def stored_set(self) -> Collection[InSyncMember]:
        snapshot = self.state.snapshot
        return snapshot.record.in_sync if snapshot and snapshot.record else ()

    def confirm(self) -> None:
        """Move the confirmed end to the least end of the required members."""
        if self.state.role not in SERVING:
            return
        log = self.disk.log
        own = self.disk.flushed if self.world.has_flushed_acks else len(log)
        required = decisions.required_members(self.state)
        ends = [own if member == self.disk.member else self.copied.get(member, 0) for member in required]
        if self.world.planted == "maximum":
            ends = [own if len(ends) == 1 else max(self.copied.values(), default=0)]
        end = min(*ends, len(log))
        if end > self.confirmed:
            self.world.checker.on_confirmed(self.name, log, end)
            self.confirmed = end
        ready = [waiter for position, waiter in self.waiters if position < self.confirmed]
        self.waiters = [(position, waiter) for position, waiter in self.waiters if position >= self.confirmed]
        for waiter in ready:
            if not waiter.done():
                waiter.set_result(None)

    async def fail_flush(self) -> None:
        """Fail a flush, and open the store again later."""
        disk = self.disk
        disk.dropped = disk.proven = min(at for at in (disk.flushed, disk.dropped, disk.proven) if at is not None)
        if self.world.planted != "same incarnation after a failed flush":
            disk.next_incarnation()
            self.agent.state = replace(self.state, me=disk.member)
        self.has_failed = True
        await asyncio.sleep(REOPEN_S)
        while self.state.role in decisions.LEADING:
            await asyncio.sleep(FETCH_S)
        self.has_failed = self.is_reconciled = False

    # --- FailoverReplica ---

    def health(self) -> TimePassed:
        return TimePassed(NEVER if self.has_failed else self.probe_at, self.loop_at)

    def hold(self) -> None:
        pass

    def resume(self, epoch: int) -> None:
        self.confirm()

    def end_epoch(self, epoch: int) -> None:
        waiters, self.waiters = self.waiters, []
        self.copied, self.caught_up_at = {}, {}
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(Unreachable("the epoch ended"))

    async def store_epoch(self, epoch: int) -> None:
        await self._disk()
        if epoch > self.disk.epoch:
            self.disk.epoch = epoch
            self.world.checker.on_epoch_stored(self.name, epoch)

    async def fence(self, epoch: int) -> int:
        promises = await self.world.ask(self.name, "promise", epoch)
        return max([epoch, *(stored for _, stored in promises)])

    async def promote(self, epoch: int) -> None:
        await asyncio.sleep(self.world.rng.uniform(0, 0.3) + self.world.prepare_s)
        await self._disk()
        self.copied, self.caught_up_at, self.complete, self.target = {}, {}, set(self.stored_set()), None
        self.own = self.disk.member
        self.confirmed = min(self.confirmed, len(self.disk.log))
        self.epoch_start = len(self.disk.log)
        self.world.checker.on_promoted(self.name, epoch, self.disk.log)

    async def follow(self, record: LeaderRecord) -> None:
        self.target, self.is_reconciled = record, False

    async def ends(self, members: Collection[InSyncMember]) -> tuple[MemberEnd, ...]:
        ends = await self.world.ask(self.name, "end")
        return (await self.end(), *(end for _, end in ends))

    async def ask_failsafe(self, epoch: int, members: Collection[str]) -> frozenset[str]:
        answers = await self.world.ask(self.name, "agree", self.name, epoch)
        return frozenset(name for name, agrees in answers if agrees)


class SimulationResult(NamedTuple):
    """What a run did."""

    faults: int
    acknowledged: int
    reads: int
    epochs: int
    is_unavailable: bool  # by rule: no member of the stored set has its incarnation


class FailoverWorld:
    """The members, their network, and the service."""

    def __init__(self, loop: VirtualLoop, seed: int, planted: str = "", *, prepare_s: float = 0.0) -> None:
        self.loop, self.planted = loop, planted
        self.prepare_s = prepare_s  # that each promotion takes at least
        self.rng = rng = random.Random(seed)
        # A planted fault of deadlines needs answers that take longer than the margin.
        renew_s, attempt_s, margin_s = (1.0, 2.5, 1.5) if planted else rng.choice(((3.0, 1.5, 2.0), (1.0, 2.5, 1.5)))
        has_failsafe = rng.random() < 0.5
        self.times = LeaseTimes(renew_s=renew_s, attempt_s=attempt_s, margin_s=margin_s, has_failsafe=has_failsafe)
        self.has_flushed_acks = rng.random() < 0.5 or planted == "acknowledged before the flush"  # SYNC_FLUSH
        self.min_in_sync = rng.choice((1, 2))
        self.disks = {name: MemberDisk(name) for name in NAMES}
        self.clocks = {name: MemberClock(loop, rng) for name in NAMES}
        self.checker = FailoverChecker(
            lambda: {disk.member: disk.log for disk in self.disks.values()}, least_members=self.min_in_sync
        )
        self.service = CoordinationModel(loop, rng, ttl_s=self.times.ttl_s, limit_s=2 * attempt_s)
        self.service.on_write = self._on_written
        self.blocked: set[tuple[str, str]] = set()  # from, to
        self.members: dict[str, SimulatedMember] = {}
        self.starts = self.values = self.faults = 0
        self.failure: BaseException | None = None

    def _on_written(self, record: LeaderRecord) -> None:
        try:
            self.checker.on_written(record)
        except InvariantBroken as error:
            self.broken(error)  # agents survive an exception of the service
            raise

    def broken(self, error: BaseException) -> None:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self.failure = self.failure or error

    async def start(self) -> None:
        members = [disk.member for disk in self.disks.values()]
        created = await self.service.client("operator").create(decisions.first_record(members, "o.0"))
        assert created.outcome is WriteOutcome.DONE
        for name in NAMES:
            self.members[name] = SimulatedMember(self, name)

    # --- network ---

    async def call(self, source: str, target: str, method: str, *args: Any) -> Any:
        """Call a method of another member.

        Raises:
            Unreachable: no answer within CALL_S, or a refusal.
        """
        deadline = self.loop.time() + CALL_S
        await asyncio.sleep(self.rng.uniform(0.001, 0.01))
        member = self.members.get(target)
        if member is not None and member.process.is_alive and (source, target) not in self.blocked:
            call = member.process.start(getattr(member, method)(*args))
            call.add_done_callback(retrieved, context=Context())
            try:
                async with asyncio.timeout(deadline - self.loop.time()):
                    result = await asyncio.shield(call)
                if (target, source) not in self.blocked:
                    await asyncio.sleep(self.rng.uniform(0.001, 0.01))
                    return result
            except (TimeoutError, ProcessKilled):
                pass
            except Unreachable:
                if (target, source) not in self.blocked:
                    raise
        await asyncio.sleep(max(0.0, deadline - self.loop.time()))
        raise Unreachable(f"{target} does not answer {source}")

    async def ask(self, source: str, method: str, *args: Any) -> list[tuple[str, Any]]:
        """Call every other member at once; return the answers."""
        others = [name for name in NAMES if name != source]
        results = await asyncio.gather(
            *(self.call(source, name, method, *args) for name in others), return_exceptions=True
        )
        pairs = zip(others, results, strict=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, Unreachable):
                raise result
        return [(name, result) for name, result in pairs if not isinstance(result, BaseException)]

    # --- clients ---

    async def clients(self) -> None:
        await asyncio.gather(*(self._client(name) for name in NAMES))

    async def _client(self, name: str) -> None:
        """Send to one member and read from it: most of the time it does not lead."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 0.8))
            member = self.members[name]
            self.values += 1
            value = f"v{self.values}"
            if member.process.is_alive:
                for work in (partial(member.send, value), member.read):
                    member.process.start(self._judge(work)).add_done_callback(retrieved, context=Context())

    async def _judge(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Unreachable:
            pass
        except InvariantBroken as error:
            self.broken(error)

    # --- processes ---

    def stop(self, name: str, *, loses_power: bool = False, is_mounted_again: bool = False) -> None:
        """Kill a member. After a power loss, what was not flushed is missing, and its incarnation is another."""
        self.members[name].process.kill()
        disk = self.disks[name]
        if is_mounted_again:
            disk.lose_cache(len(disk.log))
        if loses_power:
            disk.lose_cache(disk.flushed)
            if not self.has_flushed_acks and self.planted != "same incarnation after another boot":
                disk.next_incarnation()

    def restart(self, name: str) -> None:
        if not self.members[name].process.is_alive:
            self.members[name] = SimulatedMember(self, name)

    def leader(self) -> str | None:
        for name, member in self.members.items():
            if member.process.is_alive and member.agent.may_answer(member.state.epoch):
                return name
        return None

    def has_eligible_member(self) -> bool:
        record = self.service.snapshot().record
        return record is not None and any(disk.member in record.in_sync for disk in self.disks.values())

    async def wait(self, seconds: float) -> None:
        """Let time pass; raises what a member found."""
        end = self.loop.time() + seconds
        while self.loop.time() < end:
            await asyncio.sleep(min(0.5, end - self.loop.time()))
            if self.failure is not None:
                raise self.failure

    async def wait_serving(self, seconds: float) -> None:
        """Require that a send is acknowledged within `seconds`, if a member is eligible."""
        seconds += self.prepare_s
        end = self.loop.time() + seconds
        count = len(self.checker.acknowledged)
        while len(self.checker.acknowledged) == count:
            if self.loop.time() > end:
                roles = {
                    name: (m.state.role.value, m.state.epoch, decisions.refusal(m.state, m.clock.boottime()))
                    for name, m in self.members.items()
                }
                raise InvariantBroken(f"12: no master serves after {seconds:g} s: {roles}, {self.service.snapshot()}")
            await self.wait(0.5)

    async def stop_planned(self, name: str) -> None:
        member = self.members[name]
        if member.process.is_alive:
            successor = self.rng.choice([other for other in NAMES if other != name])
            member.process.start(_call(lambda: member.agent.observe(StopRequested(successor))))
            await asyncio.sleep(self.rng.uniform(0, 3))
            self.stop(name)


async def _call(function: Callable[[], None]) -> None:
    function()


def retrieved(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()
