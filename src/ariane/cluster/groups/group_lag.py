"""Lag of consumer groups, queried from all masters and slaves concurrently. `lag` has its definition.

Brokers without a response are in `unavailable`, and totals without them are None: unknown is never zero. Java's tools report a
rate of 0 while a slave serves the reads, and cut its decimals off. [ConsumerProgressSubCommand]
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import NamedTuple

from ariane.cluster.connection import BrokerServer, BrokerUnavailable, ClusterConnection, masterless_brokers
from ariane.cluster.lag import LagSum, has_unknown_start, is_consumed_topic, oldest_age_ms, queue_lag, sum_lags
from ariane.errors import ReplyError
from ariane.model.message import MessageQueue
from ariane.model.topic import retry_topic
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.admin import ConsumerConnection
from ariane.protocol.requests.clients import BROADCASTING, GroupRef
from ariane.protocol.requests.messaging import OffsetResponse, QueryConsumerOffset
from ariane.protocol.requests.stats import (
    ConsumeStats,
    ConsumeTimeSpans,
    GetConsumeStats,
    GroupOffset,
    QueryConsumeTimeSpan,
    QueueTimeSpan,
    by_queue,
)

CONCURRENT_QUEUES = 64  # requests in flight to one broker for single queues


class QueueLag(NamedTuple):
    """One queue of a group.

    `consumer_offset` and `lag` are None if the group has committed no offset and would not start at 0. `consumed_ms` is the
    store time of the last consumed message; None without one, or if it was deleted. `in_flight`: messages that were delivered
    by POP and not acknowledged; None of queues that are pulled.
    """

    topic: str  # the group's retry topic is one of its topics, too
    broker: str
    queue_id: int  # unique within topic and broker
    broker_offset: int  # offset after the last message of the queue
    consumer_offset: int | None
    consumed_ms: int | None
    in_flight: int | None = None

    @property
    def ready(self) -> int | None:
        """Messages that can be delivered; None if unknown."""
        return None if self.lag is None or self.in_flight is None else max(0, self.lag - self.in_flight)

    @property
    def lag(self) -> int | None:
        """Messages not consumed yet; None if unknown."""
        return queue_lag(self.consumer_offset, self.broker_offset)

    @property
    def queue(self) -> MessageQueue:
        """The queue without offsets."""
        return MessageQueue(self.topic, self.broker, self.queue_id)


class GroupLag(NamedTuple):
    """A consumer group, summed over all brokers.

    Attributes:
        group: Its name.
        queues: Queues of the topics that it consumes (`is_consumed_topic`), sorted.
        consume_tps: Messages delivered per second in the last minute, summed over masters and slaves; None if one of them did
            not respond.
        is_complete: Whether every broker has a master that responded.
        unavailable: Servers that did not respond, and brokers without a master.
    """

    group: str
    queues: tuple[QueueLag, ...]
    consume_tps: float | None
    is_complete: bool
    unavailable: tuple[BrokerUnavailable, ...]

    @property
    def total(self) -> int | None:
        """Messages not consumed yet; None if a broker or queue is unknown, or no broker has the group."""
        return self.lag.total

    @property
    def in_flight(self) -> int | None:
        """Messages that were delivered by POP and not acknowledged; None if no queue is consumed by POP."""
        counts = [queue.in_flight for queue in self.queues if queue.in_flight is not None]
        return sum(counts) if counts else None

    @property
    def lag(self) -> LagSum:
        """Messages not consumed yet, with a lower bound if a broker or queue is unknown."""
        return sum_lags((queue.lag for queue in self.queues), is_partial=not self.is_complete)


class Subscriptions(NamedTuple):
    """What the connected clients of a group declared; the default: it is offline.

    Attributes:
        topics: Topics that they subscribe to.
        is_broadcasting: Whether each client receives every message, and stores its offsets itself.
    """

    topics: Collection[str] = frozenset()
    is_broadcasting: bool = False


class UnconsumedAges(NamedTuple):
    """How long the next message of each queue has been waiting, in ms by the broker's clock; None if the message was deleted."""

    by_queue: dict[MessageQueue, int | None]
    unavailable: tuple[BrokerUnavailable, ...]


def total_of(queues: Iterable[QueueLag]) -> int | None:
    """Return the messages not consumed yet in all queues; None if one is unknown, or without queues."""
    return sum_lags(queue.lag for queue in queues).total


class GroupLagOperations(ClusterConnection):
    """Lag of consumer groups."""

    async def group_lag(
        self,
        group: str,
        topic: str | None = None,
        *,
        cluster: str | None = None,
        subscriptions: Subscriptions | None = None,
    ) -> GroupLag:
        """Return the lag of a group in one topic, or in all topics that it consumes.

        Messages that a slave delivered are counted by the slave: the rate is the sum over all servers, the offsets are those of
        the masters.

        Args:
            group: Consumer group. An unknown one has no queues.
            topic: Only this topic.
            cluster: Only brokers of this cluster.
            subscriptions: Those of its clients; None: ask the masters.

        Raises:
            NotFound: no such cluster is registered.
            ServerUnavailable: no broker is registered.
        """
        servers = await self.select_brokers(cluster=cluster, with_slaves=True)

        async def ask(server: BrokerServer) -> tuple[float, list[QueueLag]]:
            if not server.is_master:  # clients register with masters
                return (await self._consume_stats(server, group, topic)).consume_tps, []
            first, declared = await asyncio.gather(
                self._consume_stats(server, group, topic), self._subscriptions(server, group, subscriptions)
            )
            stats = [first] if topic is not None else [first, *await self._other_topics(server, group, first, declared)]
            lags = [
                await self._queue_lags(server, group, topic_stats, declared.is_broadcasting) for topic_stats in stats
            ]
            return sum(topic_stats.consume_tps for topic_stats in stats), [queue for queues in lags for queue in queues]

        answers = await self.ask_all(servers, ask)
        responding = {server for server, _ in answers.values}
        masterless = masterless_brokers(servers)
        return GroupLag(
            group,
            tuple(sorted(queue for _, (_, queues) in answers.values for queue in queues)),
            None if answers.unavailable or masterless else sum(tps for _, (tps, _) in answers.values),
            not masterless and all(server in responding for server in servers if server.is_master),
            (*masterless, *answers.unavailable),
        )

    async def unconsumed_ages(self, lag: GroupLag) -> UnconsumedAges:
        """Return the age of the first message that a group has not consumed, for each queue with a lag.

        The brokers compare their own clock with the store time of the message.
        """
        lagging = [queue for queue in lag.queues if queue.lag]
        topics: dict[str, list[str]] = {}  # broker name -> topics
        for queue in lagging:
            if queue.topic not in topics.setdefault(queue.broker, []):
                topics[queue.broker].append(queue.topic)
        servers = [server for server in await self.select_brokers() if server.broker in topics] if topics else []

        async def ask(server: BrokerServer) -> list[QueueTimeSpan]:
            spans: list[QueueTimeSpan] = []
            for topic in topics[server.broker]:
                header = QueryConsumeTimeSpan(topic, lag.group)
                answer = await self.request(server.addr, RequestCode.QUERY_CONSUME_TIME_SPAN, header, is_slow=True)
                spans += fastjson.decode(answer.body, ConsumeTimeSpans).consume_time_span_set
            return spans

        answers = await self.ask_all(servers, ask)
        ages = {span.message_queue.queue(): oldest_age_ms(span) for _, spans in answers.values for span in spans}
        return UnconsumedAges({queue.queue: ages.get(queue.queue) for queue in lagging}, answers.unavailable)

    async def _consume_stats(self, server: BrokerServer, group: str, topic: str | None) -> ConsumeStats:
        """Return the statistics of a topic; None: of all topics with committed offsets."""
        header = GetConsumeStats(group, topic)
        answer = await self.request(server.addr, RequestCode.GET_CONSUME_STATS, header, is_slow=True)
        return fastjson.decode(answer.body, ConsumeStats)

    async def _other_topics(
        self, server: BrokerServer, group: str, committed: ConsumeStats, declared: Subscriptions
    ) -> list[ConsumeStats]:
        """Return the statistics of the topics without a committed offset that a group consumes."""
        committed_topics = {queue.topic for queue in by_queue(committed.offset_table)}
        candidates = sorted({*declared.topics, retry_topic(group)} - committed_topics)
        names = [name for name in candidates if is_consumed_topic(name, group, declared.topics, has_offsets=False)]
        others = await asyncio.gather(*(self._consume_stats(server, group, name) for name in names))
        # Without a message and without an offset, a topic has nothing to show; Java's tools do not list it either.
        return [stats for stats in others if any(queue.broker_offset for queue in stats.offset_table.values())]

    async def _subscriptions(
        self, server: BrokerServer, group: str, subscriptions: Subscriptions | None
    ) -> Subscriptions:
        if subscriptions is not None:
            return subscriptions
        try:
            answer = await self.request(server.addr, RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupRef(group))
        except ReplyError:
            return Subscriptions()  # offline, or not permitted: the topics with committed offsets remain
        declared = fastjson.decode(answer.body, ConsumerConnection)
        return Subscriptions(frozenset(declared.subscription_table), declared.message_model in BROADCASTING)

    async def _queue_lags(
        self, server: BrokerServer, group: str, stats: ConsumeStats, is_broadcasting: bool
    ) -> list[QueueLag]:
        limit = asyncio.Semaphore(CONCURRENT_QUEUES)
        queues = by_queue(stats.offset_table)

        async def committed(queue: MessageQueue, offset: GroupOffset) -> int | None:
            # Statistics report 0 for offsets that were never committed, too: an offset of 0 is queried individually.
            if not has_unknown_start(offset.consumer_offset or None, 0, offset.broker_offset):
                return offset.consumer_offset
            if is_broadcasting:
                return None
            async with limit:
                return await self.committed_offset(server.addr, group, queue)

        offsets = await asyncio.gather(*(committed(queue, offset) for queue, offset in queues.items()))
        return [
            QueueLag(*_names(queue), entry.broker_offset, offset, _time(entry.last_timestamp), entry.in_flight)
            for (queue, entry), offset in zip(queues.items(), offsets, strict=True)
        ]

    async def committed_offset(self, addr: str, group: str, queue: MessageQueue) -> int | None:
        """Return the offset at which a group continues in a queue; None if it has committed none and would not start at 0.

        Raises:
            ReplyError: the broker rejected the request.
        """
        header = QueryConsumerOffset(group, queue.topic, queue.queue_id)
        answer = await self.peers.request(addr, RequestCode.QUERY_CONSUMER_OFFSET, header, timeout_ms=self.timeout_ms)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise ReplyError(answer.code, answer.remark, addr)
        return decode_header(answer, OffsetResponse).offset


def _names(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker, queue.queue_id


def _time(ms: int) -> int | None:
    return ms if ms > 0 else None
