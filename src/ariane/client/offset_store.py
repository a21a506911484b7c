"""How far a group has consumed: kept in memory, stored at the brokers. [RemoteBrokerOffsetStore]

    consumed ─ update() ─→ memory ─ commit() ─→ UPDATE_CONSUMER_OFFSET (15)
    stored at the broker ─ stored() ─→ QUERY_CONSUMER_OFFSET (14) ─ nothing there ─→ first() by the start position

Offsets in memory only rise, except where the broker itself named another (a pull beyond the queue's ends).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Literal

from ariane.client.route_cache import Peers, RouteCache
from ariane.errors import ArianeError, ConnectionLost, ReplyError
from ariane.model.message import MessageQueue
from ariane.model.topic import RETRY_PREFIX
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests import typed
from ariane.protocol.requests.messaging import (
    OffsetAnswer,
    QueryConsumerOffset,
    QueueRef,
    SearchOffset,
    UpdateConsumerOffset,
)

log = logging.getLogger("ariane.client")

COMMIT_TIMEOUT_MS = 5_000

StartPosition = Literal["first", "last"] | int  # int: milliseconds since the epoch


class OffsetStore:
    """Offsets of the queues that one member of a group reads."""

    is_local = False  # whether brokers are not to be told

    def __init__(self, peers: Peers, routes: RouteCache, group: str, *, timeout_ms: int) -> None:
        self._peers = peers
        self._routes = routes
        self._group = group
        self._timeout_ms = timeout_ms
        self._consumed: dict[MessageQueue, int] = {}
        self._committed: dict[MessageQueue, int] = {}

    async def load(self) -> None:
        """Read offsets that are stored locally. Offsets at the brokers are read queue by queue, when it is assigned."""

    def update(self, queue: MessageQueue, offset: int) -> None:
        """Everything below `offset` is consumed."""
        if offset > self._consumed.get(queue, -1):
            self._consumed[queue] = offset

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset, down as well."""
        self._consumed[queue] = offset

    def consumed(self, queue: MessageQueue) -> int | None:
        return self._consumed.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        """The queue is another member's now."""
        self._consumed.pop(queue, None)
        self._committed.pop(queue, None)

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        """Store what changed since the last commit. What a broker does not take stays due, and is logged."""
        await asyncio.gather(*map(self._commit, queues))

    async def start_offset(self, queue: MessageQueue, position: StartPosition) -> int:
        """Where to begin to read `queue`: the stored offset, else the start position. An error means: ask again later."""
        stored = await self._stored(queue)
        return stored if stored is not None else await self._initial_offset(queue, position)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The stored offset; None when there is none."""
        return await self._stored(queue)

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """The first offset that exists, and the one that the next message gets."""
        where = QueueRef(queue.topic, queue.queue_id)
        first = await self._request_offset(queue, RequestCode.GET_MIN_OFFSET, where)
        return first, await self._request_offset(queue, RequestCode.GET_MAX_OFFSET, where)

    async def offset_for_time(self, queue: MessageQueue, ms: int) -> int:
        """The offset of the message stored nearest to `ms`."""
        request = SearchOffset(queue.topic, queue.queue_id, ms)
        return await self._request_offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, request)

    async def _commit(self, queue: MessageQueue) -> None:
        offset = self._consumed.get(queue)
        if offset is None or offset == self._committed.get(queue):
            return
        request = UpdateConsumerOffset(self._group, queue.topic, queue.queue_id, offset)
        try:
            await self._peers.request_ok(
                self._broker_address(queue), RequestCode.UPDATE_CONSUMER_OFFSET, request, timeout_ms=COMMIT_TIMEOUT_MS
            )
        except ArianeError as error:
            log.warning("group %s: offset %d of %s is not stored yet: %s", self._group, offset, queue, error)
        else:
            self._committed[queue] = offset

    async def _stored(self, queue: MessageQueue) -> int | None:
        request = QueryConsumerOffset(self._group, queue.topic, queue.queue_id)
        try:
            return await self._request_offset(queue, RequestCode.QUERY_CONSUMER_OFFSET, request)
        except ReplyError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def _initial_offset(self, queue: MessageQueue, position: StartPosition) -> int:
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if position == "first" or (position == "last" and is_retry):
            return 0
        if position == "last" or is_retry:
            return await self._request_offset(queue, RequestCode.GET_MAX_OFFSET, QueueRef(queue.topic, queue.queue_id))
        return await self.offset_for_time(queue, position)

    async def _request_offset(
        self, queue: MessageQueue, code: RequestCode, header: QueryConsumerOffset | QueueRef | SearchOffset
    ) -> int:
        answer = await self._peers.request_ok(self._broker_address(queue), code, header, timeout_ms=self._timeout_ms)
        return typed(answer, OffsetAnswer).offset

    def _broker_address(self, queue: MessageQueue) -> str:
        address = self._routes.pull_address(queue.broker, 0)
        if address is None:
            raise ConnectionLost(queue.broker, "is not in the routes that are known")
        return address.addr
