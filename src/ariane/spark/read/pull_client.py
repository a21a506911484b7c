"""A blocking client for executors and planners: topics, routes, ends of queues, pulls.

    topics() ─→ routes(topics) ─→ queues ─→ ends(queues), pulls({queue: offset})    many at once (`wire.connection`)
                                       └──→ pull(queue, offsets)                                   what a task does

Connections are kept by the process and used again by its later tasks; servers close those that were idle for two minutes, so
a kept one that turns out to be closed is replaced at once. A request that fails is tried again, a second apart, on a new
connection and with a new route: a broker that restarts is waited for, one that stays away is an error. A server that could
not be reached is passed over for a few seconds where another has the same queues: slaves answer for a master that is gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, ParamSpec, TypeVar

import msgspec

from ariane.errors import ArianeError, ConnectionLost, ReplyError, RequestTimeout, RouteNotFound, ServerUnavailable
from ariane.model.message import MessageQueue
from ariane.model.topic import PERM_READ, SEND_FORBIDDEN
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import typed
from ariane.protocol.requests.messaging import (
    SUBSCRIPTION,
    TAG,
    OffsetAnswer,
    PullMessage,
    PullMessageAnswer,
    QueueRef,
    SearchOffset,
)
from ariane.protocol.requests.routing import (
    BrokerData,
    ClusterInfo,
    QueueData,
    RouteRequest,
    TopicList,
    TopicRoute,
    TopicTable,
)
from ariane.spark.read.source_options import PullAccess, access
from ariane.spark.wire.access import credentials, tls_context
from ariane.spark.wire.blocking_connection import BlockingConnection, Request

log = logging.getLogger("ariane.spark")

T = TypeVar("T")
P = ParamSpec("P")

RETRY_S = 1.0
AWAY_S = 5.0  # so long a server that could not be reached is passed over, where another has the same queues
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


class PulledRecords(NamedTuple):
    """An answer to a pull: `body` holds records when `code` is 0."""

    code: int
    body: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    from_master: bool = True
    removed: bool = False
    """Whether the entries up to `next_offset` were passed because their records are gone, not because of a filter."""


class QueueEnd(NamedTuple):
    """What a queue holds: from `first` up to but not including `last`. A slave may lag behind the master's."""

    first: int
    last: int
    from_master: bool


class PullAnswer(NamedTuple):
    """What a broker answered, and whether it was the master: a slave may lag behind it."""

    command: Command
    from_master: bool


class EmptyPull(msgspec.Struct, frozen=True):
    """The header of requests without members."""


class BlockingCluster:
    """Name servers and the brokers that they know, for one way to reach them."""

    def __init__(
        self,
        access: PullAccess,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._sleep = sleep
        self._monotonic = monotonic
        self._credentials = credentials(access)
        self._tls = tls_context(access)
        self._wires: dict[str, BlockingConnection] = {}
        self._routes: dict[str, TopicRoute] = {}
        self._away: dict[str, float] = {}  # address → until when (monotonic) another is asked first

    # --- what there is ---

    def topics(self) -> list[str]:
        """All topics that the name servers know."""
        answer = self._of_a_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(set(fastjson.decode(answer.body, TopicList).topic_list))

    def brokers(self) -> ClusterInfo:
        """Brokers and clusters that the name servers know."""
        return fastjson.decode(self._of_a_name_server(RequestCode.GET_BROKER_CLUSTER_INFO).body, ClusterInfo)

    def queues(self, *topics: str) -> list[MessageQueue]:
        """Readable queues of `topics` now; none for a topic that no name server knows."""
        routes = self._fetch_routes(topics)
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for topic, route in routes.items()
            for data in route.queue_datas
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        )

    def forget_routes(self, *topics: str) -> None:
        """The routes of these topics are asked for anew before they are used again."""
        for topic in topics:
            self._routes.pop(topic, None)

    # --- many queues at once: an answer or an error for each ---

    def ends(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, QueueEnd | ArianeError]:
        """First offset of each queue, and the one that its next message will have."""
        codes = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        asked = [(queue, Request(code, QueueRef(queue.topic, queue.queue_id))) for queue in queues for code in codes]
        answers = self.ask_all(asked)
        found: dict[MessageQueue, QueueEnd | ArianeError] = {}
        for queue, low, high in zip(queues, answers[::2], answers[1::2], strict=True):
            if isinstance(low, ArianeError) or isinstance(high, ArianeError):
                found[queue] = low if isinstance(low, ArianeError) else high  # type: ignore[assignment]
            else:
                first, last = typed(low.command, OffsetAnswer).offset, typed(high.command, OffsetAnswer).offset
                found[queue] = QueueEnd(first, last, low.from_master and high.from_master)
        return found

    def offsets_at(self, times: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | ArianeError]:
        """About the entry that was stored at a time (ms), as the broker says: of the nearest ones, before or after."""
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        asked = [(queue, Request(code, SearchOffset(queue.topic, queue.queue_id, ms))) for queue, ms in times.items()]
        return {
            queue: one if isinstance(one, ArianeError) else typed(one.command, OffsetAnswer).offset
            for queue, one in zip(times, self.ask_all(asked), strict=True)
        }

    def pulls(self, offsets: Mapping[MessageQueue, int], most: int) -> dict[MessageQueue, PulledRecords | ArianeError]:
        """Up to `most` messages of each queue, whatever their tags."""
        code = RequestCode.PULL_MESSAGE
        asked = [
            (queue, Request(code, self._pull_header(queue, offset, most, "*"))) for queue, offset in offsets.items()
        ]
        answers = self.ask_all(asked, PULLED)
        return {
            queue: one if isinstance(one, ArianeError) else _pulled(one)
            for queue, one in zip(offsets, answers, strict=True)
        }

    # --- one queue ---

    def pull(self, queue: MessageQueue, offsets: Sequence[int], tags: str = "*") -> list[PulledRecords]:
        """Messages of a queue from each of the offsets on, all asked at once, up to the first that is refused; the refusal of
        the first offset is raised."""
        most, code = self._access.pull_batch_size, RequestCode.PULL_MESSAGE
        asked = [(queue, Request(code, self._pull_header(queue, offset, most, tags))) for offset in offsets]
        found: list[PulledRecords] = []
        for answer in self.ask_all(asked, PULLED):
            if isinstance(answer, ArianeError):
                if not found:
                    raise answer
                break
            found.append(_pulled(answer))
        return found

    def retry(self, what: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns; tried again while servers are away. The last error, with `what`, when they stay away."""
        for left in range(self._access.retries, -1, -1):
            try:
                return work(*args, **kwargs)
            except AWAY as error:
                if isinstance(error, ReplyError) and not _passes(error):
                    raise ArianeError(f"{what}: {error}") from error
                if left == 0:
                    raise ServerUnavailable(f"{what}: {error} (tried {self._access.retries + 1} times)") from error
                log.warning("%s: %s; trying again", what, error)
                self._routes.clear()
                self._sleep(RETRY_S)
        raise AssertionError("unreachable")

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    # --- asking brokers ---

    def _pull_header(self, queue: MessageQueue, offset: int, most: int, tags: str) -> PullMessage:
        return PullMessage(
            self._access.group_id, queue.topic, queue.queue_id, offset, most, SUBSCRIPTION,
            subscription=tags, expression_type=TAG,
        )  # fmt: skip

    def ask_all(
        self, asked: Sequence[tuple[MessageQueue, Request]], accepted: tuple[int, ...] = (0,)
    ) -> list[PullAnswer | ArianeError]:
        """An answer or an error for each question, in their order; those to one server go over its connection together."""
        answers: list[PullAnswer | ArianeError | None] = [None] * len(asked)
        by_server: dict[tuple[int, str], list[int]] = {}
        for number, (queue, _) in enumerate(asked):
            try:
                by_server.setdefault(self._server(queue), []).append(number)
            except AWAY as error:
                answers[number] = error
        for (broker_id, addr), numbers in by_server.items():
            try:
                commands = self._calls(addr, [asked[number][1] for number in numbers])
            except (ConnectionLost, RequestTimeout) as error:
                for number in numbers:
                    answers[number] = error
                continue
            for number, command in zip(numbers, commands, strict=True):
                is_good = command.code in accepted
                answers[number] = (
                    PullAnswer(command, broker_id == MASTER_ID)
                    if is_good
                    else ReplyError(command.code, command.remark, addr)
                )
        return [one for one in answers if one is not None]

    def _server(self, queue: MessageQueue) -> tuple[int, str]:
        """Id and address of the broker's master, else of the slave with the lowest id; one that can be reached, if any."""
        route = self._routes.get(queue.topic) or self._fetch_routes([queue.topic]).get(queue.topic)
        for data in route.broker_datas if route else ():
            if data.broker_name == queue.broker and data.broker_addrs:
                return self._reachable(data)
        raise RouteNotFound(queue.topic, f"no address of broker {queue.broker} is known")

    def _reachable(self, data: BrokerData) -> tuple[int, str]:
        servers = sorted(data.broker_addrs.items())
        if not self._away:
            return servers[0]
        now_s = self._monotonic()
        return next((one for one in servers if self._away.get(one[1], 0.0) <= now_s), servers[0])

    # --- asking name servers ---

    def _of_a_name_server(self, code: int) -> Command:
        """The answer of the first name server that gives one."""
        failed: ArianeError | None = None
        for addr in self._access.namesrv:
            try:
                return self._good(addr, code)
            except (ConnectionLost, RequestTimeout, ReplyError) as error:
                failed = error
        raise failed or ConnectionLost(";".join(self._access.namesrv), "no name server is given")

    def _good(self, addr: str, code: int) -> Command:
        (answer,) = self._calls(addr, [Request(code, EmptyPull())])
        if answer.code != ResponseCode.SUCCESS:
            raise ReplyError(answer.code, answer.remark, addr)
        return answer

    def _fetch_routes(self, topics: Sequence[str]) -> dict[str, TopicRoute]:
        """The route of each topic from the first name server that has one; without those that are unknown to all that
        answer."""
        failed: dict[str, ArianeError] = {}
        unknown: set[str] = set()
        found: dict[str, TopicRoute] = {}
        for addr in self._access.namesrv:
            left = [topic for topic in topics if topic not in found]
            if not left:
                break
            code = RequestCode.GET_ROUTEINFO_BY_TOPIC
            try:
                answers = self._calls(addr, [Request(code, RouteRequest(topic, True)) for topic in left])
            except (ConnectionLost, RequestTimeout) as error:
                failed |= dict.fromkeys(left, error)
                continue
            for topic, answer in zip(left, answers, strict=True):
                if answer.code == ResponseCode.SUCCESS:
                    found[topic] = fastjson.decode(answer.body, TopicRoute)
                elif answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    unknown.add(topic)
                else:
                    failed[topic] = ReplyError(answer.code, answer.remark, addr)
        for topic in topics:
            self._routes.pop(topic, None)
            if topic not in found and topic not in unknown:
                raise failed.get(topic) or ConnectionLost(";".join(self._access.namesrv), "no name server is given")
        own = [topic for topic in topics if topic in SEND_FORBIDDEN]
        found |= self._routes_by_brokers({topic: found.get(topic, TopicRoute()) for topic in own}) if own else {}
        self._routes |= found
        return found

    def _routes_by_brokers(self, told: Mapping[str, TopicRoute]) -> dict[str, TopicRoute]:
        """Routes of topics that brokers keep for themselves: these need not tell the name servers, so each broker is asked.
        `told` is what the name servers say, which stands for a broker that is away."""
        datas = {data.broker_name: data for data in self.brokers().broker_addr_table.values() if data.broker_addrs}
        queues: dict[str, dict[str, QueueData]] = {
            topic: {one.broker_name: one for one in route.queue_datas} for topic, route in told.items()
        }
        for name, data in datas.items():
            addr = self._reachable(data)[1]
            try:
                answer = self._good(addr, RequestCode.GET_ALL_TOPIC_CONFIG)
            except (ConnectionLost, RequestTimeout) as error:
                if all(name in of_topic for of_topic in queues.values()):
                    continue
                why = f"broker {name} is away, and it alone knows its queues of {', '.join(sorted(told))}: {error}"
                raise ConnectionLost(addr, why) from error
            table = fastjson.decode(answer.body, TopicTable).topic_config_table
            for topic in told:
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

    def _calls(self, addr: str, questions: Sequence[Request]) -> list[Command]:
        wire = self._wires.get(addr)
        try:
            if wire is not None:
                try:
                    return self._on(wire, addr, questions)
                except ConnectionLost:
                    log.debug("the connection to %s was closed while idle; connecting again", addr)
            wire = self._wires[addr] = BlockingConnection(addr, self._access.timeout_ms, self._credentials, self._tls)
            answers = self._on(wire, addr, questions)
        except (ConnectionLost, RequestTimeout):
            self._away[addr] = self._monotonic() + AWAY_S
            raise
        self._away.pop(addr, None)
        return answers

    def _on(self, wire: BlockingConnection, addr: str, questions: Sequence[Request]) -> list[Command]:
        """The answers on `wire`, which is closed and forgotten when one is missing."""
        try:
            return wire.calls(questions)
        except ArianeError:
            self._wires.pop(addr, None)
            wire.close()
            raise


def _pulled(answer: PullAnswer) -> PulledRecords:
    at = typed(answer.command, PullMessageAnswer)
    return PulledRecords(
        answer.command.code, answer.command.body, at.next_begin_offset, at.min_offset, at.max_offset,
        answer.from_master, answer.command.remark == REMOVING,
    )  # fmt: skip


_clusters: dict[PullAccess, BlockingCluster] = {}


def cluster(options: PullAccess) -> BlockingCluster:
    """The cluster of `options`, kept while this process lives."""
    key = access(options)
    found = _clusters.get(key)
    if found is None:
        found = _clusters[key] = BlockingCluster(key)
    return found
