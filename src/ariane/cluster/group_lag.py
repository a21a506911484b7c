"""Lag of consumer groups, bounds of topics and state of brokers, queried from all masters concurrently.

Brokers without a response are in `unavailable`, and totals without them are None: unknown is never zero.
[ConsumerProgressSubCommand, TopicStatusSubCommand, BrokerStatusSubCommand]
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from ariane.cluster.connection import BrokerUnavailable
from ariane.errors import ArianeError, ProtocolError, ReplyError, RouteNotFound
from ariane.net.connection_pool import ConnectionPool
from ariane.net.name_servers import NameServerClient
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.admin import TopicRef
from ariane.protocol.requests.messaging import QueryConsumerOffset
from ariane.protocol.requests.routing import KvTableBody
from ariane.protocol.requests.stats import ConsumeStats, GetConsumeStats, GroupOffset, TopicStats, by_queue

T = TypeVar("T")

STATS_TIMEOUT_MS = 15_000  # three times the default, as in Java's tools: the broker visits every queue
CONCURRENT_QUEUES = 64  # requests in flight to one broker for single queues
_TOTALS = ("msgPutTotalTodayNow", "msgPutTotalTodayMorning", "msgGetTotalTodayNow", "msgGetTotalTodayMorning")
_NEEDED = {"brokerVersionDesc", "bootTimestamp", *_TOTALS}


class QueueLag(NamedTuple):
    """One queue of a group.

    `consumer_offset` and `lag` are None if the group has committed no offset and would not start at 0. `consumed_ms` is the
    store time of the last consumed message; None without one, or if it was deleted.
    """

    topic: str
    broker: str
    queue_id: int
    broker_offset: int
    consumer_offset: int | None
    consumed_ms: int | None

    @property
    def lag(self) -> int | None:
        """Messages not consumed yet; None if unknown."""
        return None if self.consumer_offset is None else self.broker_offset - self.consumer_offset


class GroupLag(NamedTuple):
    """A consumer group, summed over all brokers."""

    group: str
    queues: tuple[QueueLag, ...]
    reported_tps: float
    unavailable: tuple[BrokerUnavailable, ...]

    @property
    def total(self) -> int | None:
        """Messages not consumed yet; None if a broker or queue is unknown, or no broker has the group."""
        lags = [queue.lag for queue in self.queues]
        return None if self.unavailable or not lags or None in lags else sum(lag for lag in lags if lag is not None)

    @property
    def consume_tps(self) -> float | None:
        """Messages consumed per second in the last minute; None if a broker did not respond."""
        return None if self.unavailable else self.reported_tps


class TopicQueueBounds(NamedTuple):
    """One queue of a topic. `stored_ms` is the store time of its last message; None if it is empty."""

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    stored_ms: int | None


class TopicBounds(NamedTuple):
    """A topic on all brokers that have it."""

    topic: str
    queues: tuple[TopicQueueBounds, ...]
    unavailable: tuple[BrokerUnavailable, ...]

    @property
    def messages(self) -> int | None:
        """Number of messages in its queues; None if a broker did not respond."""
        return None if self.unavailable else sum(queue.max_offset - queue.min_offset for queue in self.queues)


class BrokerRates(NamedTuple):
    """Rates per second over the last 10, 60 and 600 s; None if the broker has not run that long."""

    ten_s: float | None
    minute: float | None
    ten_min: float | None


class RuntimeInfo(NamedTuple):
    """Runtime state of a broker.

    Counts of today start at midnight of the broker's clock, or at its start. Latencies and `put_times` (bucket -> puts) cover
    the last complete minute; None without a put. `table` contains all values as texts.
    """

    addr: str
    version: str
    boot_ms: int
    put_today: int
    got_today: int
    put_tps: BrokerRates
    get_tps: BrokerRates
    put_latency_99_ms: float | None
    put_latency_999_ms: float | None
    put_times: dict[str, int] | None
    disk_ratio: float | None
    earliest_ms: int | None
    table: dict[str, str]


async def list_masters(peers: ConnectionPool, namesrv: str) -> tuple[dict[str, str], tuple[BrokerUnavailable, ...]]:
    """Return the master address of each broker name, and the brokers without a master.

    Raises:
        RouteNotFound: no broker is registered.
    """
    found, without = {}, []
    for name, broker in sorted((await NameServerClient(peers, [namesrv]).fetch_cluster()).broker_addr_table.items()):
        if broker.master:
            found[name] = broker.master
        else:
            without.append(BrokerUnavailable(name, "", "no master is registered"))
    if not found and not without:
        raise RouteNotFound("*", f"no broker is registered with {namesrv}")
    return found, tuple(without)


async def group_lag(peers: ConnectionPool, namesrv: str, group: str, topic: str | None = None) -> GroupLag:
    """Return the lag of a group in one topic, or in all topics for which it has offsets."""

    async def ask(broker: str, addr: str) -> tuple[float, list[QueueLag]]:
        header = GetConsumeStats(group, topic)
        answer = await peers.request_ok(addr, RequestCode.GET_CONSUME_STATS, header, timeout_ms=STATS_TIMEOUT_MS)
        stats = fastjson.decode(answer.body, ConsumeStats)
        limit = asyncio.Semaphore(CONCURRENT_QUEUES)
        queues = by_queue(stats.offset_table).items()
        offsets = await asyncio.gather(
            *(_committed(peers, addr, group, queue.topic, queue.queue_id, one, limit) for queue, one in queues)
        )
        return stats.consume_tps, [
            QueueLag(queue.topic, queue.broker, queue.queue_id, one.broker_offset, offset, _time(one.last_timestamp))
            for (queue, one), offset in zip(queues, offsets, strict=True)
        ]

    answers, unknown = await _of_masters(peers, namesrv, ask)
    queues = sorted(queue for _, found in answers for queue in found)
    return GroupLag(group, tuple(queues), sum(tps for tps, _ in answers), unknown)


async def _committed(
    peers: ConnectionPool,
    addr: str,
    group: str,
    topic: str,
    queue_id: int,
    offset: GroupOffset,
    limit: asyncio.Semaphore,
) -> int | None:
    """Return the committed offset of a group; None if it has committed none.

    Statistics report 0 for offsets that were never committed, too: an offset of 0 is therefore queried individually.
    """
    if offset.consumer_offset > 0 or offset.broker_offset == 0:
        return offset.consumer_offset
    async with limit:
        header = QueryConsumerOffset(group, topic, queue_id)
        answer = await peers.request(addr, RequestCode.QUERY_CONSUMER_OFFSET, header)
    return 0 if answer.code == ResponseCode.SUCCESS else None


async def topic_bounds(peers: ConnectionPool, namesrv: str, topic: str) -> TopicBounds:
    """Return the queues of a topic.

    Raises:
        RouteNotFound: all brokers responded that the topic does not exist.
    """

    async def ask(broker: str, addr: str) -> list[TopicQueueBounds] | None:
        code = RequestCode.GET_TOPIC_STATS_INFO
        answer = await peers.request(addr, code, TopicRef(topic), timeout_ms=STATS_TIMEOUT_MS)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return [
            TopicQueueBounds(
                queue.broker, queue.queue_id, one.min_offset, one.max_offset, _time(one.last_update_timestamp)
            )
            for queue, one in by_queue(fastjson.decode(_good(answer, addr).body, TopicStats).offset_table).items()
        ]

    answers, unknown = await _of_masters(peers, namesrv, ask)
    if not unknown and all(found is None for found in answers):
        raise RouteNotFound(topic, f"no broker registered with {namesrv} has it")
    return TopicBounds(topic, tuple(sorted(one for found in answers if found for one in found)), unknown)


async def broker_runtime(peers: ConnectionPool, addr: str) -> RuntimeInfo:
    """Return the runtime state of the broker at `addr`.

    Raises:
        ProtocolError: required values are missing.
    """
    answer = await peers.request_ok(addr, RequestCode.GET_BROKER_RUNTIME_INFO)
    table = fastjson.decode(answer.body, KvTableBody).table
    if missing := sorted(_NEEDED - table.keys()):
        raise ProtocolError(f"runtime info of {addr} lacks {', '.join(missing)}: expected a broker of RocketMQ 4 or 5")
    times = _put_times(table.get("putMessageDistributeTime", ""))
    latency_known = times is not None and sum(times.values()) > 0
    put_now, put_morning, got_now, got_morning = (int(table[key]) for key in _TOTALS)
    ratio, earliest = float(table.get("commitLogDiskRatio", -1)), int(table.get("earliestMessageTimeStamp", -1))
    return RuntimeInfo(
        addr=addr,
        version=table["brokerVersionDesc"],
        boot_ms=int(table["bootTimestamp"]),
        put_today=put_now - put_morning,
        got_today=got_now - got_morning,
        put_tps=_rates(table.get("putTps", "")),
        get_tps=_rates(table.get("getTransferedTps", "")),
        put_latency_99_ms=float(table["putLatency99"]) if latency_known and "putLatency99" in table else None,
        put_latency_999_ms=float(table["putLatency999"]) if latency_known and "putLatency999" in table else None,
        put_times=times,
        disk_ratio=ratio if ratio >= 0 else None,
        earliest_ms=earliest if earliest >= 0 else None,
        table=table,
    )


async def _of_masters(
    peers: ConnectionPool, namesrv: str, ask: Callable[[str, str], Awaitable[T]]
) -> tuple[list[T], tuple[BrokerUnavailable, ...]]:
    """Return the results of all masters, and the brokers without one."""
    brokers, without = await list_masters(peers, namesrv)
    answers = await asyncio.gather(*(ask(name, addr) for name, addr in brokers.items()), return_exceptions=True)
    good: list[T] = []
    silent = list(without)
    for (name, addr), answer in zip(brokers.items(), answers, strict=True):
        if isinstance(answer, ArianeError):
            silent.append(BrokerUnavailable(name, addr, str(answer)))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            good.append(answer)
    return good, tuple(silent)


def _good(answer: Command, addr: str) -> Command:
    if answer.code != ResponseCode.SUCCESS:
        raise ReplyError(answer.code, answer.remark, addr)
    return answer


def _time(ms: int) -> int | None:
    return ms if ms > 0 else None


def _rates(text: str) -> BrokerRates:
    """Parse `a b c`, where values that are not available yet are empty."""
    values = [float(part) if part else None for part in text.split(" ")][:3]
    values += [None] * (3 - len(values))
    return BrokerRates(*values)


def _put_times(text: str) -> dict[str, int] | None:
    """Parse `[<=0ms]:12 [0~10ms]:3 …`; None in the broker's first minute."""
    found = {label: int(count) for label, count in re.findall(r"\[([^\]]+)\]:(\d+)", text)}
    return found or None
