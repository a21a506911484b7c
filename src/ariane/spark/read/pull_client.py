"""Blocking client of planners and tasks: topics, routes, queue bounds, pulls.

    topics() ─→ routes ─→ queues(topics) ─→ queue_bounds(queues), pull_each({queue: offset})    pipelined, for planning
                                       └──→ pull(queue, offsets)                                for tasks

Connections belong to the process, and its later tasks use them again. A failed request is retried on a new connection with a new
route: a broker that restarts is waited for, one that stays unavailable is an error. A server that could not be reached is
avoided for a few seconds if another server has the same queues, so slaves take over for a failed master.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, ParamSpec, TypeVar

from ariane.errors import ArianeError, ConnectionLost, ReplyError, RouteNotFound, ServerUnavailable
from ariane.model.message import MessageQueue
from ariane.model.topic import SEND_FORBIDDEN
from ariane.protocol import fastjson
from ariane.protocol.client_rules.route_rules import preferred_server, subscribe_queues
from ariane.protocol.client_rules.transient import NO_RESPONSE, UNAVAILABLE, is_transient
from ariane.protocol.codes import PULL_RESULT_CODES, RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import (
    SUBSCRIPTION,
    TAG,
    OffsetResponse,
    PullMessage,
    PullMessageResponse,
    QueueRef,
    SearchOffset,
)
from ariane.protocol.requests.routing import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRoute,
    TopicTable,
)
from ariane.spark.read.source_options import PullAccess, pull_access
from ariane.spark.wire.blocking_connection import Request
from ariane.spark.wire.connections_by_address import BlockingConnectionPool
from ariane.spark.wire.name_servers import BlockingNameServerClient
from ariane.spark.wire.retries import call_with_retries

log = logging.getLogger("ariane.spark")

T = TypeVar("T")
P = ParamSpec("P")

AVOID_SERVER_S = 5.0  # how long a server that could not be reached is avoided if another has the same queues
REMARK_REMOVING = "MESSAGE_WAS_REMOVING"  # status of the store, copied to the remark by brokers


class OffsetNotAvailable(ServerUnavailable):
    """A broker, usually a slave, does not have entries yet that the master has announced; a retry may find them."""


RETRYABLE_ERRORS = (*UNAVAILABLE, ReplyError)  # what `retry` catches; of ReplyError only transient ones are retried


def raise_unless_transient(error: ArianeError) -> None:
    """Raise a permanent error; return if a retry may succeed."""
    if not is_transient(error):
        raise error


class PulledRecords(NamedTuple):
    """The response to a pull: `body` holds records if `code` is 0."""

    code: int
    body: bytes
    next_offset: int  # where to continue; beyond the requested offset even if a filter dropped all messages
    min_offset: int  # first offset of the queue at this broker; requests below it are lost messages
    max_offset: int  # end of the queue at this broker; a slave's may lag behind its master's
    from_master: bool = True  # False: a slave responded, so a missing entry may still be on the master
    removed: bool = False
    """Whether the broker skipped the entries up to `next_offset` because their records are deleted, not because of a filter."""


class OffsetBounds(NamedTuple):
    """The offsets that a queue holds: from `first` up to but not including `end`. A slave's end may be lower than its master's."""

    first: int
    end: int
    from_master: bool


class BrokerResponse(NamedTuple):
    """A broker's response and whether the master sent it: a slave may lag behind."""

    response: Command
    from_master: bool


class BlockingCluster:
    """Name servers and brokers of one cluster, accessed with one set of access options."""

    def __init__(
        self,
        access: PullAccess,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._sleep = sleep
        self._monotonic = monotonic
        self._connections = BlockingConnectionPool(access)  # of this process, opened on first use
        # Routes of topics, with retries over all addresses.
        self._name_servers = BlockingNameServerClient(self._call_server, access.namesrv)
        self._routes: dict[str, TopicRoute] = {}  # by topic; forgotten before a retry: the queue may have moved
        self._avoid_until: dict[str, float] = {}  # address → monotonic time until which other servers are preferred

    # --- metadata ---

    def topics(self) -> list[str]:
        """Return all topics registered with the name servers."""
        return sorted(set(self._name_servers.fetch_topics().topic_list))

    def brokers(self) -> ClusterInfo:
        """Return the brokers and clusters registered with the name servers."""
        return self._name_servers.fetch_cluster()

    def queues(self, *topics: str) -> list[MessageQueue]:
        """Return the current readable queues of `topics`; none for a topic without a route."""
        routes = self._fetch_routes(topics)
        return sorted(queue for topic, route in routes.items() for queue in subscribe_queues(topic, route))

    def forget_routes(self, *topics: str) -> None:
        """Drop the cached routes of `topics`."""
        for topic in topics:
            self._routes.pop(topic, None)

    # --- many queues, pipelined: a result or an error for each ---

    def queue_bounds(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, OffsetBounds | ArianeError]:
        """Return the first offset of each queue and the offset of its next message."""
        codes = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        requests = [(queue, Request(code, QueueRef(queue.topic, queue.queue_id))) for queue in queues for code in codes]
        responses = self.request_all(requests)
        bounds: dict[MessageQueue, OffsetBounds | ArianeError] = {}
        for queue, low, high in zip(queues, responses[::2], responses[1::2], strict=True):
            if isinstance(low, ArianeError) or isinstance(high, ArianeError):
                bounds[queue] = low if isinstance(low, ArianeError) else high  # type: ignore[assignment]
            else:
                first, last = (
                    decode_header(low.response, OffsetResponse).offset,
                    decode_header(high.response, OffsetResponse).offset,
                )
                bounds[queue] = OffsetBounds(first, last, low.from_master and high.from_master)
        return bounds

    def search_offsets(self, times: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | ArianeError]:
        """Return an offset near each time (ms). Brokers pick one of the nearest entries, before or after the time."""
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        requests = [
            (queue, Request(code, SearchOffset(queue.topic, queue.queue_id, ms))) for queue, ms in times.items()
        ]
        return {
            queue: response
            if isinstance(response, ArianeError)
            else decode_header(response.response, OffsetResponse).offset
            for queue, response in zip(times, self.request_all(requests), strict=True)
        }

    def pull_each(
        self, offsets: Mapping[MessageQueue, int], max_messages: int
    ) -> dict[MessageQueue, PulledRecords | ArianeError]:
        """Pull up to `max_messages` messages of each queue, with any tags."""
        code = RequestCode.PULL_MESSAGE
        requests = [
            (queue, Request(code, self._pull_header(queue, offset, max_messages, "*")))
            for queue, offset in offsets.items()
        ]
        responses = self.request_all(requests, PULL_RESULT_CODES)
        return {
            queue: response if isinstance(response, ArianeError) else _decode_pull(response)
            for queue, response in zip(offsets, responses, strict=True)
        }

    # --- one queue ---

    def pull(self, queue: MessageQueue, offsets: Sequence[int], tags: str = "*") -> list[PulledRecords]:
        """Pull messages of a queue from several offsets, pipelined. Return the results up to the first request that failed.

        Each pull requests the messages up to the next offset.

        Raises:
            ArianeError: the pull at the first offset failed.
        """
        most, code = self._access.pull_batch_size, RequestCode.PULL_MESSAGE
        counts = [*(min(stop - start, most) for start, stop in pairwise(offsets)), most]
        headers = [self._pull_header(queue, *pull, tags) for pull in zip(offsets, counts, strict=True)]
        requests = [(queue, Request(code, header)) for header in headers]
        results: list[PulledRecords] = []
        for response in self.request_all(requests, PULL_RESULT_CODES):
            if isinstance(response, ArianeError):
                if not results:
                    raise response
                break
            results.append(_decode_pull(response))
        return results

    def retry(self, description: str, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `operation`, and repeat it, each time with new routes, while it raises transient errors.

        Raises:
            ServerUnavailable: the last attempt failed, too; the message starts with `description`.
            ArianeError: a broker sent a permanent error.
        """

        def pause(error: ArianeError, delay_s: float) -> None:
            log.warning("%s: %s; retrying", description, error)
            self._routes.clear()
            self._sleep(delay_s)

        try:
            return call_with_retries(lambda: operation(*args, **kwargs), self._access.retries, pause)
        except RETRYABLE_ERRORS as error:
            if is_transient(error):
                raise ServerUnavailable(f"{description}: {error} (tried {self._access.retries + 1} times)") from error
            raise ArianeError(f"{description}: {error}") from error

    def close(self) -> None:
        self._connections.close()

    # --- requests to brokers ---

    def _pull_header(self, queue: MessageQueue, offset: int, max_messages: int, tags: str) -> PullMessage:
        return PullMessage(
            self._access.group_id, queue.topic, queue.queue_id, offset, max_messages, SUBSCRIPTION,
            subscription=tags, expression_type=TAG,
        )  # fmt: skip

    def request_all(
        self, requests: Sequence[tuple[MessageQueue, Request]], accepted: Collection[int] = (0,)
    ) -> list[BrokerResponse | ArianeError]:
        """Send requests to the brokers of their queues; return a response or an error for each, in their order.

        Requests to the same server are pipelined on its connection.
        """
        responses: list[BrokerResponse | ArianeError | None] = [None] * len(requests)
        by_server: dict[tuple[int, str], list[int]] = {}
        for number, (queue, _) in enumerate(requests):
            try:
                by_server.setdefault(self._server_of(queue), []).append(number)
            except RETRYABLE_ERRORS as error:
                responses[number] = error
        for (broker_id, addr), numbers in by_server.items():
            try:
                commands = self._call_server(addr, [requests[number][1] for number in numbers])
            except NO_RESPONSE as error:
                for number in numbers:
                    responses[number] = error
                continue
            for number, command in zip(numbers, commands, strict=True):
                is_good = command.code in accepted
                responses[number] = (
                    BrokerResponse(command, broker_id == MASTER_ID)
                    if is_good
                    else ReplyError(command.code, command.remark, addr)
                )
        return [response for response in responses if response is not None]

    def _request_ok(self, addr: str, code: int) -> Command:
        (response,) = self._call_server(addr, [Request(code)])
        if response.code != ResponseCode.SUCCESS:
            raise ReplyError(response.code, response.remark, addr)
        return response

    def _server_of(self, queue: MessageQueue) -> tuple[int, str]:
        """Return broker id and address of the master, otherwise of the slave with the lowest id; prefer reachable servers."""
        route = self._routes.get(queue.topic) or self._fetch_routes([queue.topic]).get(queue.topic)
        for data in route.broker_datas if route else ():
            if data.broker_name == queue.broker and data.broker_addrs:
                broker_id = self._pick_server(data)
                return broker_id, data.broker_addrs[broker_id]
        raise RouteNotFound(queue.topic, f"broker {queue.broker} has no address in the route")

    def _pick_server(self, data: BrokerData) -> int:
        if not self._avoid_until:
            return preferred_server(data.broker_addrs)
        now_s = self._monotonic()
        avoided = [addr for addr, until_s in self._avoid_until.items() if until_s > now_s]
        return preferred_server(data.broker_addrs, avoided)

    # --- routes ---

    def _fetch_routes(self, topics: Sequence[str]) -> dict[str, TopicRoute]:
        """Fetch and cache the route of each topic; topics that no name server has are omitted."""
        self.forget_routes(*topics)
        routes = self._name_servers.fetch_routes(topics)
        system_topics = [topic for topic in topics if topic in SEND_FORBIDDEN]
        routes |= (
            self._fetch_routes_from_brokers({topic: routes.get(topic, TopicRoute()) for topic in system_topics})
            if system_topics
            else {}
        )
        self._routes |= routes
        return routes

    def _fetch_routes_from_brokers(self, registered: Mapping[str, TopicRoute]) -> dict[str, TopicRoute]:
        """Build the routes of system topics from the topic configuration of each broker, as brokers need not register them.

        `registered` holds the routes of the name servers, which are used for a broker that is unavailable.
        """
        datas = {data.broker_name: data for data in self.brokers().broker_addr_table.values() if data.broker_addrs}
        queues: dict[str, dict[str, QueueData]] = {
            topic: {queue_data.broker_name: queue_data for queue_data in route.queue_datas}
            for topic, route in registered.items()
        }
        for name, data in datas.items():
            addr = data.broker_addrs[self._pick_server(data)]
            try:
                response = self._request_ok(addr, RequestCode.GET_ALL_TOPIC_CONFIG)
            except NO_RESPONSE as error:
                if all(name in of_topic for of_topic in queues.values()):
                    continue
                topics = ", ".join(sorted(registered))
                reason = f"broker {name} is unavailable, and no name server has its queues of {topics}: {error}"
                raise ConnectionLost(addr, reason) from error
            table = fastjson.decode(response.body, TopicTable).topic_config_table
            for topic in registered:
                if config := table.get(topic):
                    queues[topic][name] = QueueData(
                        name, config.perm, config.read_queue_nums, config.topic_sys_flag, config.write_queue_nums
                    )
        return {
            topic: TopicRoute(broker_datas=tuple(datas.values()), queue_datas=tuple(of_topic.values()))
            for topic, of_topic in queues.items()
            if of_topic
        }

    # --- connections ---

    def _call_server(self, addr: str, requests: Sequence[Request]) -> list[Command]:
        try:
            responses = self._connections.call_all(addr, requests)
        except NO_RESPONSE:
            self._avoid_until[addr] = self._monotonic() + AVOID_SERVER_S
            raise
        self._avoid_until.pop(addr, None)
        return responses


def _decode_pull(response: BrokerResponse) -> PulledRecords:
    header = decode_header(response.response, PullMessageResponse)
    return PulledRecords(
        response.response.code, response.response.body, header.next_begin_offset, header.min_offset, header.max_offset,
        response.from_master, response.response.remark == REMARK_REMOVING,
    )  # fmt: skip


_shared_clusters: dict[PullAccess, BlockingCluster] = {}


def shared_cluster(options: PullAccess) -> BlockingCluster:
    """Return the cluster for the access options, created once for each process."""
    key = pull_access(options)
    shared = _shared_clusters.get(key)
    if shared is None:
        shared = _shared_clusters[key] = BlockingCluster(key)
    return shared
