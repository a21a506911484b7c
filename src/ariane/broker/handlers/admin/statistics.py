"""Statistics: lag of groups, offsets of topics, rates (202, 208, 303, 315, 317). [AdminBrokerProcessor]

The totals of the broker (28) are in `runtime_info`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.group_members import GroupMembers
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.pop_table import PopTable, QueueKey
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.broker.stats.stats_items import DAY, HOUR, MINUTE, StatsSnapshot
from ariane.clock import Clock
from ariane.errors import ReplyError
from ariane.model.topic import TopicConfig
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.net.shared_replies import SharedReplies
from ariane.protocol import fastjson
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.admin import TopicRef
from ariane.protocol.requests.clients import WireQueue
from ariane.protocol.requests.stats import (
    BrokerStatsData,
    BrokerStatsItem,
    GetBrokerConsumeStats,
    GetConsumeStats,
    GroupOffset,
    QueryConsumeTimeSpan,
    QueueTimeSpan,
    TopicOffset,
    ViewBrokerStats,
)
from ariane.store.message_store import MessageStore

UNKNOWN_MS = -1
SLICE = 100  # queues encoded without a pause: 2 ms


@dataclass(frozen=True, kw_only=True)
class StatisticsHandler:
    """Reports offsets, lags and rates.

    Identical requests that arrive while one is served share its reply.
    """

    config: BrokerConfig  # broker name of the queues in replies
    addr: str
    topics: TopicRegistry
    groups: GroupRegistry  # all groups, also those without offsets
    members: GroupMembers  # connected groups: their subscriptions limit the topics of a reply
    pop: PopTable  # messages of POP groups that are not acknowledged
    offsets: ConsumerOffsets  # a lag is the max offset minus the committed one
    store: MessageStore  # bounds of queues, store times
    stats: BrokerStats  # rates of the last minute, hour and day
    clock: Clock  # ages of messages
    # By request code: a large list of one code does not delay those of the others.
    _shared: defaultdict[int, SharedReplies] = field(default_factory=lambda: defaultdict(SharedReplies), init=False)

    def topic_stats(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle GET_TOPIC_STATS_INFO: offsets and last store time of each writable queue."""
        request = decode_header(command, TopicRef)
        return self._shared[command.code].get(request, lambda: self._topic_stats(request))

    def consume_stats(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle GET_CONSUME_STATS: the progress of a group, in one topic or in all topics that it has offsets of."""
        request = decode_header(command, GetConsumeStats)
        return self._shared[command.code].get(request, lambda: self._consume_stats(request))

    def all_consume_stats(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle GET_BROKER_CONSUME_STATS: the progress of every group, topic by topic."""
        request = decode_header(command, GetBrokerConsumeStats)
        return self._shared[command.code].get(request, lambda: self._all_consume_stats(request))

    def time_spans(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle QUERY_CONSUME_TIME_SPAN: store times of the first, last and last consumed message of each queue, and its delay."""
        request = decode_header(command, QueryConsumeTimeSpan)
        return self._shared[command.code].get(request, lambda: self._time_spans(request))

    def view(self, command: Command, peer: Peer) -> Reply:
        """Handle VIEW_BROKER_STATS_DATA: one statistic of the last minute, hour and day."""
        request = decode_header(command, ViewBrokerStats)
        name, key = request.stats_name, request.stats_key
        minute, hour, day = (self.stats.snapshot(name, key, window) for window in (MINUTE, HOUR, DAY))
        if minute is None or hour is None or day is None:
            return Reply(ResponseCode.SYSTEM_ERROR, remark=f"The stats <{name}> <{key}> not exist")
        return Reply(body=fastjson.write(BrokerStatsData(_item(day), _item(hour), _item(minute))))

    async def _topic_stats(self, request: TopicRef) -> Reply:
        name, store = request.topic, self.store

        def entry(queue_id: int) -> bytes:
            last = store.max_offset(name, queue_id)
            time_ms = (store.store_time(name, queue_id, last - 1) or 0) if last else 0
            return _entry(self._queue(name, queue_id), TopicOffset(time_ms, last, store.min_offset(name, queue_id)))

        entries = await _joined(map(entry, range(self._topic(name).write_queue_nums)))
        return Reply(body=b'{"offsetTable":{%b}}' % entries)

    async def _consume_stats(self, request: GetConsumeStats) -> Reply:
        group = request.consumer_group
        names = [request.topic] if request.topic else sorted(self.offsets.topics_of(group))
        topics = self._consumed(group, names)
        tps = sum((self._tps(group, topic.topic_name) for topic in topics), 0.0)
        entries = (
            _entry(queue, offset)
            for topic in topics
            for queue, offset in self._group_offsets(group, topic.topic_name, topic.read_queue_nums)
        )
        return Reply(body=_stats(tps, await _joined(entries)))

    async def _all_consume_stats(self, request: GetBrokerConsumeStats) -> Reply:
        topics = self.offsets.topics_by_group()
        total = 0

        def entries_of(group: str, topic: TopicConfig) -> Iterator[bytes]:
            nonlocal total
            for queue, offset in self._group_offsets(group, topic.topic_name, topic.write_queue_nums):
                total += offset.broker_offset - offset.consumer_offset
                yield _entry(queue, offset)

        groups = []
        for group in self.groups.table().subscription_group_table:
            stats = [
                _stats(self._tps(group, topic.topic_name), await _joined(entries_of(group, topic)))
                for topic in self._consumed(group, topics.get(group, ()))
                if topic.order or not request.is_order
            ]
            groups.append(b"{%b:[%b]}" % (fastjson.write(group), b",".join(stats)))
        head = b'{"brokerAddr":%b,"consumeStatsList":[' % fastjson.write(self.addr)
        return Reply(body=b'%b%b],"totalDiff":%d}' % (head, b",".join(groups), total))

    async def _time_spans(self, request: QueryConsumeTimeSpan) -> Reply:
        queues = range(self._topic(request.topic).write_queue_nums)
        spans = await _joined(fastjson.write(self._time_span(request, queue_id)) for queue_id in queues)
        return Reply(body=b'{"consumeTimeSpanSet":[%b]}' % spans)

    def _time_span(self, request: QueryConsumeTimeSpan, queue_id: int) -> QueueTimeSpan:
        topic = request.topic

        def stored(number: int) -> int:
            ms = self.store.store_time(topic, queue_id, number)
            return UNKNOWN_MS if ms is None else ms

        low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        offset = self.offsets.get(request.group, topic, queue_id) or 0
        first, last = stored(low), stored(high - 1)
        consumed = stored(offset - 1) if offset > 0 else first
        delay = 0
        if offset < high:
            next_ms = stored(max(offset, low))
            delay = UNKNOWN_MS if next_ms == UNKNOWN_MS else max(0, self.clock.now_ms() - next_ms)
        queue = self._queue(topic, queue_id)
        return QueueTimeSpan(consumed, _text(consumed), delay, last, _text(last), queue, first, _text(first))

    def _topic(self, name: str) -> TopicConfig:
        topic = self.topics.get(name)
        if topic is None:
            raise ReplyError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist on {self.config.broker_name}")
        return topic

    def _consumed(self, group: str, names: Iterable[str]) -> list[TopicConfig]:
        """Return the existing topics among `names`; only the subscribed ones if the group is online."""
        online = self.members.consumers.get(group)
        subscribed = online.subscriptions if online and online.subscriptions else None
        topics = (self.topics.get(name) for name in names if subscribed is None or name in subscribed)
        return [topic for topic in topics if topic is not None]

    def _group_offsets(self, group: str, topic: str, queues: int) -> Iterator[tuple[WireQueue, GroupOffset]]:
        store = self.store
        for queue_id in range(queues):
            consumed = max(0, self.offsets.get(group, topic, queue_id) or 0)
            time_ms = (store.store_time(topic, queue_id, consumed - 1) or 0) if consumed else 0
            popped = self.pop.get(QueueKey(group, topic, queue_id))
            in_flight = (None, None) if popped is None else (popped.next, len(popped.taken))
            last = store.max_offset(topic, queue_id)
            yield self._queue(topic, queue_id), GroupOffset(last, consumed, time_ms, *in_flight)

    def _tps(self, group: str, topic: str) -> float:
        snapshot = self.stats.snapshot("GROUP_GET_NUMS", f"{topic}@{group}", MINUTE)
        return snapshot.tps if snapshot else 0.0

    def _queue(self, topic: str, queue_id: int) -> WireQueue:
        return WireQueue(self.config.broker_name, queue_id, topic)


async def _joined(entries: Iterable[bytes]) -> bytes:
    """Return the entries joined by commas.

    Pauses after each slice to serve other requests: a topic may have 65,536 queues.
    """
    encoded = []
    for entry in entries:
        encoded.append(entry)
        if len(encoded) % SLICE == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    return b",".join(encoded)


def _entry(queue: WireQueue, value: msgspec.Struct) -> bytes:
    return b"%b:%b" % (fastjson.write(queue), fastjson.write(value))


def _stats(tps: float, entries: bytes) -> bytes:
    """Return ConsumeStats as Java encodes it."""
    return b'{"consumeTps":%b,"offsetTable":{%b}}' % (fastjson.write(tps), entries)


def _text(ms: int) -> str:
    local = datetime.fromtimestamp(ms / 1000)
    return f"{local:%Y-%m-%d#%H:%M:%S}:{ms % 1000:03d}"


def _item(snapshot: StatsSnapshot) -> BrokerStatsItem:
    return BrokerStatsItem(snapshot.avgpt, snapshot.sum, snapshot.tps)
