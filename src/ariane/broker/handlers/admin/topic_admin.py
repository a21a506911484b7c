"""Topics and consumer groups, created and deleted by tools (17, 21, 200, 201, 207, 215), or read one by one by clients of 5.x
(351, 352). [AdminBrokerProcessor]"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.lifecycle.persistent_state import PersistentState
from ariane.broker.lifecycle.registration import Registration
from ariane.broker.lifecycle.topic_deletion import TopicRemover
from ariane.broker.replication import topic_pages
from ariane.broker.state.topic_registry import protected_topics
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.errors import ReplyError
from ariane.model.topic import SubscriptionGroupConfig, TopicConfig, group_name_fault, is_system_topic, topic_name_fault
from ariane.model.topic_attributes import alter, parse_changes
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.net.shared_replies import SharedReplies
from ariane.protocol import fastjson
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_body, decode_header
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


@dataclass(frozen=True, kw_only=True)
class TopicAdminHandler:
    """Creates, lists and deletes topics and consumer groups."""

    config: BrokerConfig  # built-in topics, which must not be deleted
    state: PersistentState  # topics, groups and offsets, whose changes are stored before the reply
    remover: TopicRemover  # deletes topics with their messages and offsets
    registration: Registration  # a new topic is usable once the name servers have it
    stats: BrokerStats  # items of deleted groups
    # one large list for all clients that request it while it is built
    _shared: SharedReplies = field(default_factory=SharedReplies, init=False)

    # --- topics ---

    async def create_topic(self, command: Command, peer: Peer) -> Reply:
        """Handle UPDATE_AND_CREATE_TOPIC: create a topic, or change its queues and permission.

        The reply waits until the name servers and, in synchronous mode, the disk have the change.
        """
        self._put_topic(decode_header(command, CreateTopic))
        durable = self.state.change_log.wait_durable()
        await self.registration.wait_registered()
        if durable is not None:
            await durable
        return Reply()

    async def delete_topic(self, command: Command, peer: Peer) -> Reply:
        """Handle DELETE_TOPIC_IN_BROKER: delete a topic with its messages and offsets."""
        name = decode_header(command, TopicRef).topic
        self._check_name(name)
        self.remover.remove(name)
        await self.registration.wait_registered()
        return Reply()

    def all_topics(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle GET_ALL_TOPIC_CONFIG: all topics, or a page of them for a slave."""
        request = decode_header(command, TopicPageRequest)
        return topic_pages.reply(self.state.topics, self.state.deletions.to_table(), request, self._shared)

    def topic_config(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_TOPIC_CONFIG."""
        name = decode_header(command, TopicRef).topic
        topic = self.state.topics.get(name)
        if topic is None:
            raise ReplyError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        return Reply(body=fastjson.write(TopicConfigBody.of(topic)))

    # --- consumer groups ---

    def all_groups(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        # Strict JSON is what fastjson prints of this table, encoded 100 times as fast.
        return Reply(body=msgspec.json.encode(self.state.groups.table()))

    def group_config(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_SUBSCRIPTIONGROUP_CONFIG."""
        name = decode_header(command, GroupName).group
        group = self.state.groups.get(name)
        if group is None:
            raise ReplyError(ResponseCode.SYSTEM_ERROR, f"No group in this broker: {name}")
        return Reply(body=fastjson.write(GroupConfigBody.of(group)))

    def put_group(self, command: Command, peer: Peer) -> Reply:
        """Handle UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
        config = decode_body(command, SubscriptionGroupConfig)
        if fault := group_name_fault(config.group_name):
            raise ReplyError(ResponseCode.SYSTEM_ERROR, fault)
        if config.group_retry_policy and (fault := config.group_retry_policy.fault):
            raise ReplyError(ResponseCode.SYSTEM_ERROR, fault)
        self.state.groups.put(config)
        return Reply()

    def delete_group(self, command: Command, peer: Peer) -> Reply:
        """Handle DELETE_SUBSCRIPTIONGROUP: delete a group and, if requested, its offsets."""
        request = decode_header(command, DeleteGroup)
        self.state.groups.delete(request.group_name, offsets=request.remove_offset)
        self.stats.drop_group(request.group_name)
        if request.remove_offset:
            self.state.offsets.remove_group(request.group_name)
            self.state.pop.remove_group(request.group_name)
        return Reply()

    def _put_topic(self, request: CreateTopic) -> None:
        self._check_name(request.topic)
        if request.topic_filter_type not in FILTER_TYPES:
            remark = f"unknown topicFilterType {request.topic_filter_type}: expected one of {', '.join(FILTER_TYPES)}"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        existing = self.state.topics.get(request.topic)
        current = None if existing is None else existing.attributes or {}
        try:
            attributes = alter(current, parse_changes(request.attributes or ""))
        except ValueError as error:
            raise ReplyError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        # `order` is set from the name servers' ORDER_TOPIC_CONFIG only.
        self.state.topics.put(
            TopicConfig(
                attributes=attributes or msgspec.UNSET,
                topic_name=request.topic,
                read_queue_nums=request.read_queue_nums,
                write_queue_nums=request.write_queue_nums,
                perm=request.perm,
                topic_filter_type=request.topic_filter_type,
                topic_sys_flag=request.topic_sys_flag or 0,
                order=existing.order if existing else False,
            )
        )

    def _check_name(self, name: str) -> None:
        if fault := topic_name_fault(name):
            raise ReplyError(ResponseCode.SYSTEM_ERROR, fault)
        if is_system_topic(name) or name in protected_topics(self.config):
            reason = ": it is the name of this broker" if name == self.config.broker_name else ""
            raise ReplyError(ResponseCode.SYSTEM_ERROR, f"the topic[{name}] is conflict with system topic{reason}")
