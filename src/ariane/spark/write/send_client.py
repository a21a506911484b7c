"""Sends requests to brokers: pipelined, in order per ordered lane, with retries while a broker is unavailable.

    put ─→ free lane ───────────────────────────→ ready ─→ at most maxInFlight requests ─→ responses ─→ stored
        └→ ordered lane ─ one at a time per queue ↗                ↑                           │
                                                                   └── after a back-off ─ retry ┘ else the task fails

    codes 0 10 11 12                                  stored; 10 to 12 count as `not_durable`: flush or replica timed out
    no connection, no response, 1 2 14 16 17 204 205  retried up to `retries` times; on a free lane at another broker, if any
    other codes, or access denied                     the task fails with topic, broker and remark
    a delivery time that the broker does not support  the same, before the message is sent

The next request of an ordered lane is sent after the previous one is stored, so retries do not change the order of rows.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ariane.client.instance.send_types import SendStatus
from ariane.client.instance.settings import ProducerSettings
from ariane.client.sending.send_codec import parse_status, request_fields, select_queue
from ariane.errors import ArianeError, ConnectionLost, MessageRefused, ReplyError, RequestTimeout, RouteNotFound
from ariane.model.message import MessageQueue
from ariane.protocol.client_rules.route_rules import publish_queues
from ariane.protocol.client_rules.transient import RETRY_BACKOFF, RETRY_SEND_CODES, is_transient
from ariane.protocol.requests.routing import TopicRoute
from ariane.spark.wire.name_servers import BlockingNameServerClient
from ariane.spark.wire.pipelined_connections import PipelinedResponse
from ariane.spark.wire.retries import call_with_retries
from ariane.spark.write.partitioner import SendRequest
from ariane.spark.write.sink_options import SinkOptions

log = logging.getLogger("ariane.spark")

PENDING_BYTES_MAX = 32 * 1024 * 1024  # bodies of a task that are queued or in flight
REFRESH_S = 1.0  # minimum interval between route refreshes
SETTINGS = ProducerSettings()  # what requests say about a topic that does not exist; the sink creates none


class SendConnections(Protocol):
    """The connections that requests use: `PipelinedConnectionPool`, or a scripted fake in tests."""

    def send(self, addr: str, code: int, fields: dict[str, str], body: bytes = b"") -> int: ...

    def poll(self, wait_s: float) -> list[PipelinedResponse]: ...

    def close(self) -> None: ...


@dataclass
class SendStats:
    """Counts of what a task stored."""

    messages: int = 0
    requests: int = 0
    bytes: int = 0
    retried: int = 0
    """Requests that were repeated; each may have stored its messages twice."""
    not_durable: int = 0
    """Messages stored before the flush or replication was confirmed."""


class WriteRoutes:
    """Routes of the topics that a task writes. The queues of a topic are fixed for the task, so that keys keep their queues."""

    def __init__(
        self,
        options: SinkOptions,
        name_servers: BlockingNameServerClient,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options  # retries, and name servers for error messages
        self._name_servers = name_servers  # blocking look-ups on connections of their own
        self._sleep = sleep  # waits between retries; replaced in tests
        self._monotonic = monotonic
        # By topic, fixed at the first use: a key must not change its queue within a task.
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._masters: dict[str, str] = {}  # address by broker name; unlike `_queues` it follows a broker that moved
        # Monotonic time; a broker that is down fails many requests, which share one look-up per REFRESH_S.
        self._refreshed_at = float("-inf")

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues of `topic`; retries while name servers are unavailable or do not have the topic."""

        def pause(error: ArianeError, delay_s: float) -> None:
            log.warning("%s; retrying", error)
            self._sleep(delay_s)

        if topic not in self._queues:
            self._queues[topic] = call_with_retries(lambda: self.find_queues(topic), self._options.retries, pause)
        return self._queues[topic]

    def find_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the current writable queues of `topic`; raise RouteNotFound if there are none."""
        route = self._fetch(topic)
        queues = publish_queues(topic, route) if route else ()
        if not queues:
            reason = (
                "none of its brokers is writable"
                if route
                else f"not found on any of {', '.join(self._options.namesrv)}"
            )
            raise RouteNotFound(topic, f"{reason}; the sink creates no topics: create it with `mqadmin updateTopic`")
        return queues

    def master(self, broker: str) -> str | None:
        return self._masters.get(broker)

    def refresh(self, topic: str) -> None:
        """Look up the brokers of `topic` again; keep the cached addresses if that fails."""
        now = self._monotonic()
        if now - self._refreshed_at < REFRESH_S:
            return
        self._refreshed_at = now
        try:
            self._fetch(topic)
        except ArianeError as error:
            log.warning("Could not refresh the route of %s, keeping the cached one: %s", topic, error)

    def _fetch(self, topic: str) -> TopicRoute | None:
        """Return the route, and cache the addresses of its masters; None if no name server has the topic."""
        route = self._name_servers.fetch_routes([topic]).get(topic)
        for data in route.broker_datas if route else ():
            if data.master:
                self._masters[data.broker_name] = data.master
        return route


@dataclass
class _PendingRequest:
    """A request that is queued, in flight, or due for a retry."""

    request: SendRequest
    queue: MessageQueue
    attempts: int = 0


class RequestSender:
    """Sends the requests of one task: call `put` for each, then `finish`."""

    def __init__(
        self,
        options: SinkOptions,
        routes: WriteRoutes,
        connections: SendConnections,
        *,
        require_timers: Callable[[str, str], None],
        now_ms: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options  # producer group, retries, requests in flight
        self._routes = routes  # addresses of brokers, refreshed when a request fails
        self._connections = connections  # pipelined: requests do not wait for the responses of others
        self._require_timers = (
            require_timers  # (addr, topic): raises MessageRefused if the broker would deliver too early
        )
        self._now_ms = now_ms  # wall clock, for the born time of messages
        self._monotonic = monotonic  # clock in seconds for retries; replaced in tests
        # Requests that may be sent as soon as fewer than maxInFlight are in flight.
        self._ready: deque[_PendingRequest] = deque()
        self._blocked: dict[
            MessageQueue, deque[_PendingRequest]
        ] = {}  # ordered lanes with a request in flight → requests blocked by it
        # Heap of (monotonic time of the next attempt, number that keeps equal times in order, request).
        self._retries: list[tuple[float, int, _PendingRequest]] = []
        self._in_flight: dict[int, _PendingRequest] = {}  # by token
        self._pending_bytes = 0  # bodies that are not confirmed; `put` blocks above PENDING_BYTES_MAX
        self._broker_turn = 0  # round-robin index for unordered requests whose broker failed
        self.stats = SendStats()  # counters that the task reports to the driver

    def put(self, request: SendRequest) -> None:
        """Queue a request; blocks while more than PENDING_BYTES_MAX are queued or in flight.

        Raises:
            ArianeError: this or an earlier request failed permanently.
        """
        if not self._in_flight:  # notice connections that were closed while idle before using them
            self._connections.poll(0.0)
        pending = _PendingRequest(request, request.lane.queue)
        self._pending_bytes += len(request.message.body)
        if not request.lane.is_ordered:
            self._ready.append(pending)
        elif pending.queue in self._blocked:
            self._blocked[pending.queue].append(pending)
        else:
            self._blocked[pending.queue] = deque()
            self._ready.append(pending)
        self._process(0.0)
        while self._pending_bytes > PENDING_BYTES_MAX:
            self._process(RETRY_BACKOFF.longest_s)

    def finish(self) -> SendStats:
        """Wait until all requests are stored; return the counts."""
        while self._ready or self._retries or self._in_flight:
            self._process(RETRY_BACKOFF.longest_s)
        return self.stats

    def _process(self, most_s: float) -> None:
        now = self._monotonic()
        while self._retries and self._retries[0][0] <= now:
            self._ready.append(heapq.heappop(self._retries)[2])
        while self._ready and len(self._in_flight) < self._options.max_in_flight:
            self._send(self._ready.popleft())
        if self._retries:
            most_s = min(most_s, max(0.0, self._retries[0][0] - now))
        for response in self._connections.poll(most_s):
            work = self._in_flight.pop(response.token, None)
            if work is not None:
                self._on_response(work, response)

    def _send(self, pending: _PendingRequest) -> None:
        message, addr = pending.request.message, self._routes.master(pending.queue.broker)
        self.stats.requests += 1
        try:
            if addr is None:
                raise ConnectionLost(pending.queue.broker, "has no master in its route")
            if message.needs_timer:
                self._require_timers(addr, message.topic)
            fields = request_fields(message, self._options.group_id, pending.queue.queue_id, self._now_ms(), SETTINGS)
            self._in_flight[self._connections.send(addr, message.code, fields, message.body)] = pending
        except (ConnectionLost, RequestTimeout, MessageRefused) as error:
            self._on_error(pending, error)

    def _on_response(self, pending: _PendingRequest, response: PipelinedResponse) -> None:
        if response.command is None:
            assert response.error is not None
            self._on_error(pending, response.error)
            return
        try:
            status = parse_status(response.command, self._routes.master(pending.queue.broker) or "")
        except ReplyError as error:
            self._on_error(pending, error)
        else:
            self._on_stored(pending, status)

    def _on_stored(self, pending: _PendingRequest, status: SendStatus) -> None:
        request = pending.request
        self._pending_bytes -= len(request.message.body)
        self.stats.messages += request.message_count
        self.stats.bytes += len(request.message.body)
        if status is not SendStatus.SEND_OK:
            self.stats.not_durable += request.message_count
        if request.lane.is_ordered:
            following = self._blocked[request.lane.queue]
            if following:
                self._ready.append(following.popleft())
            else:
                del self._blocked[request.lane.queue]

    def _on_error(self, pending: _PendingRequest, error: ArianeError) -> None:
        """Schedule a retry, or raise the error if it is permanent or the retries are exhausted."""
        pending.attempts += 1
        queue, request = pending.queue, pending.request
        target = f"{queue.topic} queue {queue.queue_id} of {queue.broker}"
        description = f"{target}: {request.message_count} messages from {request.first_row} on"
        if not is_transient(error, RETRY_SEND_CODES):
            raise ArianeError(f"{description}: {error}") from error
        if pending.attempts > self._options.retries:
            raise ArianeError(f"{description}: {error} (tried {pending.attempts} times)") from error
        log.warning("%s: %s; retrying", description, error)
        self.stats.retried += 1
        self._routes.refresh(queue.topic)
        if not request.lane.is_ordered:
            self._broker_turn += 1
            pending.queue = select_queue(self._routes.queues(queue.topic), self._broker_turn, queue.broker)
        heapq.heappush(
            self._retries, (self._monotonic() + RETRY_BACKOFF.delay_s(pending.attempts), self.stats.retried, pending)
        )
