"""Checks of names, tags, keys, properties, sizes and times in calls, with the codes and texts of 5.3.3. [GrpcValidator]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any

from ariane.model import message as names
from ariane.model.topic import (
    GROUP_MAX,
    SYSTEM_GROUP_PREFIX,
    TOPIC_MAX,
    group_name_fault,
    is_system_topic,
    topic_name_fault,
)
from ariane.proxy.conversion.grpc_statuses import CallRefused, StatusCode

GROUP_BYTES_MAX = 64  # of a message group: shorter ones are accepted
PROPERTIES_MAX = 128
PROPERTIES_BYTES_MAX = 16_384
RECOVERY_S_MAX = 3_600
ENTRIES_MAX = 1_000  # messages, topics or subscriptions of a call: an empty one takes two bytes, and its object eighty
INVISIBLE_MS_MIN, INVISIBLE_MS_MAX = 10_000, 43_200_000
ALLOWED = "contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"

# Names that 5.x reserves in addition to those of 4.9.4.
_RESERVED_OF_5 = frozenset(
    {
        names.PREPARED_QUEUE_OFFSET,
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "__BORNHOST",
        "BORN_TIMESTAMP",
        "__CRC32#",
    }
)
_RESERVED_PREFIXES = ("TIMER_", "DLQ_ORIGIN_")
RESERVED = frozenset({*names.RESERVED, *_RESERVED_OF_5}), _RESERVED_PREFIXES
"""Names and prefixes of properties that only clients and brokers set."""


def topic_name(topic: Any) -> str:
    """Return the name of a `Resource` that is a topic. Raise CallRefused if it is not the name of one."""
    name: str = topic.name
    code = StatusCode.ILLEGAL_TOPIC
    if not name.strip():
        raise CallRefused(code, "The specified topic is blank")
    if len(name) > TOPIC_MAX:
        raise CallRefused(code, f"The specified topic is longer than topic max length {TOPIC_MAX}.")
    if topic_name_fault(name):
        raise CallRefused(code, f"The specified topic[{name[:TOPIC_MAX]}] {ALLOWED}")
    if is_system_topic(name):
        raise CallRefused(code, "cannot access system topic")
    return name


def group_name(group: Any) -> str:
    """Return the name of a `Resource` that is a consumer group. Raise CallRefused if it is not the name of one."""
    name: str = group.name
    code = StatusCode.ILLEGAL_CONSUMER_GROUP
    if not name.strip():
        raise CallRefused(code, "the specified group is blank")
    if len(name) > GROUP_MAX:
        raise CallRefused(code, f"the specified group is longer than group max length {GROUP_MAX}.")
    if group_name_fault(name):
        raise CallRefused(code, f"the specified group[{name}] {ALLOWED}")
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise CallRefused(code, "cannot use system consumer group")
    return name


def check_entries(entries: Sized) -> None:
    """Raise CallRefused if a call cannot have as many entries."""
    if len(entries) > ENTRIES_MAX:
        raise CallRefused(StatusCode.BAD_REQUEST, f"{len(entries)} entries in a call: expected at most {ENTRIES_MAX}")


def check_tag(tag: str) -> None:
    """Raise CallRefused if a message cannot have this tag."""
    code = StatusCode.ILLEGAL_MESSAGE_TAG
    if not tag.strip():
        raise CallRefused(code, "tag cannot be the char sequence of whitespace")
    if "|" in tag:
        raise CallRefused(code, "tag cannot contain '|'")
    if _has_control(tag):
        raise CallRefused(code, "tag cannot contain control character")


def check_keys(keys: Iterable[str]) -> None:
    """Raise CallRefused if a message cannot have these keys."""
    code = StatusCode.ILLEGAL_MESSAGE_KEY
    for key in keys:
        if not key.strip():
            raise CallRefused(code, "key cannot be the char sequence of whitespace")
        if _has_control(key):
            raise CallRefused(code, "key cannot contain control character")


def check_message_group(group: str) -> None:
    """Raise CallRefused if a message cannot have this group."""
    code = StatusCode.ILLEGAL_MESSAGE_GROUP
    if not group.strip():
        raise CallRefused(code, "message group cannot be the char sequence of whitespace")
    if len(group.encode()) >= GROUP_BYTES_MAX:
        raise CallRefused(code, f"message group exceed the max size {GROUP_BYTES_MAX}")
    if _has_control(group):
        raise CallRefused(code, "message group cannot contain control character")


def check_properties(user: Mapping[str, str], *others: str) -> None:
    """Raise CallRefused if a message cannot have these properties; `others` count for their size only."""
    code = StatusCode.MESSAGE_PROPERTIES_TOO_LARGE
    if len(user) > PROPERTIES_MAX:
        raise CallRefused(code, f"too many user properties, max is {PROPERTIES_MAX}")
    if (
        sum(len(text.encode()) for pair in user.items() for text in pair) + sum(map(_size, others))
        > PROPERTIES_BYTES_MAX
    ):
        raise CallRefused(code, f"the total size of user property is too large, max is {PROPERTIES_BYTES_MAX}")
    for name, value in user.items():
        if is_reserved(name):
            raise CallRefused(StatusCode.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        if _has_control(name) or _has_control(value):
            text = f"property {name[:SHOWN_MAX]!r} cannot contain control character"
            raise CallRefused(StatusCode.ILLEGAL_MESSAGE_PROPERTY_KEY, text)


SHOWN_MAX = 100  # characters of a name in a text


def is_reserved(name: str) -> bool:
    """Return whether only clients and brokers set a property."""
    reserved, prefixes = RESERVED
    return name in reserved or name.startswith(prefixes)


def check_invisible_ms(milliseconds: int, least: int) -> None:
    """Raise CallRefused if messages cannot be invisible for this time."""
    code = StatusCode.ILLEGAL_INVISIBLE_TIME
    if milliseconds < least:
        raise CallRefused(code, f"the invisibleTime is too small. min is {least}")
    if milliseconds > INVISIBLE_MS_MAX:
        raise CallRefused(code, f"the invisibleTime is too large. max is {INVISIBLE_MS_MAX}")


def _size(text: str) -> int:
    return len(text.encode())


def _has_control(text: str) -> bool:
    return any(character < " " or "\x7f" <= character <= "\x9f" for character in text)
