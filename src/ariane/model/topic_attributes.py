"""Attributes of topics and message types of 5.x. [TopicAttributes, AttributeParser, AttributeUtil, TopicMessageType]

mqadmin updateTopic -a +message.type=FIFO,-reserve.time  ─→  parse_changes  ─→  alter  ─→  attributes in topics.json
message.type of a topic  ─→  accepted_types        properties of a message  ─→  message_type
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ariane.model import message
from ariane.model.topic import TopicConfig

__all__ = ["TopicMessageType", "accepted_types", "alter", "join_changes", "message_type", "parse_changes"]

MESSAGE_TYPE = "message.type"
ADD, DELETE = "+", "-"  # before a key: sets the attribute, or removes it
RESERVE_MAX = 2**63 - 1


class TopicMessageType(enum.StrEnum):
    """What a message is, and what a topic is declared to accept."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"  # of topics only: all of the above
    UNSPECIFIED = "UNSPECIFIED"  # of topics only: as without the attribute


OF_MESSAGES = (TopicMessageType.NORMAL, TopicMessageType.FIFO, TopicMessageType.DELAY, TopicMessageType.TRANSACTION)
DELAY_PROPERTIES = (
    message.DELAY,
    message.TIMER_DELIVER_MS,
    message.TIMER_DELAY_SEC,
    message.TIMER_DELAY_MS,
    message.START_DELIVER_TIME,  # not in 5.x, which delivers such a message at once
)


def message_type(properties: Mapping[str, str]) -> TopicMessageType:
    """Return the type of a message. 5.x derives it from the properties, whatever the client declared."""
    if properties.get(message.TRAN_MSG) == "true":
        return TopicMessageType.TRANSACTION
    if any(name in properties for name in DELAY_PROPERTIES):
        return TopicMessageType.DELAY
    return TopicMessageType.FIFO if message.SHARDING_KEY in properties else TopicMessageType.NORMAL


def accepted_types(
    topic: TopicConfig, untyped: TopicMessageType = TopicMessageType.MIXED
) -> tuple[TopicMessageType, ...]:
    """Return the types of messages that a topic accepts from clients of 5.x.

    Args:
        topic: The topic.
        untyped: Type of topics without one, such as those that tools of 4.x create; 5.x takes NORMAL.
    """
    declared = topic.attribute(MESSAGE_TYPE)
    if declared in (None, TopicMessageType.UNSPECIFIED):
        declared = untyped
    return (
        OF_MESSAGES if declared == TopicMessageType.MIXED else tuple(kind for kind in OF_MESSAGES if kind == declared)
    )


class _Attribute(NamedTuple):
    """An attribute that topics can have."""

    fault: Callable[[str], str | None]  # what is wrong with a value
    is_changeable: bool = True  # not only by the request that creates the topic


def _among(*values: str) -> Callable[[str], str | None]:
    listed = ", ".join(values)
    return lambda value: None if value in values else f"value is not in set: [{listed}]"


def _reserve_time_fault(value: str) -> str | None:
    digits = value.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > len(str(RESERVE_MAX)):
        return f'For input string: "{value}"'
    return None if -1 <= int(value) <= RESERVE_MAX else f"value is not in range(-1, {RESERVE_MAX})"


ATTRIBUTES = {
    MESSAGE_TYPE: _Attribute(_among("UNSPECIFIED", "TRANSACTION", "FIFO", "MIXED", "DELAY", "NORMAL")),
    "reserve.time": _Attribute(_reserve_time_fault),  # stored only: 5.x uses it for tiered storage
    # Batch queues and compaction are not supported, so topics that need them are refused.
    "queue.type": _Attribute(_among("SimpleCQ"), is_changeable=False),
    "cleanup.policy": _Attribute(_among("DELETE"), is_changeable=False),
}


def parse_changes(text: str) -> dict[str, str]:
    """Return the changes of a text such as `+message.type=FIFO,-reserve.time`: key with its sign → value, empty for a removal.

    Raises:
        ValueError: a change has no sign or no value, or a key occurs twice.
    """
    changes: dict[str, str] = {}
    for change in text.split(",") if text else ():
        key, separator, value = change.partition("=")
        if separator and (not key.startswith(ADD) or not value):
            raise ValueError(f"add/alter attribute format is wrong: {change}; expected +key=value")
        if not separator and not key.startswith(DELETE):
            raise ValueError(f"delete attribute format is wrong: {change}; expected -key")
        if key in changes:
            raise ValueError(f"key duplication: {key}")
        changes[key] = value
    return changes


def join_changes(changes: Mapping[str, str]) -> str:
    """Return changes as a text that `parse_changes` reads."""
    return ",".join(f"{key}={value}" if value else key for key, value in changes.items())


def alter(current: Mapping[str, str] | None, changes: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of a topic after changes.

    Args:
        current: Its attributes; None if the topic is created.
        changes: See `parse_changes`.

    Raises:
        ValueError: an attribute or a value is unknown, cannot be changed, or does not exist; the texts are those of 5.x.
    """
    altered = dict(current or {})
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if not key or ADD in key or DELETE in key:
            raise ValueError("kv string format wrong.")
        if current is None and sign == DELETE:
            raise ValueError(f"only add attribute is supported while creating topic. key: {key}")
        if f"{ADD if sign == DELETE else DELETE}{key}" in changes:
            raise ValueError(f"alter duplication key. key: {key}")
        if sign == DELETE and key not in altered:
            raise ValueError(f"attempt to delete a nonexistent key: {key}")
        attribute = ATTRIBUTES.get(key)
        if attribute is None:
            raise ValueError(f"unsupported key: {key}")
        if current is not None and not attribute.is_changeable:
            raise ValueError(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == DELETE:
            del altered[key]
        elif fault := attribute.fault(value):
            raise ValueError(fault)
        else:
            altered[key] = value
    return altered
