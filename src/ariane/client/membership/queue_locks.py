"""Locks of queues at their brokers: only the holder consumes a queue in order. [RebalanceImpl.lock]

A broker holds a lock for 60 s after its last request. Locks are requested again every 20 s and trusted for 30 s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple

from ariane.client.instance.namespace import Namespace
from ariane.client.instance.route_cache import RouteCache
from ariane.errors import ArianeError, ConnectionLost
from ariane.model.message import MessageQueue
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.clients import LockBatch, LockBatchResponse, WireQueue

log = logging.getLogger("ariane.client")

# Two renewals within the 60 s of a broker may fail before a lock is lost.
LOCK_RENEWAL_S = 20.0
TIMEOUT_MS = 1_000


class LockResult(NamedTuple):
    """Queues whose locks were granted, and queues whose broker did not respond."""

    held: set[MessageQueue]
    unknown: set[MessageQueue]


class QueueLockClient:
    """Locks and unlocks queues for one group member."""

    def __init__(
        self, peers: ConnectionPool, routes: RouteCache, group: str, client_id: str, namespace: Namespace | None = None
    ) -> None:
        self._peers = peers
        self._routes = routes
        self._group = group
        self._client_id = client_id
        self._namespace = namespace or Namespace("")

    async def lock(self, queues: Iterable[MessageQueue]) -> LockResult:
        """Request the locks of `queues`, or renew them."""
        by_broker = _by_broker(queues)
        responses = await asyncio.gather(
            *(self._lock_at(broker, broker_queues) for broker, broker_queues in by_broker.items())
        )
        return LockResult(
            set().union(*(response.held for response in responses)),
            set().union(*(response.unknown for response in responses)),
        )

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release locks, so that the next owner need not wait until they expire."""
        for broker, broker_queues in _by_broker(queues).items():
            try:
                await self._request(broker, RequestCode.UNLOCK_BATCH_MQ, broker_queues)
            except ArianeError as error:
                log.warning(
                    "Group %s could not release its locks at %s, they remain until they expire: %s",
                    self._group,
                    broker,
                    error,
                )

    async def _lock_at(self, broker: str, queues: list[MessageQueue]) -> LockResult:
        try:
            body = await self._request(broker, RequestCode.LOCK_BATCH_MQ, queues)
            response = self._namespace.from_wire(fastjson.decode(body, LockBatchResponse))
            return LockResult({queue.queue() for queue in response.locked}, set())
        except ArianeError as error:
            log.warning("Group %s could not lock queues at %s: %s", self._group, broker, error)
            # Not the same as refused: the lock may still be held, so the caller trusts it until its time is over.
            return LockResult(set(), set(queues))

    async def _request(self, broker: str, code: RequestCode, queues: list[MessageQueue]) -> bytes:
        addr = self._routes.master_address(broker)
        if addr is None:
            raise ConnectionLost(broker, "no master in the cached routes")
        request = LockBatch(self._client_id, self._group, tuple(map(WireQueue.of, queues)))
        body = fastjson.write(self._namespace.to_wire(request))
        return (await self._peers.request_ok(addr, code, body=body, timeout_ms=TIMEOUT_MS)).body


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    table: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        table.setdefault(queue.broker, []).append(queue)
    return table
