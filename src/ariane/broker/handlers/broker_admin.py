"""A broker seen as a whole, and kept clean (45, 300, 301, 305, 306, 308, 314, 316, 321, 328). [AdminBrokerProcessor]"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from ariane.broker.dynamic_config import DynamicConfig
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.filter_servers import FilterServers
from ariane.broker.state.group_members import GroupMembers
from ariane.broker.state.topic_registry import TopicRegistry, protected_topics
from ariane.broker.topic_deletion import TopicRemover
from ariane.errors import ReplyError
from ariane.filter import tags
from ariane.model import host
from ariane.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC, group_name_fault, is_system_topic
from ariane.net.connection import Handler, Peer, Reply
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import fields, typed
from ariane.protocol.requests.admin import DelayOffsetTable, TopicRef
from ariane.protocol.requests.brokers import (
    CloneOffsets,
    Corrections,
    FilterServer,
    FilterServerAnswer,
    GroupList,
    ProducerInfo,
    ProducerTable,
    QueryCorrection,
    QueryQueue,
    QueueEntries,
    QueueEntry,
)
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.messaging import TAG
from ariane.protocol.requests.routing import TopicList
from ariane.store.consume_queue import LMQ_PREFIX
from ariane.store.message_store import MessageStore

log = logging.getLogger("ariane.broker")

NUMBERED_ELSEWHERE = (SCHEDULE_TOPIC, TIMER_TOPIC)  # what is due is found by numbers that are kept beside the queues
ENTRIES_MAX = 4_096  # of one answer to 321: under 1 MiB of JSON
BEHIND = 2**63 - 1  # what 308 says of a queue in which the compared group is behind the others


class BrokerAdminHandler(NamedTuple):
    """What these handlers need. `delay_offsets` gives the offsets of the delay levels."""

    settings: DynamicConfig
    topics: TopicRegistry
    members: GroupMembers
    offsets: ConsumerOffsets
    store: MessageStore
    remover: TopicRemover
    filter_servers: FilterServers
    delay_offsets: Callable[[], DelayOffsetTable]
    now_ms: Callable[[], int]
    monotonic_ms: Callable[[], float]


def handlers(parts: BrokerAdminHandler) -> dict[int, Handler]:
    def consumed_by(command: Command, peer: Peer) -> Reply:
        topic = typed(command, TopicRef).topic
        groups = parts.members.groups_of(topic) | parts.offsets.groups_of(topic)
        return Reply(body=fastjson.write(GroupList(tuple(sorted(groups)))))

    def system_topics(command: Command, peer: Peer) -> Reply:
        return Reply(body=fastjson.write(TopicList(None, tuple(sorted(protected_topics(parts.settings.current))))))

    def delay_offsets(command: Command, peer: Peer) -> Reply:
        return Reply(body=fastjson.write(parts.delay_offsets()))

    def filter_server(command: Command, peer: Peer) -> Reply:
        addr = typed(command, FilterServer).filter_server_addr
        host.parse(addr)
        parts.filter_servers.register(peer.id, addr, parts.monotonic_ms())
        config = parts.settings.current
        return Reply(fields=fields(FilterServerAnswer(config.broker_name, config.broker_id)))

    return {
        RequestCode.GET_ALL_DELAY_OFFSET: delay_offsets,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: consumed_by,
        RequestCode.REGISTER_FILTER_SERVER: filter_server,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: system_topics,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: lambda command, peer: clean_expired_queues(parts),
        RequestCode.QUERY_CORRECTION_OFFSET: lambda command, peer: correction(parts, typed(command, QueryCorrection)),
        RequestCode.CLONE_GROUP_OFFSET: lambda command, peer: clone_offsets(parts, typed(command, CloneOffsets)),
        RequestCode.CLEAN_UNUSED_TOPIC: lambda command, peer: clean_unused_topics(parts),
        RequestCode.QUERY_CONSUME_QUEUE: lambda command, peer: query_queue(parts, typed(command, QueryQueue)),
        RequestCode.GET_ALL_PRODUCER_INFO: lambda command, peer: producers(parts),
    }


def clone_offsets(parts: BrokerAdminHandler, request: CloneOffsets) -> Reply:
    """Give one group the offsets of another: of a topic, or of all topics that the other has consumed. Topics that are gone
    are left out, and, unless `offline`, those that the other group is online for and does not subscribe to."""
    if fault := group_name_fault(request.dest_group):
        raise ReplyError(ResponseCode.SYSTEM_ERROR, fault)
    topics = [request.topic] if request.topic else sorted(parts.offsets.topics_of(request.src_group))
    online = parts.members.consumers.get(request.src_group)
    cloned = []
    for topic in topics:
        if parts.topics.get(topic) is None:
            continue
        if not request.offline and online is not None and topic not in online.subscriptions:
            continue
        if parts.offsets.clone(request.src_group, request.dest_group, topic):
            cloned.append(topic)
    if cloned:
        log.info("offsets of %s given to %s: %s", request.src_group, request.dest_group, ", ".join(cloned))
        return Reply()
    return Reply(remark=f"nothing to clone: {request.src_group} has no offsets of {request.topic or 'any topic'} here")


def correction(parts: BrokerAdminHandler, request: QueryCorrection) -> Reply:
    """How far the slowest group has come in each queue of a topic; BEHIND where the compared group is slower still. The
    groups to filter out are left out of the count (4.9.4 deletes their offsets)."""
    left_out = set(filter(None, (request.filter_groups or "").split(",")))
    slowest: dict[int, int] = {}
    for group in sorted(parts.offsets.groups_of(request.topic) - left_out):
        for queue_id, offset in parts.offsets.queue_offsets(group, request.topic).items():
            if offset >= parts.store.min_offset(request.topic, queue_id):
                slowest[queue_id] = min(offset, slowest.get(queue_id, offset))
    for queue_id, offset in parts.offsets.queue_offsets(request.compare_group, request.topic).items():
        least = slowest.get(queue_id, 0)
        slowest[queue_id] = BEHIND if least > offset else least
    return Reply(body=fastjson.write(Corrections(slowest)))


def query_queue(parts: BrokerAdminHandler, request: QueryQueue) -> Reply:
    """Entries of a consume queue as they stand there, and what the filter of a group makes of them (no group: false)."""
    topic, queue_id = request.topic, request.queue_id
    if not 0 <= request.count <= ENTRIES_MAX:
        raise ReplyError(
            ResponseCode.SYSTEM_ERROR, f"count {request.count}: ask for 0 to {ENTRIES_MAX} entries at once"
        )
    if not parts.store.has_queue(topic, queue_id):
        raise ReplyError(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist: the queue holds no message")
    low, high = parts.store.min_offset(topic, queue_id), parts.store.max_offset(topic, queue_id)
    group = request.consumer_group
    wanted = parts.members.subscription(group, topic) if group else None
    filter_data = None
    if group:
        filter_data = "null" if wanted else f"{group}@{topic} is not online!"
    body = QueueEntries(filter_data, high, low, (), wanted)
    if not low <= request.index < high:
        return Reply(body=fastjson.write(body), remark=f"Index {request.index} is out of range, {low} to {high - 1}")
    entries = parts.store.entries(topic, queue_id, request.index, request.count)
    codes = _codes(wanted)
    data = tuple(
        QueueEntry(
            eval=wanted is not None and (codes is None or code in codes),
            physic_offset=offset,
            physic_size=size,
            tags_code=code,
        )
        for offset, size, code in entries
    )
    return Reply(body=fastjson.write(QueueEntries(filter_data, high, low, data, wanted)))


def _codes(wanted: SubscriptionData | None) -> frozenset[int] | None:
    """The tag hashes that pass; None when all do (SQL92 is decided by the message, not by its entry)."""
    if wanted is None or wanted.expression_type not in (None, "", TAG) or wanted.sub_string in (None, "", tags.ALL):
        return None
    return wanted.code_set


def producers(parts: BrokerAdminHandler) -> Reply:
    now_ms, monotonic_ms = parts.now_ms(), parts.monotonic_ms()
    table = {
        group: tuple(
            ProducerInfo(
                one.client_id, one.language, now_ms - int(monotonic_ms - one.seen_ms), f"/{one.addr}", one.version
            )
            for one in members.values()
        )
        for group, members in parts.members.producers.items()
    }
    return Reply(body=fastjson.write(ProducerTable(table)))


async def clean_unused_topics(parts: BrokerAdminHandler) -> Reply:
    """Delete what is stored of topics that this broker no longer has."""
    for topic in parts.store.topics():
        if parts.topics.get(topic) is None and not is_system_topic(topic) and not topic.startswith(LMQ_PREFIX):
            log.warning("topic %s is not known here any more: its messages are deleted", topic)
            parts.remover.remove(topic)
        await asyncio.sleep(0)  # each removal waits for the disk: others get their turn between two
    return Reply()


async def clean_expired_queues(parts: BrokerAdminHandler) -> Reply:
    """Remove consume queues whose messages are all gone from the commit log."""
    for topic in parts.store.topics():
        if topic in NUMBERED_ELSEWHERE or topic.startswith(LMQ_PREFIX):
            continue
        for queue_id in parts.store.delete_topic(topic, expired_only=True):
            log.warning("queue %d of topic %s has no message left in the log: removed", queue_id, topic)
        await asyncio.sleep(0)
    return Reply()
