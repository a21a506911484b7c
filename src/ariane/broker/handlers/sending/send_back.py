"""CONSUMER_SEND_MSG_BACK (36): a message that a group failed to consume, stored for another attempt or as a dead letter.

    reconsumeTimes < maximum, delayLevel ≥ 0   %RETRY%group, a random queue, DELAY = delayLevel, or 3 + reconsumeTimes for 0
    otherwise                                  %DLQ%group, queue 0, DELAY = 0

The new record has the body, flags, tags, properties and birth of the old one, and one attempt more. RETRY_TOPIC (the original
topic) and ORIGIN_MESSAGE_ID (the offset id of the first record) name its origin.
[SendMessageProcessor.asyncConsumerSendMsgBack; reference: store-and-broker 4.2]
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ariane.broker.collaborators import Durability, ReturnedMessageStore
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.lifecycle.offset_waiters import OffsetWaiter
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import FlushFailed, ReplyError
from ariane.model import ids
from ariane.model import message as names
from ariane.model.topic import (
    PERM_WRITE,
    SubscriptionGroupConfig,
    TopicConfig,
    dlq_topic,
    group_name_fault,
    retry_topic,
)
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties, record
from ariane.protocol.records.record import Record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import ConsumerSendMsgBack
from ariane.store.message_store import MessageStore, RecordDraft

FIRST_DELAY_LEVEL = 3  # 10 s: of the first attempt if the client leaves the level to the broker
CLIENT_MAXIMUM_SINCE = 121  # version ordinal (V3_4_9) from which a client's maxReconsumeTimes counts


@dataclass(frozen=True, kw_only=True)
class SendBackHandler:
    """Stores messages that consumers send back."""

    settings: DynamicConfig  # permission of the broker
    topics: TopicRegistry  # creates the group's retry and dead-letter topics
    groups: GroupRegistry  # retry limit and queues of the group
    store: MessageStore  # where the returned record is read
    returned: ReturnedMessageStore  # where its successor is stored
    durability: Durability  # waits for the flush in synchronous mode

    def send_back(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle CONSUMER_SEND_MSG_BACK. The reply is as durable as that of a send."""
        request = decode_header(command, ConsumerSendMsgBack)
        group = self._group(request.group)
        config = self.settings.current
        if not config.broker_permission & PERM_WRITE:
            raise ReplyError(ResponseCode.NO_PERMISSION, f"the broker[{config.broker_name}] may not be written to")
        if group.retry_queue_nums <= 0:
            return Reply()  # the group is configured without retries: its failed messages are dropped
        data = self.store.read_record(request.offset)
        if data is None:
            raise ReplyError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {request.offset}")
        max_times = group.retry_max_times
        if command.version >= CLIENT_MAXIMUM_SINCE and request.max_reconsume_times is not None:
            max_times = request.max_reconsume_times
        result = self.returned.store_returned(self._draft(group, request, record.decode(data), max_times))
        self.returned.on_stored()
        flushed = self.durability.wait_flushed(result.offset + result.size)
        return Reply() if flushed is None else flushed.then(_flushed_reply)

    def _group(self, name: str) -> SubscriptionGroupConfig:
        if fault := group_name_fault(name):
            raise ReplyError(ResponseCode.SYSTEM_ERROR, fault)
        group = self.groups.get_or_create(name)
        if group is None:
            remark = f"subscription group not exist, {name}; create it, or set autoCreateSubscriptionGroup"
            raise ReplyError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return group

    def _draft(
        self, group: SubscriptionGroupConfig, request: ConsumerSendMsgBack, failed: Record, max_times: int
    ) -> RecordDraft:
        property_map = failed.property_map()
        # A later attempt already carries the origin of the first record.
        property_map.setdefault(names.RETRY_TOPIC, failed.topic)
        property_map.setdefault(names.ORIGIN_MESSAGE_ID, ids.offset_message_id(failed.store_host, failed.offset))
        property_map[names.WAIT] = "false"
        if failed.reconsume_times >= max_times or request.delay_level < 0:
            topic = _writable(self.topics.get_or_create_internal(dlq_topic(group.group_name), 1))
            queue_id, level = 0, 0
        else:
            topic = _writable(self.topics.get_or_create_internal(retry_topic(group.group_name), group.retry_queue_nums))
            queue_id = random.randrange(group.retry_queue_nums)  # noqa: S311 - spreads load, hides nothing
            level = request.delay_level or FIRST_DELAY_LEVEL + failed.reconsume_times
        property_map[names.DELAY] = str(level)
        return RecordDraft(
            topic=topic.topic_name,
            queue_id=queue_id,
            body=failed.body,
            properties=properties.join(property_map),
            tags=property_map.get(names.TAGS, ""),
            flag=failed.flag,
            sys_flag=failed.sys_flag,
            born_ms=failed.born_ms,
            born_host=failed.born_host,
            reconsume_times=failed.reconsume_times + 1,
        )


def _flushed_reply(flushed: OffsetWaiter[bool]) -> Reply:
    # The client forgets the message with this reply. A flush timeout counts as success: the record is stored, and after an
    # error the client would send it back a second time.
    try:
        flushed.result()
    except FlushFailed as error:
        return Reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
    return Reply()


def _writable(topic: TopicConfig) -> TopicConfig:
    if not topic.perm & PERM_WRITE:
        raise ReplyError(ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden")
    return topic
