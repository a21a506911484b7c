"""Offsets of consumers (14, 15, 43) and of queues (29–32). [ConsumerManageProcessor, AdminBrokerProcessor]"""

from __future__ import annotations

import msgspec

from ariane.broker.state.consumer_offsets import ConsumerOffsets, starts_first
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import ReplyError
from ariane.model.topic import topic_name_fault
from ariane.net.connection import Peer, Reply
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header, encode_header
from ariane.protocol.requests.messaging import (
    OffsetResponse,
    QueryConsumerOffset,
    QueueRef,
    SearchOffset,
    TimestampResponse,
    UpdateConsumerOffset,
)
from ariane.store.message_store import MessageStore

UNKNOWN_TOPIC_QUEUES = 1_024  # maximum number of queues with offsets of a topic that does not exist on this broker


class OffsetHandler:
    """Commits and returns offsets."""

    def __init__(self, *, offsets: ConsumerOffsets, topics: TopicRegistry, store: MessageStore) -> None:
        self._offsets = offsets
        self._topics = topics
        self._store = store

    # --- queues ---

    def max_offset(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_MAX_OFFSET: the offset of the next message."""
        request = decode_header(command, QueueRef)
        return _offset(self._store.max_offset(request.topic, request.queue_id))

    def min_offset(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_MIN_OFFSET: the offset of the oldest message."""
        request = decode_header(command, QueueRef)
        return _offset(self._store.min_offset(request.topic, request.queue_id))

    def earliest_time(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_EARLIEST_MSG_STORETIME: the store time of the oldest message in ms, -1 without one."""
        request = decode_header(command, QueueRef)
        earliest_ms = self._store.earliest_ms(request.topic, request.queue_id)
        return Reply(fields=encode_header(TimestampResponse(-1 if earliest_ms is None else earliest_ms)))

    def search_by_time(self, command: Command, peer: Peer) -> Reply:
        """Handle SEARCH_OFFSET_BY_TIMESTAMP."""
        request = decode_header(command, SearchOffset)
        return _offset(self._store.offset_by_time(request.topic, request.queue_id, request.timestamp))

    # --- consumers ---

    def all_consumer_offsets(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_ALL_CONSUMER_OFFSET, the request of a slave."""
        # Strict JSON, which Java reads as well as its own `{0:5}`, is encoded and decoded 50 times as fast.
        return Reply(body=msgspec.json.encode(self._offsets.view()))

    def query_consumer_offset(self, command: Command, peer: Peer) -> Reply:
        """Handle QUERY_CONSUMER_OFFSET: the committed offset.

        A group without one starts at 0 while the first message of the queue is still in memory, as in 4.9.4.
        """
        request = decode_header(command, QueryConsumerOffset)
        group, topic, queue_id = request.consumer_group, request.topic, request.queue_id
        offset = self._offsets.get(group, topic, queue_id)
        if offset is not None:
            return _offset(offset)
        if starts_first(self._store, topic, queue_id):
            return _offset(0)
        remark = (
            f"Not found, {group} has committed no offset for {topic}@{queue_id}; maybe this group consumes first time"
        )
        return Reply(ResponseCode.QUERY_NOT_FOUND, {}, remark)

    def update_consumer_offset(self, command: Command, peer: Peer) -> Reply:
        """Handle UPDATE_CONSUMER_OFFSET: commit an offset.

        As in 4.9.4, a topic that does not exist yet is accepted if its name is valid.
        """
        request = decode_header(command, UpdateConsumerOffset)
        topic = self._topics.get(request.topic)
        if topic is None:
            if fault := topic_name_fault(request.topic):
                raise ReplyError(ResponseCode.SYSTEM_ERROR, fault)
            queues = UNKNOWN_TOPIC_QUEUES
        else:
            queues = max(topic.read_queue_nums, topic.write_queue_nums)
        # The topic may have had more queues before; their offsets count again once it gets them back.
        if (
            request.queue_id >= queues
            and self._offsets.get(request.consumer_group, request.topic, request.queue_id) is None
        ):
            remark = f"queueId[{request.queue_id}] is illegal, {request.topic} has {queues} queues"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        if self._store.deletions.get(request.topic) is not None:
            # A consumer of the deleted topic may still commit; its offset would skip messages of the recreated topic.
            end = self._store.max_offset(request.topic, request.queue_id)
            if request.commit_offset > end:
                remark = f"offset {request.commit_offset} is beyond the end {end} of {request.topic}-{request.queue_id}"
                raise ReplyError(ResponseCode.SYSTEM_ERROR, f"{remark}: the topic was deleted")
        group, topic_name, queue_id, offset = (
            request.consumer_group, request.topic, request.queue_id, request.commit_offset,
        )  # fmt: skip
        if not self._offsets.commit_consumed(group, topic_name, queue_id, offset):
            end = self._store.max_offset(topic_name, queue_id)
            remark = f"offset {offset} is beyond the end {end} of {topic_name}-{queue_id}: it would skip messages"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        return Reply(fields={})


def _offset(offset: int) -> Reply:
    return Reply(fields=encode_header(OffsetResponse(offset)))
