"""Reads the queues of a topic without a consumer: bounds, offsets by time, and pages of records. [DefaultMQPullConsumer]

    locate_queues(topic) ─→ QueueServer… ─→ queue_bounds, offset_at ─→ pull from offset to offset

Nothing is committed, and no group is registered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from ariane.cluster.connection import BrokerServer, ClusterConnection
from ariane.errors import NotFound, ReplyError, RouteNotFound
from ariane.model.message import TAGS, MessageQueue
from ariane.model.topic import PERM_READ
from ariane.protocol.client_rules.route_rules import preferred_server
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.records import record
from ariane.protocol.records.record import Record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import (
    SUBSCRIPTION,
    OffsetResponse,
    PullMessage,
    PullMessageResponse,
    QueueRef,
    SearchOffset,
)
from ariane.protocol.requests.routing import TopicRoute

TOOLS_GROUP = "TOOLS_CONSUMER"  # exists on every broker
PAGE_MESSAGES = 32  # default maximum per pull of a broker
ALL_TAGS = "*"

FOUND, NO_MATCHED_MSG, NO_NEW_MSG, OFFSET_ILLEGAL = "FOUND", "NO_MATCHED_MSG", "NO_NEW_MSG", "OFFSET_ILLEGAL"
STATUSES = {
    ResponseCode.SUCCESS: FOUND,
    ResponseCode.PULL_NOT_FOUND: NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: OFFSET_ILLEGAL,
}


class QueueServer(NamedTuple):
    """A queue, and the server that it is read from."""

    queue: MessageQueue
    server: BrokerServer


class QueuePage(NamedTuple):
    """Response to a pull.

    Attributes:
        status: FOUND, NO_MATCHED_MSG, NO_NEW_MSG or OFFSET_ILLEGAL.
        next_offset: Offset at which to continue.
        min_offset: First offset of the queue.
        max_offset: Offset after the last message.
        records: Messages whose tags match.
    """

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    records: list[Record]


class QueueReadOperations(ClusterConnection):
    """Operations that read queues."""

    async def locate_queues(self, topic: str) -> list[QueueServer]:
        """Return the readable queues of a topic, sorted, each with its master, or a slave if no master is registered.

        Raises:
            RouteNotFound: the topic does not exist, or a broker with queues of it has no registered server.
        """
        route = await self.routing.fetch_route(topic)
        servers = {server.broker: server for server in readable_servers(route)}
        queues = sorted(
            MessageQueue(topic, data.broker_name, number)
            for data in route.queue_datas
            if data.perm & PERM_READ
            for number in range(data.read_queue_nums)
        )
        if missing := next((queue.broker for queue in queues if queue.broker not in servers), None):
            raise RouteNotFound(topic, f"broker {missing} has queues of it but no registered server")
        return [QueueServer(queue, servers[queue.broker]) for queue in queues]

    async def locate_queue(self, topic: str, broker: str, queue_id: int) -> QueueServer:
        """Return one queue with its server. It needs no read permission, and its id is checked by the broker only.

        Raises:
            RouteNotFound: the topic does not exist.
            NotFound: the broker has no queues of it; the message lists those that have.
        """
        servers = {server.broker: server for server in readable_servers(await self.routing.fetch_route(topic))}
        if broker not in servers:
            raise NotFound("broker", broker, sorted(servers))
        return QueueServer(MessageQueue(topic, broker, queue_id), servers[broker])

    async def queue_bounds(self, at: QueueServer) -> tuple[int, int]:
        """Return the first offset of a queue, and the offset after its last message."""
        header = QueueRef(at.queue.topic, at.queue.queue_id)
        first = await self.request(at.server.addr, RequestCode.GET_MIN_OFFSET, header)
        stop = await self.request(at.server.addr, RequestCode.GET_MAX_OFFSET, header)
        return decode_header(first, OffsetResponse).offset, decode_header(stop, OffsetResponse).offset

    async def offset_at(self, at: QueueServer, time_ms: int) -> int:
        """Return the offset of the first message stored at a time or later, or of the last message before it."""
        header = SearchOffset(at.queue.topic, at.queue.queue_id, time_ms)
        answer = await self.request(at.server.addr, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return decode_header(answer, OffsetResponse).offset

    async def time_bounds(self, at: QueueServer, begin_ms: int | None, end_ms: int | None) -> tuple[int, int]:
        """Return the offsets between which messages of a time range are stored; None: from the first, to the last."""
        first, stop = await self.queue_bounds(at)
        if begin_ms is not None:
            first = await self.offset_at(at, begin_ms)
        if end_ms is not None:
            stop = await self.offset_at(at, end_ms)
        return first, stop

    async def exact_time_bounds(self, at: QueueServer, begin_ms: int | None, end_ms: int | None) -> tuple[int, int]:
        """Return the offset of the first message stored at `begin_ms` or later, and that of the first stored at `end_ms` or later.

        `time_bounds` returns what brokers respond: the last message for a time after it, and in 4.9.4 the nearest message on
        either side, of several messages of one ms any.
        """
        first, stop = await self.queue_bounds(at)
        begin = first if begin_ms is None else await self._first_since(at, begin_ms, (first, stop))
        end = stop if end_ms is None else await self._first_since(at, end_ms, (first, stop))
        return begin, max(begin, end)

    async def _first_since(self, at: QueueServer, time_ms: int, bounds: tuple[int, int]) -> int:
        low, high = bounds  # the offset is one of these, or between them
        if low >= high:
            return high
        # Usually two messages decide: the one that the broker found, and its neighbour. The steps grow for many of one ms.
        probe, step = await self.offset_at(at, time_ms), 1
        while low < high:
            probe = min(max(probe, low), high - 1)
            page = await self.pull(at, probe, count=1)
            if page.records and page.records[0].store_ms < time_ms:
                low = probe + 1
                probe += step
            else:
                high = probe
                probe -= step
            step *= 2
        return low

    async def pull(
        self,
        at: QueueServer,
        offset: int,
        *,
        count: int = PAGE_MESSAGES,
        tags: str = ALL_TAGS,
        group: str = TOOLS_GROUP,
    ) -> QueuePage:
        """Return one page of a queue.

        Args:
            at: The queue.
            offset: Where it begins.
            count: Maximum number of messages; the broker has a limit, too.
            tags: Tag expression, `A || B`, or `*`. The broker filters by hashes; other tags are removed here.
            group: Consumer group in whose name to read, for brokers with access control.

        Raises:
            ReplyError: the broker rejected the request.
            ConnectionLost, RequestTimeout: it did not respond.
        """
        queue = at.queue
        header = PullMessage(group, queue.topic, queue.queue_id, offset, count, SUBSCRIPTION, subscription=tags)
        answer = await self.peers.request(at.server.addr, RequestCode.PULL_MESSAGE, header, timeout_ms=self.timeout_ms)
        status = STATUSES.get(ResponseCode(answer.code)) if answer.code in set(ResponseCode) else None
        if status is None:
            raise ReplyError(answer.code, answer.remark, at.server.addr)
        fields = decode_header(answer, PullMessageResponse)
        records = list(record.decode_all(answer.body)) if status == FOUND else []
        wanted = {tag.strip() for tag in tags.split("||")}
        if tags != ALL_TAGS:
            records = [stored for stored in records if stored.property_map().get(TAGS) in wanted]
        return QueuePage(status, fields.next_begin_offset, fields.min_offset, fields.max_offset, records)

    async def read_queue(
        self, at: QueueServer, first: int, stop: int, *, tags: str = ALL_TAGS, group: str = TOOLS_GROUP
    ) -> AsyncIterator[QueuePage]:
        """Yield the pages of a queue from one offset to another, without records from `stop` on.

        Ends early if the queue does: the last page has status NO_NEW_MSG or OFFSET_ILLEGAL then.
        """
        offset = first
        while offset < stop:
            page = await self.pull(at, offset, count=min(PAGE_MESSAGES, stop - offset), tags=tags, group=group)
            yield page._replace(records=[stored for stored in page.records if stored.queue_offset < stop])
            if page.status in (NO_NEW_MSG, OFFSET_ILLEGAL):
                return
            offset = max(page.next_offset, offset + 1)


def readable_servers(route: TopicRoute) -> list[BrokerServer]:
    """Return a server of each broker in a route: the master, or the slave with the lowest id."""
    servers = []
    for data in sorted(route.broker_datas, key=lambda data: data.broker_name):
        if data.broker_addrs:
            broker_id = preferred_server(data.broker_addrs)
            servers.append(BrokerServer(data.cluster, data.broker_name, broker_id, data.broker_addrs[broker_id]))
    return servers
