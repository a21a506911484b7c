"""A coordination service in virtual time: linearizable, with the faults of a real one.

    model = CoordinationModel(loop, rng, ttl_s=10)
    service = model.client("a")                    # an `ariane.failover.coordination.Coordination`
    model.cut.add("a")                             # requests and answers of a are lost
    model.late_s = 4                               # some writes are applied up to 4 s later, others lose their answer
    model.is_down = True                           # no quorum: requests wait, and some of them are applied afterwards
    model.change_leader()                          # every lease starts again

A lease is never ended early, and up to half a second late. A request without an answer within `limit_s` has an unknown outcome.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import msgspec

from ariane.errors import CoordinationUnavailable
from ariane.failover.coordination import UNKNOWN_RESULT, RecordSnapshot, WriteOutcome, WriteResult
from ariane.failover.leader_record import LeaderRecord
from ariane.testing.virtual.virtual_time import VirtualLoop

EXPIRY_DELAY_S = 0.5
DOWN_POLL_S = 0.1


class VirtualLease(msgspec.Struct):
    """A lease; `created` is the revision of its acquisition."""

    number: int
    created: int
    ends_at: float


class CoordinationModel:
    """The service's state. Operations take effect one at a time, between the start and the end of a call or later."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, *, ttl_s: float, limit_s: float = 3.0) -> None:
        self.cut: set[str] = set()  # clients whose requests and answers are lost
        self.cut_answers: set[str] = set()  # clients whose answers are lost
        self.late_s = 0.0  # bound of the delay of a write, or of its answer
        self.late_client = ""  # client of the last write that was applied or answered late
        self.is_down = False
        self.on_write: Callable[[LeaderRecord], None] = lambda record: None  # after each change of the record
        self.stale_s = 0.0  # planted fault: reads show the record of that long ago, and acquisitions do not compare it
        self.has_keep_alive = False  # planted fault: a leader without quorum confirms renewals, which extend nothing
        self.compares_lease = True  # False is a planted fault: a renewal replaces any lease of its acquisition
        self.ttl_s = ttl_s
        self.limit_s = limit_s
        self._loop = loop
        self._rng = rng
        self._process = loop.process("store")
        self._record: LeaderRecord | None = None
        self._version = 0
        self._revision = 0
        self._lease: VirtualLease | None = None
        self._leases = 0
        self._history: list[tuple[float, RecordSnapshot]] = []

    def client(self, name: str) -> VirtualCoordination:
        return VirtualCoordination(self, name)

    def change_leader(self) -> None:
        """Give the lease its whole time again, as etcd does after an election."""
        self._expire()
        if self._lease is not None:
            self._lease.ends_at = self._loop.time() + self.ttl_s + self._rng.uniform(0, 2)

    def snapshot(self) -> RecordSnapshot:
        """Return the current state."""
        self._expire()
        lease = f"{self._lease.created}:{self._lease.number}" if self._lease else ""
        return RecordSnapshot(self._record, str(self._version), lease)

    # --- operations; each returns whether it was applied ---

    def create(self, record: LeaderRecord) -> bool:
        return self._record is None and self._put(record)

    def acquire(self, expected: RecordSnapshot, record: LeaderRecord, lease: VirtualLease) -> bool:
        self._expire()
        if self._lease is not None or (expected.version != str(self._version) and not self.stale_s):
            return False
        lease.created = self._revision + 1
        self._lease = lease
        return self._put(record)

    def renew(self, expected: RecordSnapshot, lease: VirtualLease) -> bool:
        created, _, number = expected.lease.partition(":")
        self._expire()
        if self._lease is None or str(self._lease.created) != created:
            return False
        if str(self._lease.number) != number and self.compares_lease:
            return False
        lease.created = self._lease.created
        self._lease = lease
        return True

    def swap(self, expected: RecordSnapshot, record: LeaderRecord) -> bool:
        self._expire()
        is_held = self._lease is not None and expected.lease.partition(":")[0] == str(self._lease.created)
        return is_held and expected.version == str(self._version) and self._put(record)

    def release(self, expected: RecordSnapshot, record: LeaderRecord) -> bool:
        if not self.swap(expected, record):
            return False
        self._lease = None
        return True

    # --- calls ---

    def submit(self, name: str, apply: Callable[[VirtualLease], bool] | None) -> asyncio.Future[WriteResult]:
        """Start a call in the service's own process: it goes on when the client is killed."""
        return self._process.start(self._serve(name, apply))

    async def _serve(self, name: str, apply: Callable[[VirtualLease], bool] | None) -> WriteResult:
        rng = self._rng
        await asyncio.sleep(rng.uniform(0.0005, 0.004))
        if name in self.cut:
            return await self._lose()
        if self.is_down and apply is not None and rng.random() < 0.5:
            return await self._lose()
        if self.is_down and apply is None:
            return await self._lose()
        while self.is_down:
            await asyncio.sleep(DOWN_POLL_S)
        lease = self._grant()
        if apply is not None and self.late_s and rng.random() < 0.3:  # the transaction is later than the grant
            await asyncio.sleep(self.late_s * rng.uniform(0.3, 1))
            self.late_client = name
        is_applied = apply is None or apply(lease)
        result = WriteResult(WriteOutcome.DONE if is_applied else WriteOutcome.REFUSED, self.snapshot())
        is_late = self.late_s and rng.random() < 0.5
        delay = self.late_s * rng.uniform(0.5, 1) if is_late else rng.uniform(0.0005, 0.004)
        await asyncio.sleep(delay)
        self.late_client = name if is_late and apply is not None else self.late_client
        if name in self.cut or name in self.cut_answers:
            return await self._lose()
        return result

    async def _lose(self) -> WriteResult:
        await asyncio.sleep(2 * self.limit_s)
        return UNKNOWN_RESULT

    def stale(self) -> RecordSnapshot:
        """Return what a candidate reads that does not insist on the newest state: an older set of the same epoch."""
        now = self.snapshot()
        until = self._loop.time() - self.stale_s
        epoch = now.record.epoch if now.record else 0
        old = [snapshot for time, snapshot in self._history if time <= until]
        if now.lease or not old or old[-1].record is None or old[-1].record.epoch != epoch:
            return now
        return RecordSnapshot(old[-1].record, old[-1].version, "")

    # --- state ---

    def _grant(self) -> VirtualLease:
        self._leases += 1
        ends_at = self._loop.time() + self.ttl_s + self._rng.uniform(0, EXPIRY_DELAY_S)
        return VirtualLease(self._leases, 0, ends_at)

    def _put(self, record: LeaderRecord) -> bool:
        self._revision += 1
        self._version = self._revision
        self._record = record
        self._history.append((self._loop.time(), self.snapshot()))
        self.on_write(record)
        return True

    def _expire(self) -> None:
        if self._lease is not None and self._loop.time() >= self._lease.ends_at and not self.is_down:
            self._lease = None
            self._revision += 1


class VirtualCoordination:
    """The service for one client."""

    def __init__(self, model: CoordinationModel, name: str) -> None:
        self._model = model
        self._name = name

    async def read(self) -> RecordSnapshot:
        result = await self._call(None)
        if result.snapshot is None:
            raise CoordinationUnavailable(f"no answer within {self._model.limit_s:g} s")
        return self._model.stale() if self._model.stale_s else result.snapshot

    async def create(self, record: LeaderRecord) -> WriteResult:
        return await self._call(lambda lease: self._model.create(record))

    async def acquire(self, expected: RecordSnapshot, record: LeaderRecord) -> WriteResult:
        return await self._call(lambda lease: self._model.acquire(expected, record, lease))

    async def renew(self, expected: RecordSnapshot) -> WriteResult:
        if self._model.has_keep_alive and (self._model.is_down or self._name in self._model.cut):
            return WriteResult(WriteOutcome.DONE, expected)
        return await self._call(lambda lease: self._model.renew(expected, lease))

    async def swap(self, expected: RecordSnapshot, record: LeaderRecord) -> WriteResult:
        return await self._call(lambda lease: self._model.swap(expected, record))

    async def release(self, expected: RecordSnapshot, record: LeaderRecord) -> WriteResult:
        return await self._call(lambda lease: self._model.release(expected, record))

    async def close(self) -> None:
        """Do nothing: a virtual client has no connection."""

    async def _call(self, apply: Callable[[VirtualLease], bool] | None) -> WriteResult:
        call = self._model.submit(self._name, apply)
        try:
            async with asyncio.timeout(self._model.limit_s):
                return await asyncio.shield(call)
        except TimeoutError:
            return UNKNOWN_RESULT
