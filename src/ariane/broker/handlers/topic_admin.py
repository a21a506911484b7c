"""Topics and consumer groups, made and removed by tools (17, 21, 200, 201, 207, 215), and, as
clients of 5.x ask for them, one by one (351, 352). [AdminBrokerProcessor]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from ariane.broker import topic_pages
from ariane.broker.config import BrokerConfig
from ariane.broker.persistent_state import PersistentState
from ariane.broker.state.topic_registry import protected_topics
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.broker.topic_deletion import TopicRemover
from ariane.errors import ReplyError
from ariane.model.topic import SubscriptionGroupConfig, TopicConfig, group_name_fault, is_system_topic, topic_name_fault
from ariane.net.connection import Handled, Handler, Peer, Reply
from ariane.net.shared_replies import SharedReplies
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import typed, typed_body
from ariane.protocol.requests.admin import (
    CreateTopic,
    DeleteGroup,
    GroupConfigBody,
    GroupName,
    TopicConfigBody,
    TopicRef,
)
from ariane.protocol.requests.routing import TopicPageRequest

FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


class TopicAdminHandler(NamedTuple):
    """What these handlers need. `registered` waits until the name servers know of the change."""

    config: BrokerConfig
    tables: PersistentState
    remover: TopicRemover
    registered: Callable[[], Awaitable[None]]
    stats: BrokerStats


def handlers(parts: TopicAdminHandler) -> dict[int, Handler]:
    shared = SharedReplies()

    async def create(command: Command, peer: Peer) -> Reply:
        create_topic(parts, typed(command, CreateTopic))
        durable = parts.tables.change_log.wait_durable()
        await parts.registered()
        if durable is not None:
            await durable
        return Reply()

    async def delete(command: Command, peer: Peer) -> Reply:
        delete_topic(parts, typed(command, TopicRef).topic)
        await parts.registered()
        return Reply()

    def all_topics(command: Command, peer: Peer) -> Handled:
        request = typed(command, TopicPageRequest)
        return topic_pages.reply(parts.tables.topics, parts.tables.deletions.to_table(), request, shared)

    def all_groups(command: Command, peer: Peer) -> Reply:
        # Strict JSON is what fastjson prints of this table, at a hundredth of the time.
        return Reply(body=msgspec.json.encode(parts.tables.groups.table()))

    def topic_config(command: Command, peer: Peer) -> Reply:
        name = typed(command, TopicRef).topic
        topic = parts.tables.topics.get(name)
        if topic is None:
            raise ReplyError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        return Reply(body=fastjson.write(TopicConfigBody.of(topic)))

    def group_config(command: Command, peer: Peer) -> Reply:
        name = typed(command, GroupName).group
        group = parts.tables.groups.get(name)
        if group is None:
            raise ReplyError(ResponseCode.SYSTEM_ERROR, f"No group in this broker: {name}")
        return Reply(body=fastjson.write(GroupConfigBody.of(group)))

    def put_group(command: Command, peer: Peer) -> Reply:
        config = typed_body(command, SubscriptionGroupConfig)
        if fault := group_name_fault(config.group_name):
            raise ReplyError(ResponseCode.SYSTEM_ERROR, fault)
        parts.tables.groups.put(config)
        return Reply()

    def delete_group(command: Command, peer: Peer) -> Reply:
        request = typed(command, DeleteGroup)
        parts.tables.groups.delete(request.group_name, offsets=request.remove_offset)
        parts.stats.drop_group(request.group_name)
        if request.remove_offset:
            parts.tables.offsets.remove_group(request.group_name)
        return Reply()

    return {
        RequestCode.UPDATE_AND_CREATE_TOPIC: create,
        RequestCode.DELETE_TOPIC_IN_BROKER: delete,
        RequestCode.GET_ALL_TOPIC_CONFIG: all_topics,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: all_groups,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: put_group,
        RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
        RequestCode.GET_TOPIC_CONFIG: topic_config,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: group_config,
    }


def create_topic(parts: TopicAdminHandler, request: CreateTopic) -> None:
    """Make a topic, or change its queues and permission. `order` comes from the name server's table, not from here."""
    _refuse_own_topic(parts, request.topic)
    if request.topic_filter_type not in FILTER_TYPES:
        remark = f"topicFilterType {request.topic_filter_type} is unknown, use one of {', '.join(FILTER_TYPES)}"
        raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
    known = parts.tables.topics.get(request.topic)
    parts.tables.topics.put(
        TopicConfig(
            topic_name=request.topic,
            read_queue_nums=request.read_queue_nums,
            write_queue_nums=request.write_queue_nums,
            perm=request.perm,
            topic_filter_type=request.topic_filter_type,
            topic_sys_flag=request.topic_sys_flag or 0,
            order=known.order if known else False,
        )
    )


def delete_topic(parts: TopicAdminHandler, name: str) -> None:
    """Delete a topic, its messages and its offsets."""
    _refuse_own_topic(parts, name)
    parts.remover.remove(name)


def _refuse_own_topic(parts: TopicAdminHandler, name: str) -> None:
    if fault := topic_name_fault(name):
        raise ReplyError(ResponseCode.SYSTEM_ERROR, fault)
    if is_system_topic(name) or name in protected_topics(parts.config):
        raise ReplyError(ResponseCode.SYSTEM_ERROR, f"the topic[{name}] is conflict with system topic")
