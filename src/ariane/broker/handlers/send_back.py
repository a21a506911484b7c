"""CONSUMER_SEND_MSG_BACK (36): a message that a group failed on, stored for another attempt or as a dead letter.

    reconsumeTimes < most, delayLevel ≥ 0   %RETRY%group, a queue by chance, DELAY = delayLevel, or 3 + reconsumeTimes for 0
    else                                    %DLQ%group, queue 0, DELAY = 0

The new record has the body, flags, tags, properties and birth of the first one, one attempt more, and remembers where it
came from: RETRY_TOPIC (its first topic) and ORIGIN_MESSAGE_ID (the offset id of its first record).
[SendMessageProcessor.asyncConsumerSendMsgBack; reference: store-and-broker 4.2]
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ariane.broker.dynamic_config import DynamicConfig
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
from ariane.net.connection import Handled, Handler, Peer, Reply
from ariane.protocol import properties, record
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.record import Record
from ariane.protocol.requests import typed
from ariane.protocol.requests.messaging import ConsumerSendMsgBack
from ariane.store.message_store import AppendResult, MessageStore, RecordDraft

FIRST_DELAY_LEVEL = 3  # of the first attempt when the client leaves it to the broker: 10 s
SINCE_OWN_MAXIMUM = 121  # version ordinal (V3_4_9) from which a client's maxReconsumeTimes counts


class SendBackHandler(NamedTuple):
    """What a send-back needs. `put` stores a draft, and delays it when its DELAY says so; `durable` waits until the log is
    flushed up to an offset, None when nobody has to wait; `stored` is told after each put."""

    settings: DynamicConfig
    topics: TopicRegistry
    groups: GroupRegistry
    store: MessageStore
    put: Callable[[RecordDraft], AppendResult]
    durable: Callable[[int], Awaitable[bool]] | None
    stored: Callable[[], None]


def handlers(parts: SendBackHandler) -> dict[int, Handler]:
    def back(command: Command, peer: Peer) -> Handled:
        return send_back(parts, typed(command, ConsumerSendMsgBack), command.version)

    return {RequestCode.CONSUMER_SEND_MSG_BACK: back}


def send_back(parts: SendBackHandler, request: ConsumerSendMsgBack, version: int) -> Handled:
    """Store the record at `request.offset` once more. The answer comes when that is as safe as any send."""
    group = _group(parts, request.group)
    config = parts.settings.current
    if not config.broker_permission & PERM_WRITE:
        raise ReplyError(ResponseCode.NO_PERMISSION, f"the broker[{config.broker_name}] may not be written to")
    if group.retry_queue_nums <= 0:
        return Reply()  # the group was told to have no retries: what it fails on is given up
    data = parts.store.read_record(request.offset)
    if data is None:
        raise ReplyError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {request.offset}")
    most = group.retry_max_times
    if version >= SINCE_OWN_MAXIMUM and request.max_reconsume_times is not None:
        most = request.max_reconsume_times
    placed = parts.put(_draft(parts, group, request, record.decode(data), most))
    parts.stored()
    return Reply() if parts.durable is None else _when_durable(parts.durable, placed)


async def _when_durable(durable: Callable[[int], Awaitable[bool]], placed: AppendResult) -> Reply:
    """The client forgets the message with this answer. One that is late is stored all the same: a refusal would have the
    client send it once more."""
    try:
        await durable(placed.offset + placed.size)
    except FlushFailed as error:
        return Reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
    return Reply()


def _group(parts: SendBackHandler, name: str) -> SubscriptionGroupConfig:
    if fault := group_name_fault(name):
        raise ReplyError(ResponseCode.SYSTEM_ERROR, fault)
    group = parts.groups.get_or_create(name)
    if group is None:
        remark = f"subscription group not exist, {name}; create it, or set autoCreateSubscriptionGroup"
        raise ReplyError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    return group


def _draft(
    parts: SendBackHandler, group: SubscriptionGroupConfig, request: ConsumerSendMsgBack, sent: Record, most: int
) -> RecordDraft:
    own = sent.property_map()
    own.setdefault(names.RETRY_TOPIC, sent.topic)
    own.setdefault(names.ORIGIN_MESSAGE_ID, ids.offset_message_id(sent.store_host, sent.offset))
    own[names.WAIT] = "false"
    if sent.reconsume_times >= most or request.delay_level < 0:
        topic = _writable(parts.topics.get_or_create_internal(dlq_topic(group.group_name), 1))
        queue_id, level = 0, 0
    else:
        topic = _writable(parts.topics.get_or_create_internal(retry_topic(group.group_name), group.retry_queue_nums))
        queue_id = random.randrange(group.retry_queue_nums)  # noqa: S311 - spreads load, hides nothing
        level = request.delay_level or FIRST_DELAY_LEVEL + sent.reconsume_times
    own[names.DELAY] = str(level)
    return RecordDraft(
        topic=topic.topic_name,
        queue_id=queue_id,
        body=sent.body,
        properties=properties.join(own),
        tags=own.get(names.TAGS, ""),
        flag=sent.flag,
        sys_flag=sent.sys_flag,
        born_ms=sent.born_ms,
        born_host=sent.born_host,
        reconsume_times=sent.reconsume_times + 1,
    )


def _writable(topic: TopicConfig) -> TopicConfig:
    if not topic.perm & PERM_WRITE:
        raise ReplyError(ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden")
    return topic
