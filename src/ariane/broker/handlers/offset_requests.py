"""Offsets: of consumers (14, 15, 43) and of queues (29–32). [ConsumerManageProcessor]"""

from __future__ import annotations

import msgspec

from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import ReplyError
from ariane.model.topic import topic_name_fault
from ariane.net.connection import Handler, Peer, Reply
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import fields, typed
from ariane.protocol.requests.messaging import (
    OffsetAnswer,
    QueryConsumerOffset,
    QueueRef,
    SearchOffset,
    TimestampAnswer,
    UpdateConsumerOffset,
)
from ariane.store.message_store import GetStatus, MessageStore

UNKNOWN_TOPIC_QUEUES = 1_024  # whose offsets are stored for a topic that this broker does not have


def handlers(offsets: ConsumerOffsets, topics: TopicRegistry, store: MessageStore) -> dict[int, Handler]:
    def query(command: Command, peer: Peer) -> Reply:
        return query_consumer_offset(offsets, store, typed(command, QueryConsumerOffset))

    def update(command: Command, peer: Peer) -> Reply:
        return update_consumer_offset(offsets, topics, store, typed(command, UpdateConsumerOffset))

    def maximum(command: Command, peer: Peer) -> Reply:
        request = typed(command, QueueRef)
        return _offset(store.max_offset(request.topic, request.queue_id))

    def minimum(command: Command, peer: Peer) -> Reply:
        request = typed(command, QueueRef)
        return _offset(store.min_offset(request.topic, request.queue_id))

    def earliest(command: Command, peer: Peer) -> Reply:
        request = typed(command, QueueRef)
        earliest_ms = store.earliest_ms(request.topic, request.queue_id)
        return Reply(fields=fields(TimestampAnswer(-1 if earliest_ms is None else earliest_ms)))

    def search(command: Command, peer: Peer) -> Reply:
        request = typed(command, SearchOffset)
        return _offset(store.offset_by_time(request.topic, request.queue_id, request.timestamp))

    def everything(command: Command, peer: Peer) -> Reply:
        # Strict JSON, which Java reads as well as its own `{0:5}`, takes a fiftieth of the time to write and to read.
        return Reply(body=msgspec.json.encode(offsets.view()))

    return {
        RequestCode.QUERY_CONSUMER_OFFSET: query,
        RequestCode.UPDATE_CONSUMER_OFFSET: update,
        RequestCode.GET_ALL_CONSUMER_OFFSET: everything,
        RequestCode.GET_MAX_OFFSET: maximum,
        RequestCode.GET_MIN_OFFSET: minimum,
        RequestCode.GET_EARLIEST_MSG_STORETIME: earliest,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search,
    }


def query_consumer_offset(offsets: ConsumerOffsets, store: MessageStore, request: QueryConsumerOffset) -> Reply:
    """The committed offset. A group that committed none starts at 0 while the queue's first message is still recent."""
    group, topic, queue_id = request.consumer_group, request.topic, request.queue_id
    offset = offsets.get(group, topic, queue_id)
    if offset is not None:
        return _offset(offset)
    if store.min_offset(topic, queue_id) <= 0:
        first = store.get(topic, queue_id, 0, 1, None)
        if first.status != GetStatus.FOUND or not first.suggest_slave:
            return _offset(0)
    remark = f"Not found, {group} has committed no offset for {topic}@{queue_id}; maybe this group consumes first time"
    return Reply(ResponseCode.QUERY_NOT_FOUND, {}, remark)


def update_consumer_offset(
    offsets: ConsumerOffsets, topics: TopicRegistry, store: MessageStore, request: UpdateConsumerOffset
) -> Reply:
    """Commit an offset. Topics that do not exist yet are accepted, as in 4.9.4, if they could be created."""
    topic = topics.get(request.topic)
    if topic is None:
        if fault := topic_name_fault(request.topic):
            raise ReplyError(ResponseCode.SYSTEM_ERROR, fault)
        queues = UNKNOWN_TOPIC_QUEUES
    else:
        queues = max(topic.read_queue_nums, topic.write_queue_nums)
    # A topic may have had more queues: their offsets count again when it gets them back.
    if request.queue_id >= queues and offsets.get(request.consumer_group, request.topic, request.queue_id) is None:
        remark = f"queueId[{request.queue_id}] is illegal, {request.topic} has {queues} queues"
        raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
    if store.deletions.get(request.topic) is not None:
        # A consumer of the deleted topic may still commit: its offset would skip messages of the topic that was created again.
        end = store.max_offset(request.topic, request.queue_id)
        if request.commit_offset > end:
            remark = f"offset {request.commit_offset} is beyond the end {end} of {request.topic}-{request.queue_id}"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, f"{remark}: the topic was deleted")
    offsets.commit(request.consumer_group, request.topic, request.queue_id, request.commit_offset)
    return Reply(fields={})


def _offset(offset: int) -> Reply:
    return Reply(fields=fields(OffsetAnswer(offset)))
