"""Queue locks: one client of a group owns a queue while it consumes in order. [RebalanceLockManager]

A lock lives LOCK_LIVE_MS from its last renewal and is known to this broker only; `now_ms` is the broker's monotonic time.
Who holds what is stored in the change log and in queueLocks.json (no file of 4.9.4, which forgets it): after a restart a member
would otherwise get a queue in which another one is still at work. A lock that was loaded counts as renewed just then.

    {"lockTable": {group: {clientId: [queue, …]}}}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from ariane.broker.state.change_records import QueuesLocked, QueuesUnlocked
from ariane.errors import ReplyError
from ariane.model.message import MessageQueue
from ariane.protocol.codes import ResponseCode
from ariane.protocol.requests.clients import WireQueue

LOCK_LIVE_MS = 60_000
LOCKS_MAX = 500_000  # of all groups; one takes about 400 bytes


class LockTable(msgspec.Struct, frozen=True, rename="camel"):
    """queueLocks.json: group → client id → queues."""

    lock_table: dict[str, dict[str, tuple[WireQueue, ...]]] = {}


class _Lock(NamedTuple):
    client_id: str
    renewed_ms: float


class QueueLocks:
    """group → queue → owner. `record` is called with each change of owners."""

    def __init__(
        self,
        saved: LockTable | None = None,
        now_ms: float = 0.0,
        live_ms: int = LOCK_LIVE_MS,
        record: Callable[[QueuesLocked | QueuesUnlocked], object] = lambda change: None,
    ) -> None:
        self._record = record
        self._live_ms = live_ms
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {
            group: {queue.queue(): _Lock(client_id, now_ms) for client_id, queues in owners.items() for queue in queues}
            for group, owners in (saved or LockTable()).lock_table.items()
        }
        self._count = sum(map(len, self._groups.values()))

    def table(self) -> LockTable:
        """Who holds what, to be saved."""
        owners: dict[str, dict[str, list[WireQueue]]] = {}
        for group, held in self._groups.items():
            for queue, lock in held.items():
                owners.setdefault(group, {}).setdefault(lock.client_id, []).append(WireQueue.of(queue))
        return LockTable(
            {group: {one: tuple(queues) for one, queues in held.items()} for group, held in owners.items()}
        )

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: float) -> list[MessageQueue]:
        """Those of `queues` that the client owns from now on: free, expired, or already its own."""
        held = self._groups.get(group, {})
        mine: list[MessageQueue] = []
        new: list[WireQueue] = []
        try:
            for queue in queues:
                lock = held.get(queue)
                if lock is None:
                    if self._count >= LOCKS_MAX:
                        remark = f"this broker holds {LOCKS_MAX} queue locks, which is the maximum"
                        raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
                    self._groups[group] = held
                    self._count += 1
                if lock is None or lock.client_id == client_id or now_ms - lock.renewed_ms > self._live_ms:
                    if lock is None or lock.client_id != client_id:
                        new.append(WireQueue.of(queue))
                    held[queue] = _Lock(client_id, now_ms)
                    mine.append(queue)
        finally:
            if new:
                self._record(QueuesLocked(group, client_id, tuple(new)))
        return mine

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give up those of `queues` that the client owns; foreign locks stay."""
        held = self._groups.get(group, {})
        self._release(
            group, [queue for queue in queues if (lock := held.get(queue)) is not None and lock.client_id == client_id]
        )

    def _release(self, group: str, queues: Iterable[MessageQueue]) -> None:
        held = self._groups.get(group, {})
        released = [queue for queue in dict.fromkeys(queues) if held.pop(queue, None) is not None]
        self._count -= len(released)
        if released:
            self._record(QueuesUnlocked(group, tuple(map(WireQueue.of, released))))

    def remove_expired(self, now_ms: float) -> None:
        """Drop what nobody renewed, so that groups that went away do not stay for ever."""
        for group, held in list(self._groups.items()):
            self._release(group, [queue for queue, lock in held.items() if now_ms - lock.renewed_ms > self._live_ms])
            if not held:
                del self._groups[group]
