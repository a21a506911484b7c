"""Consumed offsets of a group: cached in memory, committed to the brokers. [RemoteBrokerOffsetStore]

    consumed ─ update() ─→ memory ─ commit() ─→ UPDATE_CONSUMER_OFFSET (15)
    start_offset() ─→ QUERY_CONSUMER_OFFSET (14) ─ no committed offset ─→ by the start position

Offsets in memory only rise, unless `seek` sets them: after a pull beyond the queue's ends, or on behalf of the application.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from ariane.client.instance.route_cache import RouteCache
from ariane.client.instance.validation import StartOffset
from ariane.errors import ArianeError, ConnectionLost, ReplyError
from ariane.model.message import MessageQueue
from ariane.model.topic import RETRY_PREFIX
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import (
    OffsetResponse,
    QueryConsumerOffset,
    QueueRef,
    SearchOffset,
    UpdateConsumerOffset,
)

log = logging.getLogger("ariane.client")

COMMIT_TIMEOUT_MS = 5_000


class OffsetStore:
    """Offsets of the queues that one group member reads."""

    is_local = False  # True if offsets are stored on this machine instead of at the brokers

    def __init__(self, peers: ConnectionPool, routes: RouteCache, group: str, *, timeout_ms: float) -> None:
        self._peers = peers
        self._routes = routes  # finds the broker of a queue
        self._group = group  # offsets are stored by group, topic and queue
        self._timeout_ms = timeout_ms
        # Everything below them is consumed.
        self._consumed: dict[MessageQueue, int] = {}
        # Those of the last successful commits: an unchanged offset is not sent again.
        self._committed: dict[MessageQueue, int] = {}

    async def load(self) -> None:
        """Read locally stored offsets. Those at the brokers are read one by one, when a queue is assigned."""

    def update(self, queue: MessageQueue, offset: int) -> None:
        """Record that everything below `offset` is consumed."""
        if offset > self._consumed.get(queue, -1):
            self._consumed[queue] = offset

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset, even to a lower one."""
        self._consumed[queue] = offset

    def consumed(self, queue: MessageQueue) -> int | None:
        """Return the consumed offset in memory; None if nothing was consumed since the queue was assigned."""
        return self._consumed.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        """Discard the offsets of a queue that was revoked."""
        self._consumed.pop(queue, None)
        self._committed.pop(queue, None)

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        """Commit offsets that changed since the last commit. Failures are logged and repeated with the next commit."""
        # Without a task for each of the unchanged ones, which are nearly all in an idle consumer.
        changed = [queue for queue in queues if self._consumed.get(queue) not in (None, self._committed.get(queue))]
        await asyncio.gather(*map(self._commit, changed))

    async def start_offset(self, queue: MessageQueue, position: StartOffset) -> int:
        """Return where to start reading a queue: its committed offset, else the start position.

        Raises:
            ArianeError: the broker did not respond, or with an error; retry later.
        """
        stored = await self.committed(queue)
        return stored if stored is not None else await self._initial_offset(queue, position)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset; None if there is none."""
        request = QueryConsumerOffset(self._group, queue.topic, queue.queue_id)
        try:
            return await self._request_offset(queue, RequestCode.QUERY_CONSUMER_OFFSET, request)
        except ReplyError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the first existing offset and the offset of the next message."""
        ref = QueueRef(queue.topic, queue.queue_id)
        first = await self._request_offset(queue, RequestCode.GET_MIN_OFFSET, ref)
        return first, await self._request_offset(queue, RequestCode.GET_MAX_OFFSET, ref)

    async def offset_for_time(self, queue: MessageQueue, ms: int) -> int:
        """Return the offset of the message stored nearest to `ms`, in milliseconds since the epoch."""
        request = SearchOffset(queue.topic, queue.queue_id, ms)
        return await self._request_offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, request)

    async def _commit(self, queue: MessageQueue) -> None:
        offset = self._consumed.get(queue)
        if offset is None:  # revoked in this moment
            return
        request = UpdateConsumerOffset(self._group, queue.topic, queue.queue_id, offset)
        try:
            await self._peers.request_ok(
                self._broker_address(queue), RequestCode.UPDATE_CONSUMER_OFFSET, request, timeout_ms=COMMIT_TIMEOUT_MS
            )
        except ArianeError as error:
            log.warning("Group %s could not commit offset %d of %s yet: %s", self._group, offset, queue, error)
        else:
            self._committed[queue] = offset

    async def _initial_offset(self, queue: MessageQueue, position: StartOffset) -> int:
        # The retry topic holds failed messages of this group only, so "last" must not skip any of them.
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if position == "first" or (position == "last" and is_retry):
            return 0
        if position == "last" or is_retry:
            return await self._request_offset(queue, RequestCode.GET_MAX_OFFSET, QueueRef(queue.topic, queue.queue_id))
        return await self.offset_for_time(queue, position)

    async def _request_offset(
        self, queue: MessageQueue, code: RequestCode, header: QueryConsumerOffset | QueueRef | SearchOffset
    ) -> int:
        response = await self._peers.request_ok(self._broker_address(queue), code, header, timeout_ms=self._timeout_ms)
        return decode_header(response, OffsetResponse).offset

    def _broker_address(self, queue: MessageQueue) -> str:
        address = self._routes.pull_address(queue.broker, 0)
        if address is None:
            raise ConnectionLost(queue.broker, "not in the cached routes")
        return address.addr
