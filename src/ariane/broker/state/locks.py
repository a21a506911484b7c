"""Queue locks: one client of a group owns a queue while it consumes in order. [RebalanceLockManager]

A lock lives LOCK_LIVE_MS from its last renewal and is known to this broker only; `now_ms` is the broker's monotonic time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ariane.model.message import MessageQueue

LOCK_LIVE_MS = 60_000


class _Lock(NamedTuple):
    client_id: str
    renewed_ms: float


class QueueLocks:
    """group → queue → owner."""

    def __init__(self, live_ms: int = LOCK_LIVE_MS) -> None:
        self._live_ms = live_ms
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: float) -> list[MessageQueue]:
        """Those of `queues` that the client owns from now on: free, expired, or already its own."""
        held = self._groups.setdefault(group, {})
        mine = []
        for queue in queues:
            lock = held.get(queue)
            if lock is None or lock.client_id == client_id or now_ms - lock.renewed_ms > self._live_ms:
                held[queue] = _Lock(client_id, now_ms)
                mine.append(queue)
        return mine

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give up those of `queues` that the client owns; foreign locks stay."""
        held = self._groups.get(group, {})
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]

    def forget_expired(self, now_ms: float) -> None:
        """Drop what nobody renewed, so that groups that went away do not stay for ever."""
        for group, held in list(self._groups.items()):
            for queue, lock in list(held.items()):
                if now_ms - lock.renewed_ms > self._live_ms:
                    del held[queue]
            if not held:
                del self._groups[group]
