"""Locks of queues at their brokers: who consumes a queue in order holds its lock. [RebalanceImpl.lock]

A broker keeps a lock for 60 s after it was last asked for; it is asked for every 20 s and relied on for 30 s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple

from ariane.client.route_cache import Peers, RouteCache
from ariane.errors import ArianeError, ConnectionLost
from ariane.model.message import MessageQueue
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.clients import LockBatch, LockBatchAnswer, WireQueue

log = logging.getLogger("ariane.client")

LOCK_RENEWAL_S = 20.0
TIMEOUT_MS = 1_000


class LockResult(NamedTuple):
    """The queues that are ours now, and those whose broker did not say."""

    held: set[MessageQueue]
    unknown: set[MessageQueue]


class QueueLockClient:
    """Locks and unlocks queues for one member of a group."""

    def __init__(self, peers: Peers, routes: RouteCache, group: str, client_id: str) -> None:
        self._peers = peers
        self._routes = routes
        self._group = group
        self._client_id = client_id

    async def lock(self, queues: Iterable[MessageQueue]) -> LockResult:
        """Ask for the locks of `queues`."""
        by_broker = _by_broker(queues)
        answers = await asyncio.gather(*(self._lock_at(broker, some) for broker, some in by_broker.items()))
        return LockResult(set().union(*(one.held for one in answers)), set().union(*(one.unknown for one in answers)))

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give the locks back, so that the next owner need not wait until they expire."""
        for broker, some in _by_broker(queues).items():
            try:
                await self._ask(broker, RequestCode.UNLOCK_BATCH_MQ, some)
            except ArianeError as error:
                log.warning("group %s: queues at %s stay locked until the lock expires: %s", self._group, broker, error)

    async def _lock_at(self, broker: str, queues: list[MessageQueue]) -> LockResult:
        try:
            body = await self._ask(broker, RequestCode.LOCK_BATCH_MQ, queues)
            return LockResult({queue.queue() for queue in fastjson.decode(body, LockBatchAnswer).locked}, set())
        except ArianeError as error:
            log.warning("group %s: no locks from %s: %s", self._group, broker, error)
            return LockResult(set(), set(queues))

    async def _ask(self, broker: str, code: RequestCode, queues: list[MessageQueue]) -> bytes:
        addr = self._routes.master_address(broker)
        if addr is None:
            raise ConnectionLost(broker, "has no master in the routes that are known")
        request = LockBatch(self._client_id, self._group, tuple(map(WireQueue.of, queues)))
        return (await self._peers.request_ok(addr, code, body=fastjson.write(request), timeout_ms=TIMEOUT_MS)).body


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    table: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        table.setdefault(queue.broker, []).append(queue)
    return table
