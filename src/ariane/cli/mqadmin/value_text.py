"""Texts of values as Java's tools print them: permissions, configurations, queues, times. Reference: admin-and-dashboard 1.10."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from ariane.model.message import MessageQueue
from ariane.model.topic import PERM_INHERIT, PERM_READ, PERM_WRITE, SubscriptionGroupConfig, TopicConfig

UNKNOWN = "unknown"  # never 0 or -1


def boolean(value: bool) -> str:
    """Return `true` or `false`."""
    return "true" if value else "false"


def permission(perm: int) -> str:
    """Return three letters: read, write, inherit."""
    bits = ((PERM_READ, "R"), (PERM_WRITE, "W"), (PERM_INHERIT, "X"))
    return "".join(letter if perm & bit else "-" for bit, letter in bits)


def topic_config(config: TopicConfig, changes: Mapping[str, str] | None = None) -> str:
    """Return a topic as Java prints it, with the attributes that a command changes."""
    listed = ", ".join(f"{key}={value}" for key, value in (changes or {}).items())
    attributes = f", attributes={{{listed}}}" if listed else ""
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums},"
        f" writeQueueNums={config.write_queue_nums}, perm={permission(config.perm)},"
        f" topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag},"
        f" order={boolean(config.order)}{attributes}]"
    )


def group_fields(config: SubscriptionGroupConfig) -> dict[str, str]:
    """Return the members of a group's configuration as texts, in the order of Java's class."""
    return {
        "groupName": config.group_name,
        "consumeEnable": boolean(config.consume_enable),
        "consumeFromMinEnable": boolean(config.consume_from_min_enable),
        "consumeBroadcastEnable": boolean(config.consume_broadcast_enable),
        "retryQueueNums": str(config.retry_queue_nums),
        "retryMaxTimes": str(config.retry_max_times),
        "brokerId": str(config.broker_id),
        "whichBrokerWhenConsumeSlowly": str(config.which_broker_when_consume_slowly),
        "notifyConsumerIdsChangedEnable": boolean(config.notify_consumer_ids_changed_enable),
    }


def group_config(config: SubscriptionGroupConfig) -> str:
    fields = ", ".join(f"{name}={value}" for name, value in group_fields(config).items())
    return f"SubscriptionGroupConfig [{fields}]"


def message_queue(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"


def number(value: int | None) -> str:
    """Return a number, or `unknown`."""
    return UNKNOWN if value is None else str(value)


def time_ms(ms: int | None) -> str:
    """Return `yyyy-MM-dd HH:mm:ss,SSS` in local time; empty if unknown, the number if no calendar has it."""
    if ms is None:
        return ""
    try:
        local = datetime.fromtimestamp(ms // 1000).astimezone()
    except (OverflowError, ValueError, OSError):  # producers may send any number
        return str(ms)
    return f"{local:%Y-%m-%d %H:%M:%S},{ms % 1000:03}"


def time_s(ms: int | None, unknown: str = "N/A") -> str:
    """Return `yyyy-MM-dd HH:mm:ss` in local time."""
    return unknown if ms is None else f"{datetime.fromtimestamp(ms // 1000).astimezone():%Y-%m-%d %H:%M:%S}"
