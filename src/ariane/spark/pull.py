"""A blocking client for executors and planners: routes, ends of queues, pulls. One request at a time per connection.

Connections are kept by the process and used again by its later tasks; servers close those that were idle for two minutes, so
a kept one that turns out to be closed is replaced at once. A request that fails is tried again, a second apart, on a new
connection and with a new route: a broker that restarts is waited for, one that stays away is an error.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import msgspec

from ariane.errors import ArianeError, ConnectionLost, ReplyError, RequestTimeout, RouteNotFound
from ariane.model import host
from ariane.model.message import MessageQueue
from ariane.model.topic import PERM_READ
from ariane.protocol import command as commands
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.frame import FrameReader
from ariane.protocol.requests import fields, typed
from ariane.protocol.requests.messaging import (
    SUBSCRIPTION,
    TAG,
    OffsetAnswer,
    PullMessage,
    PullMessageAnswer,
    QueueRef,
)
from ariane.protocol.requests.routing import RouteRequest, TopicRoute
from ariane.protocol.signing import Credentials, signed
from ariane.spark.options import SourceOptions

log = logging.getLogger("ariane.spark")

T = TypeVar("T")
P = ParamSpec("P")

CONNECT_TIMEOUT_S = 3.0
READ_SIZE = 262_144
RETRY_S = 1.0
MASTER_ID = 0
PULLED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
# What a broker answers while it starts, stops or is overloaded, or when the route is older than a move of the topic.
PASSING = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOPIC_NOT_EXIST,
    }
)
ACCESS_DENIED = "AclException"  # in the remark of SYSTEM_ERROR: asking again does not help
REMOVING = "MESSAGE_WAS_REMOVING"  # the store's status, which brokers put into the remark


class NotYetThere(ArianeError):
    """A broker, mostly a slave, has not the entries that the master told of: to be asked again."""


AWAY = (ConnectionLost, RequestTimeout, RouteNotFound, NotYetThere, ReplyError)  # what `retry` tries again


def raise_unless_passing(error: ArianeError) -> None:
    """A refusal that asking again does not change is raised."""
    if isinstance(error, ReplyError) and not _passes(error):
        raise error


def _passes(error: ReplyError) -> bool:
    return error.code in PASSING and ACCESS_DENIED not in (error.remark or "")


class Pulled(NamedTuple):
    """An answer to a pull: `body` holds records when `code` is 0."""

    code: int
    body: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    from_master: bool = True
    removed: bool = False
    """Whether the entries up to `next_offset` were passed because their records are gone, not because of a filter."""


class Wire:
    """One connection."""

    def __init__(self, addr: str, timeout_ms: int, credentials: Credentials | None = None) -> None:
        self._addr = addr
        self._credentials = credentials
        self._timeout_ms = timeout_ms
        self._opaque = 0
        self._reader = FrameReader()
        try:
            self._socket = socket.create_connection(host.parse(addr), CONNECT_TIMEOUT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise ConnectionLost(addr, error.strerror or str(error)) from error

    def call(self, code: int, header: msgspec.Struct) -> Command:
        self._opaque += 1
        ends_s = time.monotonic() + self._timeout_ms / 1000
        try:
            self._socket.settimeout(self._timeout_ms / 1000)
            texts = fields(header)
            if self._credentials is not None:
                texts = signed(self._credentials, texts, b"")
            self._socket.sendall(b"".join(commands.encode(code, opaque=self._opaque, flag=0, fields=texts)))
            while True:
                left_s = ends_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError
                self._socket.settimeout(left_s)
                data = self._socket.recv(READ_SIZE)
                if not data:
                    raise ConnectionLost(self._addr, "was closed by the other side")
                for frame in self._reader.feed(data):
                    answer = commands.decode(frame)
                    if answer.is_response and answer.opaque == self._opaque:
                        return answer
        except TimeoutError:
            raise RequestTimeout(self._addr, self._timeout_ms) from None
        except OSError as error:
            raise ConnectionLost(self._addr, error.strerror or str(error)) from error

    def close(self) -> None:
        self._socket.close()


class Cluster:
    """Name servers and the brokers that they know, for one set of options."""

    def __init__(self, options: SourceOptions, sleep: Callable[[float], None] = time.sleep) -> None:
        self._options = options
        self._sleep = sleep
        self._credentials = (
            Credentials(options.access_key, options.secret_key, options.security_token) if options.access_key else None
        )
        self._wires: dict[str, Wire] = {}
        self._route: TopicRoute | None = None

    def queues(self) -> list[MessageQueue]:
        """Readable queues of the topic now; empty when no name server knows it."""
        route = self._fetch_route()
        if route is None:
            return []
        return sorted(
            MessageQueue(self._options.topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        )

    def min_offset(self, queue: MessageQueue) -> int:
        header = QueueRef(queue.topic, queue.queue_id)
        return typed(self._ask(queue, RequestCode.GET_MIN_OFFSET, header), OffsetAnswer).offset

    def max_offset(self, queue: MessageQueue) -> int:
        header = QueueRef(queue.topic, queue.queue_id)
        return typed(self._ask(queue, RequestCode.GET_MAX_OFFSET, header), OffsetAnswer).offset

    def pull(self, queue: MessageQueue, offset: int) -> Pulled:
        """Messages of a queue from `offset` on."""
        options = self._options
        header = PullMessage(
            options.group_id, queue.topic, queue.queue_id, offset, options.pull_batch_size, SUBSCRIPTION,
            subscription=options.tags, expression_type=TAG,
        )  # fmt: skip
        answer = self._ask(queue, RequestCode.PULL_MESSAGE, header, PULLED)
        at = typed(answer, PullMessageAnswer)
        return Pulled(
            answer.code, answer.body, at.next_begin_offset, at.min_offset, at.max_offset,
            self.from_master(queue), answer.remark == REMOVING,
        )  # fmt: skip

    def from_master(self, queue: MessageQueue) -> bool:
        """Whether the master answers for this queue by the route of now: a slave may lag behind it."""
        return self._server(queue)[0] == MASTER_ID

    def retry(self, what: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns; tried again while servers are away. The last error, with `what`, when they stay away."""
        for left in range(self._options.retries, -1, -1):
            try:
                return work(*args, **kwargs)
            except AWAY as error:
                if isinstance(error, ReplyError) and not _passes(error):
                    raise ArianeError(f"{what}: {error}") from error
                if left == 0:
                    raise ArianeError(f"{what}: {error} (tried {self._options.retries + 1} times)") from error
                log.warning("%s: %s; trying again", what, error)
                self._route = None
                self._sleep(RETRY_S)
        raise AssertionError("unreachable")

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    def _ask(self, queue: MessageQueue, code: int, header: msgspec.Struct, accepted: tuple[int, ...] = (0,)) -> Command:
        _, addr = self._server(queue)
        answer = self._call(addr, code, header)
        if answer.code not in accepted:
            raise ReplyError(answer.code, answer.remark, addr)
        return answer

    def _server(self, queue: MessageQueue) -> tuple[int, str]:
        """Id and address of the broker's master, else of the slave with the lowest id."""
        route = self._route or self._fetch_route()
        for data in route.broker_datas if route else ():
            if data.broker_name == queue.broker and data.broker_addrs:
                return min(data.broker_addrs.items())
        raise RouteNotFound(queue.topic, f"no address of broker {queue.broker} is known")

    def _fetch_route(self) -> TopicRoute | None:
        """The route from the first name server that has one; None when those that answer know no such topic."""
        failed: ArianeError | None = None
        unknown = False
        for addr in self._options.namesrv:
            try:
                answer = self._call(addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(self._options.topic, True))
            except (ConnectionLost, RequestTimeout) as error:
                failed = error
                continue
            if answer.code == ResponseCode.SUCCESS:
                self._route = fastjson.decode(answer.body, TopicRoute)
                return self._route
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                unknown = True
            else:
                failed = ReplyError(answer.code, answer.remark, addr)
        self._route = None
        if unknown:
            return None
        raise failed or ConnectionLost(";".join(self._options.namesrv), "no name server is given")

    def _call(self, addr: str, code: int, header: msgspec.Struct) -> Command:
        wire = self._wires.get(addr)
        if wire is not None:
            try:
                return self._on(wire, addr, code, header)
            except ConnectionLost:
                log.debug("the connection to %s was closed while idle; connecting again", addr)
        wire = self._wires[addr] = Wire(addr, self._options.pull_timeout_ms, self._credentials)
        return self._on(wire, addr, code, header)

    def _on(self, wire: Wire, addr: str, code: int, header: msgspec.Struct) -> Command:
        """The answer on `wire`, which is closed and forgotten when there is none."""
        try:
            return wire.call(code, header)
        except ArianeError:
            self._wires.pop(addr, None)
            wire.close()
            raise


_clusters: dict[tuple[object, ...], Cluster] = {}


def cluster(options: SourceOptions) -> Cluster:
    """The cluster of `options`, kept while this process lives."""
    key = (
        options.namesrv,
        options.topic,
        options.group_id,
        options.tags,
        options.pull_batch_size,
        options.pull_timeout_ms,
        options.retries,
        options.access_key,
        options.secret_key,
        options.security_token,
    )
    return _clusters.setdefault(key, Cluster(options))
