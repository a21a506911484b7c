"""Statistics asked for: lag of groups, offsets of topics, rates (202, 208, 303, 315, 317). [AdminBrokerProcessor]

28, what the broker says of itself as a whole, is in `runtime`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import datetime
from typing import NamedTuple, TypeVar

import msgspec

from ariane.broker.config import BrokerConfig
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.group_members import GroupMembers
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.broker.stats.stats_items import DAY, HOUR, MINUTE, StatsSnapshot
from ariane.errors import ReplyError
from ariane.model.topic import TopicConfig
from ariane.net.connection import Handled, Handler, Peer, Reply
from ariane.net.shared_replies import SharedReplies
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import typed
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

Request = TypeVar("Request", bound=msgspec.Struct)

UNKNOWN_MS = -1
SLICE = 100  # queues: 2 ms


class StatisticsHandler(NamedTuple):
    """What these handlers need. `addr` is where this broker serves."""

    config: BrokerConfig
    addr: str
    topics: TopicRegistry
    groups: GroupRegistry
    members: GroupMembers
    offsets: ConsumerOffsets
    store: MessageStore
    stats: BrokerStats
    now_ms: Callable[[], int]


def handlers(parts: StatisticsHandler) -> dict[int, Handler]:
    def shared(kind: type[Request], serve: Callable[[StatisticsHandler, Request], Awaitable[Reply]]) -> Handler:
        replies = SharedReplies()

        def handler(command: Command, peer: Peer) -> Handled:
            request = typed(command, kind)
            return replies.get(request, lambda: serve(parts, request))

        return handler

    return {
        RequestCode.GET_TOPIC_STATS_INFO: shared(TopicRef, topic_stats),
        RequestCode.GET_CONSUME_STATS: shared(GetConsumeStats, consume_stats),
        RequestCode.GET_BROKER_CONSUME_STATS: shared(GetBrokerConsumeStats, all_consume_stats),
        RequestCode.QUERY_CONSUME_TIME_SPAN: shared(QueryConsumeTimeSpan, time_spans),
        RequestCode.VIEW_BROKER_STATS_DATA: lambda command, peer: view(parts, typed(command, ViewBrokerStats)),
    }


async def topic_stats(parts: StatisticsHandler, request: TopicRef) -> Reply:
    """The ends of every queue that can be written to."""
    name, store = request.topic, parts.store

    def ends(queue_id: int) -> bytes:
        last = store.max_offset(name, queue_id)
        time_ms = (store.store_time(name, queue_id, last - 1) or 0) if last else 0
        return _entry(_queue(parts, name, queue_id), TopicOffset(time_ms, last, store.min_offset(name, queue_id)))

    entries = await _joined(map(ends, range(_topic(parts, name).write_queue_nums)))
    return Reply(body=b'{"offsetTable":{%b}}' % entries)


async def consume_stats(parts: StatisticsHandler, request: GetConsumeStats) -> Reply:
    """How far a group has come, in one topic or in all that it has offsets of."""
    group = request.consumer_group
    names = [request.topic] if request.topic else sorted(parts.offsets.topics_of(group))
    topics = _consumed(parts, group, names)
    tps = sum((_tps(parts, group, topic.topic_name) for topic in topics), 0.0)
    entries = (
        _entry(queue, offset)
        for topic in topics
        for queue, offset in _offsets(parts, group, topic.topic_name, topic.read_queue_nums)
    )
    return Reply(body=_stats(tps, await _joined(entries)))


async def all_consume_stats(parts: StatisticsHandler, request: GetBrokerConsumeStats) -> Reply:
    """The same for every group of this broker, topic by topic."""
    topics = parts.offsets.topics_by_group()
    total = 0

    def counted(group: str, topic: TopicConfig) -> Iterator[bytes]:
        nonlocal total
        for queue, offset in _offsets(parts, group, topic.topic_name, topic.write_queue_nums):
            total += offset.broker_offset - offset.consumer_offset
            yield _entry(queue, offset)

    groups = []
    for group in parts.groups.table().subscription_group_table:
        stats = [
            _stats(_tps(parts, group, topic.topic_name), await _joined(counted(group, topic)))
            for topic in _consumed(parts, group, topics.get(group, ()))
            if topic.order or not request.is_order
        ]
        groups.append(b"{%b:[%b]}" % (fastjson.write(group), b",".join(stats)))
    head = b'{"brokerAddr":%b,"consumeStatsList":[' % fastjson.write(parts.addr)
    return Reply(body=b'%b%b],"totalDiff":%d}' % (head, b",".join(groups), total))


def view(parts: StatisticsHandler, request: ViewBrokerStats) -> Reply:
    """One statistic: the last minute, hour and day."""
    name, key = request.stats_name, request.stats_key
    minute, hour, day = (parts.stats.snapshot(name, key, window) for window in (MINUTE, HOUR, DAY))
    if minute is None or hour is None or day is None:
        return Reply(ResponseCode.SYSTEM_ERROR, remark=f"The stats <{name}> <{key}> not exist")
    return Reply(body=fastjson.write(BrokerStatsData(_item(day), _item(hour), _item(minute))))


async def time_spans(parts: StatisticsHandler, request: QueryConsumeTimeSpan) -> Reply:
    """Store times of each queue: first message, last one, last one consumed; and for how long the next one has waited."""
    queues = range(_topic(parts, request.topic).write_queue_nums)
    spans = await _joined(fastjson.write(_time_span(parts, request, queue_id)) for queue_id in queues)
    return Reply(body=b'{"consumeTimeSpanSet":[%b]}' % spans)


async def _joined(entries: Iterable[bytes]) -> bytes:
    """Return the entries of a list or table. Others are served between slices of them: a topic may have 65,536 queues."""
    made = []
    for entry in entries:
        made.append(entry)
        if len(made) % SLICE == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    return b",".join(made)


def _entry(queue: WireQueue, value: msgspec.Struct) -> bytes:
    return b"%b:%b" % (fastjson.write(queue), fastjson.write(value))


def _stats(tps: float, entries: bytes) -> bytes:
    """ConsumeStats as Java prints it."""
    return b'{"consumeTps":%b,"offsetTable":{%b}}' % (fastjson.write(tps), entries)


def _time_span(parts: StatisticsHandler, request: QueryConsumeTimeSpan, queue_id: int) -> QueueTimeSpan:
    topic = request.topic

    def stored(number: int) -> int:
        ms = parts.store.store_time(topic, queue_id, number)
        return UNKNOWN_MS if ms is None else ms

    low, high = parts.store.min_offset(topic, queue_id), parts.store.max_offset(topic, queue_id)
    offset = parts.offsets.get(request.group, topic, queue_id) or 0
    first, last = stored(low), stored(high - 1)
    consumed = stored(offset - 1) if offset > 0 else first
    delay = 0
    if offset < high:
        waiting = stored(max(offset, low))
        delay = UNKNOWN_MS if waiting == UNKNOWN_MS else max(0, parts.now_ms() - waiting)
    queue = _queue(parts, topic, queue_id)
    return QueueTimeSpan(consumed, _text(consumed), delay, last, _text(last), queue, first, _text(first))


def _text(ms: int) -> str:
    local = datetime.fromtimestamp(ms / 1000)
    return f"{local:%Y-%m-%d#%H:%M:%S}:{ms % 1000:03d}"


def _topic(parts: StatisticsHandler, name: str) -> TopicConfig:
    topic = parts.topics.get(name)
    if topic is None:
        raise ReplyError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist on {parts.config.broker_name}")
    return topic


def _consumed(parts: StatisticsHandler, group: str, names: Iterable[str]) -> list[TopicConfig]:
    """Those topics that are there and, when the group is online, that it subscribes to."""
    online = parts.members.consumers.get(group)
    wanted = online.subscriptions if online and online.subscriptions else None
    topics = (parts.topics.get(name) for name in names if wanted is None or name in wanted)
    return [topic for topic in topics if topic is not None]


def _offsets(parts: StatisticsHandler, group: str, topic: str, queues: int) -> Iterator[tuple[WireQueue, GroupOffset]]:
    store = parts.store
    for queue_id in range(queues):
        consumed = max(0, parts.offsets.get(group, topic, queue_id) or 0)
        time_ms = (store.store_time(topic, queue_id, consumed - 1) or 0) if consumed else 0
        yield _queue(parts, topic, queue_id), GroupOffset(store.max_offset(topic, queue_id), consumed, time_ms)


def _tps(parts: StatisticsHandler, group: str, topic: str) -> float:
    held = parts.stats.snapshot("GROUP_GET_NUMS", f"{topic}@{group}", MINUTE)
    return held.tps if held else 0.0


def _queue(parts: StatisticsHandler, topic: str, queue_id: int) -> WireQueue:
    return WireQueue(parts.config.broker_name, queue_id, topic)


def _item(held: StatsSnapshot) -> BrokerStatsItem:
    return BrokerStatsItem(held.avgpt, held.sum, held.tps)
