"""Chunks to brokers: pipelined, in order where that was asked for, tried again while a broker is away.

    put ─→ free lane ───────────────────────────→ ready ─→ at most maxInFlight requests ─→ answers ─→ stored
        └→ ordered lane ─ one at a time per queue ↗                ↑                          │
                                                                   └── after a wait ── retry ─┘ else the task fails

    stored codes 0 10 11 12                      counted; 10 to 12 as `unsafe`: flush or replica did not answer in time
    no connection, no answer, 1 2 14 16 17 204 205   tried again, `retries` times; a free chunk at another broker, if there is one
    any other answer, or a denial                the task fails, with the topic, the broker and its remark

A chunk of an ordered lane goes out when the one before it is stored, so rows arrive in order also when some are sent again.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ariane.client.route_cache import MASTER, publish_queues
from ariane.client.send_codec import RETRY_ELSEWHERE_CODES, select_queue
from ariane.errors import ArianeError, ConnectionLost, ReplyError, RequestTimeout, RouteNotFound
from ariane.model.message import MessageQueue
from ariane.model.topic import AUTO_CREATE_TOPIC
from ariane.protocol import fastjson
from ariane.protocol.codes import STORED_CODES, RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import fields
from ariane.protocol.requests.messaging import SendMessage
from ariane.protocol.requests.routing import RouteRequest, TopicRoute
from ariane.spark.wire.pipelined_connections import PipelinedResponse
from ariane.spark.write.partitioner import SendRequest
from ariane.spark.write.sink_options import SinkOptions

log = logging.getLogger("ariane.spark")

PENDING_BYTES = 32 * 1024 * 1024  # of bodies that wait for their answers or their turn, per task
FIRST_WAIT_S = 0.1  # before a chunk is sent again; doubled each time
WAIT_MAX_S = 1.0
REFRESH_S = 1.0  # routes are not asked for more often than this
PASSING = RETRY_ELSEWHERE_CODES | {ResponseCode.SYSTEM_BUSY}
ACCESS_DENIED = "AclException"  # in the remark of SYSTEM_ERROR: asking again does not help


class SendConnections(Protocol):
    """What requests go through: `wire.connections.Wires`, or a script in tests."""

    def ask(self, addr: str, code: int, fields: dict[str, str], body: bytes = b"") -> int: ...

    def answers(self, wait_s: float) -> list[PipelinedResponse]: ...

    def close(self) -> None: ...


@dataclass
class SentChunk:
    """What a task stored."""

    messages: int = 0
    requests: int = 0
    bytes: int = 0
    retried: int = 0
    """Requests that were sent again: each may have stored its messages twice."""
    unsafe: int = 0
    """Messages that were stored before a flush or a replica answered."""


class WriteRoutes:
    """Queues and addresses of topics. A topic's queues stay as they were first seen: keys keep their queues within a task."""

    def __init__(
        self, options: SinkOptions, names: SendConnections, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._names = names
        self._monotonic = monotonic
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._masters: dict[str, str] = {}
        self._asked_at = float("-inf")

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Writable queues of `topic`. Name servers that are away, and a topic that none of them knows, are waited for."""
        if topic not in self._queues:
            for attempt in range(self._options.retries + 1):
                try:
                    self._queues[topic] = self.find(topic)
                    break
                except (ConnectionLost, RequestTimeout, RouteNotFound) as error:
                    if attempt == self._options.retries:
                        raise
                    log.warning("%s; trying again", error)
                    _wait(self._names, wait_s(attempt), self._monotonic)
        return self._queues[topic]

    def find(self, topic: str) -> tuple[MessageQueue, ...]:
        """Writable queues of `topic` now; RouteNotFound when there are none."""
        route = self._fetch(topic)
        queues = publish_queues(topic, route) if route else ()
        if not queues:
            why = (
                "none of its brokers may be written to"
                if route
                else f"none of {', '.join(self._options.namesrv)} knows it"
            )
            raise RouteNotFound(topic, f"{why}; the sink creates no topics: mqadmin updateTopic does")
        return queues

    def master(self, broker: str) -> str | None:
        return self._masters.get(broker)

    def refresh(self, topic: str) -> None:
        """Look for moved brokers; what cannot be asked stays as it is."""
        now = self._monotonic()
        if now - self._asked_at < REFRESH_S:
            return
        self._asked_at = now
        try:
            self._fetch(topic)
        except ArianeError as error:
            log.warning("the route of %s stays as it was known: %s", topic, error)

    def _fetch(self, topic: str) -> TopicRoute | None:
        """The route from the first name server that has one; None when those that answer know no such topic."""
        failed: ArianeError | None = None
        unknown = False
        for addr in self._options.namesrv:
            try:
                answer = self._call(addr, RouteRequest(topic, True))
            except (ConnectionLost, RequestTimeout) as error:
                failed = error
                continue
            if answer.code == ResponseCode.SUCCESS:
                route = fastjson.decode(answer.body, TopicRoute)
                for data in route.broker_datas:
                    if MASTER in data.broker_addrs:
                        self._masters[data.broker_name] = data.broker_addrs[MASTER]
                return route
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                unknown = True
            else:
                failed = ReplyError(answer.code, answer.remark, addr)
        if unknown:
            return None
        raise failed or ConnectionLost(";".join(self._options.namesrv), "no name server is given")

    def _call(self, addr: str, header: RouteRequest) -> Command:
        token = self._names.ask(addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields(header))
        while True:
            for answer in self._names.answers(WAIT_MAX_S):
                if answer.token == token and answer.error:
                    raise answer.error
                if answer.token == token and answer.command:
                    return answer.command


@dataclass
class _Work:
    """A chunk on its way."""

    chunk: SendRequest
    queue: MessageQueue
    attempts: int = 0


class ChunkSender:
    """The requests of one task. `put` chunks, then `finish`."""

    def __init__(
        self,
        options: SinkOptions,
        routes: WriteRoutes,
        wires: SendConnections,
        *,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._routes = routes
        self._wires = wires
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._ready: deque[_Work] = deque()
        self._behind: dict[MessageQueue, deque[_Work]] = {}  # ordered lanes that are busy: what has to wait
        self._later: list[tuple[float, int, _Work]] = []
        self._asked: dict[int, _Work] = {}
        self._pending_bytes = 0
        self._turn = 0
        self.sent = SentChunk()

    def put(self, chunk: SendRequest) -> None:
        """Take a chunk; waits while PENDING_BYTES are under way. ArianeError when one that was taken before cannot be sent."""
        if not self._asked:  # a connection that was closed while it was idle is noticed before it is used
            self._wires.answers(0.0)
        work = _Work(chunk, chunk.lane.queue)
        self._pending_bytes += len(chunk.body)
        if not chunk.lane.is_ordered:
            self._ready.append(work)
        elif work.queue in self._behind:
            self._behind[work.queue].append(work)
        else:
            self._behind[work.queue] = deque()
            self._ready.append(work)
        self._step(0.0)
        while self._pending_bytes > PENDING_BYTES:
            self._step(WAIT_MAX_S)

    def finish(self) -> SentChunk:
        """What was sent, when all of it is stored."""
        while self._ready or self._later or self._asked:
            self._step(WAIT_MAX_S)
        return self.sent

    def _step(self, most_s: float) -> None:
        now = self._monotonic()
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
        while self._ready and len(self._asked) < self._options.max_in_flight:
            self._send(self._ready.popleft())
        if self._later:
            most_s = min(most_s, max(0.0, self._later[0][0] - now))
        for answer in self._wires.answers(most_s):
            work = self._asked.pop(answer.token, None)
            if work is not None:
                self._answered(work, answer)

    def _send(self, work: _Work) -> None:
        chunk, addr = work.chunk, self._routes.master(work.queue.broker)
        header = SendMessage(
            self._options.group_id, work.queue.topic, AUTO_CREATE_TOPIC, 4, work.queue.queue_id, chunk.sys_flag,
            self._now_ms(), chunk.flag, chunk.properties, reconsume_times=0, batch=chunk.is_batch,
        )  # fmt: skip
        code = RequestCode.SEND_BATCH_MESSAGE if chunk.is_batch else RequestCode.SEND_MESSAGE_V2
        self.sent.requests += 1
        try:
            if addr is None:
                raise ConnectionLost(work.queue.broker, "has no master in the routes that are known")
            self._asked[self._wires.ask(addr, code, fields(header), chunk.body)] = work
        except ConnectionLost as error:
            self._failed(work, error)

    def _answered(self, work: _Work, answer: PipelinedResponse) -> None:
        if answer.command is None:
            assert answer.error is not None
            self._failed(work, answer.error)
        elif answer.command.code not in STORED_CODES:
            addr = self._routes.master(work.queue.broker) or ""
            self._failed(work, ReplyError(answer.command.code, answer.command.remark, addr))
        else:
            self._stored(work, answer.command)

    def _stored(self, work: _Work, answer: Command) -> None:
        chunk = work.chunk
        self._pending_bytes -= len(chunk.body)
        self.sent.messages += chunk.messages
        self.sent.bytes += len(chunk.body)
        if answer.code != ResponseCode.SUCCESS:
            self.sent.unsafe += chunk.messages
        if chunk.lane.is_ordered:
            behind = self._behind[chunk.lane.queue]
            if behind:
                self._ready.append(behind.popleft())
            else:
                del self._behind[chunk.lane.queue]

    def _failed(self, work: _Work, error: ArianeError) -> None:
        """Another attempt later, or the end of the task."""
        work.attempts += 1
        queue, chunk = work.queue, work.chunk
        what = (
            f"{queue.topic} queue {queue.queue_id} of {queue.broker}: {chunk.messages} messages from {chunk.first} on"
        )
        if not passes(error):
            raise ArianeError(f"{what}: {error}") from error
        if work.attempts > self._options.retries:
            raise ArianeError(f"{what}: {error} (tried {work.attempts} times)") from error
        log.warning("%s: %s; trying again", what, error)
        self.sent.retried += 1
        self._routes.refresh(queue.topic)
        if not chunk.lane.is_ordered:
            self._turn += 1
            work.queue = select_queue(self._routes.queues(queue.topic), self._turn, queue.broker)
        heapq.heappush(self._later, (self._monotonic() + wait_s(work.attempts - 1), self.sent.retried, work))


def passes(error: ArianeError) -> bool:
    """Whether another attempt may succeed."""
    if isinstance(error, ReplyError):
        return error.code in PASSING and ACCESS_DENIED not in (error.remark or "")
    return isinstance(error, ConnectionLost | RequestTimeout)


def wait_s(attempt: int) -> float:
    """How long to wait before the attempt after this one."""
    return float(min(FIRST_WAIT_S * 2 ** min(attempt, 10), WAIT_MAX_S))


def _wait(wires: SendConnections, seconds: float, monotonic: Callable[[], float]) -> None:
    ends = monotonic() + seconds
    while (left := ends - monotonic()) > 0:
        wires.answers(left)
