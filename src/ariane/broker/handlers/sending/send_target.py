"""Topic and queue that a send goes to, and every refusal that does not depend on the message."""

from __future__ import annotations

import random

from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.clock import Clock
from ariane.errors import ReplyError
from ariane.model.topic import (
    AUTO_CREATE_TOPIC,
    PERM_WRITE,
    RETRY_PREFIX,
    SEND_FORBIDDEN,
    TopicConfig,
    dlq_topic,
    topic_name_fault,
)
from ariane.protocol.codes import ResponseCode
from ariane.protocol.requests.messaging import SendMessage


class SendTargets:
    """Resolves the targets of sends and replies; creates topics where the settings allow it."""

    def __init__(self, *, settings: DynamicConfig, topics: TopicRegistry, groups: GroupRegistry, clock: Clock) -> None:
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._clock = clock

    def topic(self, request: SendMessage) -> TopicConfig:
        """Return the topic of the request, created from its default topic if necessary and allowed.

        Raises:
            ReplyError: the broker or the topic does not accept messages, or the topic does not exist.
        """
        config, name = self._settings.current, request.topic
        since = config.start_accept_send_request_time_stamp
        if since and since > self._clock.now_ms():
            raise ReplyError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {since}")
        topic = self._topics.get(name)
        # As in 4.9.4, the broker's permission concerns ordered topics only: clients avoid a read-only broker by its routes.
        if topic is not None and topic.order and not config.broker_permission & PERM_WRITE:
            raise ReplyError(ResponseCode.NO_PERMISSION, f"the broker {config.broker_name} may not be written to")
        if name in SEND_FORBIDDEN:
            raise ReplyError(ResponseCode.NO_PERMISSION, f"sending to topic {name} is forbidden: it is a system topic")
        if topic is not None:
            return topic
        if fault := topic_name_fault(name):
            raise ReplyError(ResponseCode.SYSTEM_ERROR, fault)
        topic = self._topics.create_from_template(request.default_topic, name, request.default_topic_queue_nums)
        if topic is None and name.startswith(RETRY_PREFIX):
            topic = self._topics.get_or_create_internal(name, 1, is_internal=False)
        if topic is None:
            fix = (
                f"create it, or send with the default topic {AUTO_CREATE_TOPIC}"
                if config.auto_create_topic_enable
                else "create it: autoCreateTopicEnable is false"
            )
            raise ReplyError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist on {config.broker_name}; {fix}")
        return topic

    def queue_id(self, request: SendMessage, topic: TopicConfig) -> int:
        """Return the queue of the request, a random one if it leaves the choice to the broker (negative).

        Raises:
            ReplyError: the topic does not have this queue.
        """
        queues = max(topic.read_queue_nums, topic.write_queue_nums)
        if request.queue_id >= queues:
            remark = f"request queueId[{request.queue_id}] is illegal, {topic.topic_name} has {queues} queues"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        if request.queue_id >= 0:
            return request.queue_id
        return random.randrange(max(1, topic.write_queue_nums))  # noqa: S311 - spreads load, hides nothing

    def retry_target(self, request: SendMessage, queue_id: int) -> tuple[str, int]:
        """Return topic and queue of a message sent to %RETRY%group directly: %DLQ%group after the last allowed attempt.

        Raises:
            ReplyError: the group does not exist.
        """
        group = request.topic.removeprefix(RETRY_PREFIX)
        config = self._groups.get_or_create(group)
        if config is None:
            remark = f"subscription group not exist, {group}; create it"
            raise ReplyError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        max_times = config.retry_max_times if request.max_reconsume_times is None else request.max_reconsume_times
        if (request.reconsume_times or 0) < max_times:
            return request.topic, queue_id
        return self._topics.get_or_create_internal(dlq_topic(group), 1).topic_name, 0
