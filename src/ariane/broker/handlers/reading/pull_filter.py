"""From a pull request to the records that it may and wants to read.

request ─ SUBSCRIPTION flag ─→ the expression of the request ─┬→ tag hashes, compared with consume-queue entries
        └ otherwise ────────→ the group's last heartbeat ─────┴→ SQL92: a predicate that reads each record
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.state.consumer_filters import ConsumerFilters, unsupported_remark
from ariane.broker.state.group_members import GroupMembers
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import FilterError, ProtocolError, ReplyError
from ariane.filter import tags
from ariane.filter.sql import SqlFilter, compile_sql
from ariane.model.message import RETRY_TOPIC
from ariane.model.topic import PERM_READ, RETRY_PREFIX, SubscriptionGroupConfig, TopicConfig
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records import record
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.messaging import SQL92, SUBSCRIPTION, TAG, PullMessage
from ariane.store.message_store import RecordFilter

log = logging.getLogger("ariane.broker")


class PullFacts(NamedTuple):
    """All that `PullFilterBuilder.build` takes from the state of the broker, except SQL92 filters."""

    config: BrokerConfig
    group: SubscriptionGroupConfig | None
    topic: TopicConfig | None
    """With its permissions and queues."""
    is_online: bool | None = None
    """Whether the group has members; None if the pull has an expression of its own, as the next two."""
    is_broadcasting: bool | None = None
    """Whether each member consumes all messages."""
    subscription: SubscriptionData | None = None
    """Of the group's heartbeats."""


@dataclass(frozen=True, kw_only=True)
class PullFilterBuilder:
    """Checks the permissions of pulls and turns their subscriptions into filters."""

    settings: DynamicConfig
    topics: TopicRegistry
    groups: GroupRegistry
    members: GroupMembers
    filters: ConsumerFilters

    def facts(self, request: PullMessage) -> PullFacts:
        """Return what `build` looks at. While it is the same, so is the filter of the pull, unless that is an SQL92 expression."""
        config, group, topic = self.settings.current, request.consumer_group, request.topic
        group_config, topic_config = self.groups.get(group), self.topics.get(topic)
        if request.sys_flag & SUBSCRIPTION:
            return PullFacts(config, group_config, topic_config)
        online = self.members.consumers.get(group)
        if online is None:
            return PullFacts(config, group_config, topic_config, is_online=False)
        subscription = online.subscriptions.get(topic)
        return PullFacts(config, group_config, topic_config, True, online.is_broadcasting, subscription)

    def build(self, request: PullMessage) -> RecordFilter:
        """Return the filter of a pull.

        Raises:
            ReplyError: the group may not pull from this queue, or its subscription is missing, outdated or malformed.
        """
        # The checks are in Java's order, because the code of the first failure decides what a client does next.
        config, group, topic = self.settings.current, request.consumer_group, request.topic
        if not config.broker_permission & PERM_READ:
            raise ReplyError(
                ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] pulling message is forbidden"
            )
        group_config = self.groups.get_or_create(group)
        if group_config is None:
            remark = f"subscription group [{group}] does not exist; create it, or set autoCreateSubscriptionGroup"
            raise ReplyError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group_config.consume_enable:
            raise ReplyError(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}: consumeEnable is false"
            )
        topic_config = self.topics.get(topic)
        if topic_config is None:
            remark = f"topic[{topic}] not exist on {config.broker_name}; create it"
            raise ReplyError(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not topic_config.perm & PERM_READ:
            raise ReplyError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden")
        queues = topic_config.read_queue_nums
        if not 0 <= request.queue_id < queues:
            remark = f"queueId[{request.queue_id}] is illegal, topic:[{topic}] readQueueNums:[{queues}]"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        if request.sys_flag & SUBSCRIPTION:
            record_filter = self._from_request(request)
        else:
            record_filter = self._from_heartbeat(request, may_broadcast=group_config.consume_broadcast_enable)
        # A retried message is in the group's retry topic; the expression belongs to the topic that it came from.
        if config.filter_support_retry and topic.startswith(RETRY_PREFIX):
            return record_filter._replace(accept=_accept_retried(self.filters, topic.removeprefix(RETRY_PREFIX)))
        return record_filter

    def _from_request(self, request: PullMessage) -> RecordFilter:
        if request.expression_type in (None, "", TAG):
            return RecordFilter(tags.codes(tags.parse(request.subscription)))
        is_enabled = self.settings.current.enable_property_filter
        if request.expression_type == SQL92:
            try:
                sql = compile_sql(request.subscription or "")
            except FilterError as error:
                remark = f"parse the consumer's subscription failed: {error}"
                raise ReplyError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from error
            # Compiled first: an invalid expression is reported even if filters are disabled.
            if is_enabled:
                return RecordFilter(accept=_accept(sql))
        raise ReplyError(ResponseCode.SYSTEM_ERROR, unsupported_remark(request.expression_type, is_enabled))

    def _from_heartbeat(self, request: PullMessage, *, may_broadcast: bool) -> RecordFilter:
        group, topic = request.consumer_group, request.topic
        online = self.members.consumers.get(group)
        if online is None:
            remark = f"the consumer's group info not exist: {group} is not online"
            raise ReplyError(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        if online.is_broadcasting and not may_broadcast:
            remark = f"the consumer group[{group}] can not consume by broadcast way"
            raise ReplyError(ResponseCode.NO_PERMISSION, remark)
        subscription = online.subscriptions.get(topic)
        if subscription is None:
            remark = f"the consumer's subscription not exist: {group} does not subscribe to {topic}"
            raise ReplyError(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        # The pull was sent after a change of the subscription whose heartbeat has not arrived yet.
        if subscription.sub_version < request.sub_version:
            remark = f"the consumer's subscription not latest: {subscription.sub_version} < {request.sub_version}"
            raise ReplyError(ResponseCode.SUBSCRIPTION_NOT_LATEST, remark)
        if subscription.expression_type not in (None, "", TAG):
            return RecordFilter(accept=_accept(self.registered_filter(request, subscription.expression_type)))
        return RecordFilter(None if subscription.sub_string in (None, "", tags.ALL) else subscription.code_set)

    def registered_filter(self, request: PullMessage, expression_type: str | None) -> SqlFilter:
        """Return the filter that a heartbeat registered for the group and topic of a pull.

        Raises:
            ReplyError: the filter is missing or older than the pull's subscription, or filters are disabled.
        """
        registered = self.filters.get(request.consumer_group, request.topic)
        if registered is None:
            remark = (
                f"{request.consumer_group} has no filter for {request.topic} on this broker: its expression may be"
                " malformed (CHECK_CLIENT_CONFIG reports the reason)"
            )
            raise ReplyError(ResponseCode.FILTER_DATA_NOT_EXIST, remark)
        version = registered.data.client_version
        if version < request.sub_version:
            remark = f"the consumer filter data is not latest: {version} < {request.sub_version}"
            raise ReplyError(ResponseCode.FILTER_DATA_NOT_LATEST, remark)
        if not self.settings.current.enable_property_filter:
            raise ReplyError(ResponseCode.SYSTEM_ERROR, unsupported_remark(expression_type, False))
        return registered.sql


def _accept(sql: SqlFilter) -> Callable[[bytes], bool]:
    return lambda data: sql.matches(_property_map(data))


def _accept_retried(filters: ConsumerFilters, group: str) -> Callable[[bytes], bool]:
    """Return a predicate that filters retried messages by the group's expression for their original topic, if any."""

    def accept(data: bytes) -> bool:
        property_map = _property_map(data)
        registered = filters.get(group, property_map.get(RETRY_TOPIC, ""))
        return registered is None or registered.sql.matches(property_map)

    return accept


def _property_map(data: bytes) -> dict[str, str]:
    try:
        return record.property_map(data)
    except ProtocolError as error:
        log.error("Filtering a record as if it had no properties: %s", error)
        return {}
