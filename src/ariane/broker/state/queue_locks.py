"""Queue locks: one client of a group owns a queue while it consumes in order. [RebalanceLockManager]

A lock expires LOCK_LIVE_MS after its last renewal. Locks are local to a broker; `now_ms` is monotonic time. The owners are
stored in the change log and in queueLocks.json, unlike in 4.9.4: otherwise another member could get a queue after a restart
while its owner is still consuming it. A loaded lock counts as renewed at the start.

    {"lockTable": {group: {clientId: [queue, …]}}}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from ariane.broker.state.saved.change_records import QueuesLocked, QueuesUnlocked
from ariane.errors import ReplyError
from ariane.model.message import MessageQueue
from ariane.protocol.codes import ResponseCode
from ariane.protocol.requests.clients import WireQueue

LOCK_LIVE_MS = 60_000
LOCKS_MAX = 500_000  # locks of all groups; one takes about 400 bytes
GROUP_LOCKS_MAX = 65_536  # locks of a group, as many as a topic may have queues


class LockTable(msgspec.Struct, frozen=True, rename="camel"):
    """The document queueLocks.json: group → client id → queues."""

    lock_table: Mapping[str, dict[str, tuple[WireQueue, ...]]] = {}


class _Lock(NamedTuple):
    client_id: str
    renewed_ms: float


class _Owners(Mapping[str, dict[str, tuple[WireQueue, ...]]]):
    """The owners of locked queues by group."""

    def __init__(self, groups: dict[str, dict[MessageQueue, _Lock]]) -> None:
        self._groups = groups

    def __getitem__(self, group: str) -> dict[str, tuple[WireQueue, ...]]:
        owners: dict[str, list[WireQueue]] = {}
        for queue, lock in self._groups[group].items():
            owners.setdefault(lock.client_id, []).append(WireQueue.of(queue))
        return {client_id: tuple(queues) for client_id, queues in owners.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)


class QueueLocks:
    """The table group → queue → owner. `record` is called with each change of owners."""

    def __init__(
        self,
        saved: LockTable | None = None,
        now_ms: float = 0.0,
        live_ms: int = LOCK_LIVE_MS,
        record: Callable[[QueuesLocked | QueuesUnlocked], object] = lambda change: None,
    ) -> None:
        self._record = record
        self._live_ms = live_ms  # a lock expires this long after its last renewal
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count = 0  # compared with LOCKS_MAX
        self.replace(saved or LockTable(), now_ms)

    def table(self) -> LockTable:
        """Return the document for queueLocks.json. It is of this moment, but a group's part of it is created when it is read."""
        return LockTable(_Owners({group: dict(locks) for group, locks in self._groups.items() if locks}))

    def replace(self, table: LockTable, now_ms: float) -> None:
        """Replace all locks, of a document or of the master; they count as renewed now."""
        self._groups = {
            group: {queue.queue(): _Lock(client_id, now_ms) for client_id, queues in owners.items() for queue in queues}
            for group, owners in table.lock_table.items()
        }
        self._count = sum(map(len, self._groups.values()))

    def apply(self, change: QueuesLocked | QueuesUnlocked, now_ms: float) -> None:
        """Apply a change of owners at the master (on a slave). The owners here do not matter."""
        locks = self._groups.setdefault(change.group, {})
        self._count -= len(locks)
        for queue in change.queues:
            if isinstance(change, QueuesLocked):
                locks[queue.queue()] = _Lock(change.client_id, now_ms)
            else:
                locks.pop(queue.queue(), None)
        self._count += len(locks)
        if not locks:
            del self._groups[change.group]

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: float) -> list[MessageQueue]:
        """Lock the queues that are free, expired, or already owned by the client. Return those that it owns now."""
        locks = self._groups.get(group, {})
        owned: list[MessageQueue] = []
        new: list[WireQueue] = []
        # Locks that were taken before an error stay taken, so they are recorded in any case.
        try:
            for queue in queues:
                lock = locks.get(queue)
                if lock is None:
                    if self._count >= LOCKS_MAX:
                        remark = f"cannot lock the queues: this broker has {LOCKS_MAX} queue locks, the maximum"
                        raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
                    if len(locks) >= GROUP_LOCKS_MAX:
                        remark = (
                            f"cannot lock the queues: {group} has {GROUP_LOCKS_MAX} queue locks, the maximum of a group"
                        )
                        raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
                    self._groups[group] = locks
                    self._count += 1
                if lock is None or lock.client_id == client_id or now_ms - lock.renewed_ms > self._live_ms:
                    if lock is None or lock.client_id != client_id:
                        new.append(WireQueue.of(queue))
                    locks[queue] = _Lock(client_id, now_ms)
                    owned.append(queue)
        finally:
            if new:
                self._record(QueuesLocked(group, client_id, tuple(new)))
        return owned

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the client's locks of the queues. Locks of other clients stay."""
        locks = self._groups.get(group, {})
        self._release(
            group, [queue for queue in queues if (lock := locks.get(queue)) is not None and lock.client_id == client_id]
        )

    def _release(self, group: str, queues: Iterable[MessageQueue]) -> None:
        locks = self._groups.get(group, {})
        released = [queue for queue in dict.fromkeys(queues) if locks.pop(queue, None) is not None]
        self._count -= len(released)
        if released:
            self._record(QueuesUnlocked(group, tuple(map(WireQueue.of, released))))

    def remove_expired(self, now_ms: float) -> None:
        """Remove locks that were not renewed in time, so that the table does not grow with groups that are gone."""
        for group, locks in list(self._groups.items()):
            self._release(group, [queue for queue, lock in locks.items() if now_ms - lock.renewed_ms > self._live_ms])
            if not locks:
                del self._groups[group]
