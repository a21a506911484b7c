"""What an account may see: the decision about a topic, a group and the contents of a message. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import msgspec

from ariane.model.message import REAL_TOPIC, RETRY_TOPIC
from ariane.model.topic import (
    CHECK_MAX_TIME_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    group_of_topic,
)

# Topics of brokers that store messages of other topics: each message is decided by its own topics.
CARRIERS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC})
MASK = "***"
MASKED = "ARIANE_MASKED"  # property of a masked message: what is masked


class Mask(msgspec.Struct, frozen=True):
    """Contents that are hidden. Attributes: patterns of topics, whether their bodies are, patterns of properties."""

    topics: tuple[str, ...]
    body: bool = True
    properties: tuple[str, ...] = ()


class Access(msgspec.Struct, frozen=True):
    """What one account may see. Patterns are regular expressions that match the whole name.

    Attributes:
        topics: Patterns of topics; None: all.
        groups: Patterns of consumer and producer groups; None: all.
        masks: Contents of messages that are hidden.
    """

    topics: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    masks: tuple[Mask, ...] = ()

    @property
    def is_limited(self) -> bool:
        """Whether there are topics or groups that the account may not see."""
        return self.topics is not None or self.groups is not None

    @property
    def is_full(self) -> bool:
        """Whether nothing is hidden."""
        return not self.is_limited and not self.masks

    def sees_topic(self, topic: str) -> bool:
        """Return whether a topic exists for this account. Retry and dead-letter topics belong to their group."""
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return self.sees_group(group_of_topic(topic))
        return self.topics is None or matches(self.topics, topic)

    def sees_group(self, group: str) -> bool:
        """Return whether a consumer or producer group exists for this account."""
        return self.groups is None or matches(self.groups, group)

    def sees_record(self, topic: str, properties: Mapping[str, str]) -> bool:
        """Return whether a stored message exists for this account: whether it sees every topic that the message had."""
        topics = topics_of(topic, properties)
        if topic == OP_HALF_TOPIC:  # which half messages are decided, by number
            return True
        return bool(topics) and all(map(self.sees_topic, topics))

    def masked_by(self, topics: Sequence[str]) -> tuple[Mask, ...]:
        """Return the masks that concern a message with these topics."""
        return tuple(mask for mask in self.masks if any(matches(mask.topics, topic) for topic in topics))


FULL_ACCESS = Access()


def topics_of(topic: str, properties: Mapping[str, str]) -> list[str]:
    """Return the topics of a stored message: those that it is stored in, or will be, and that of the application."""
    names = [properties.get(REAL_TOPIC, ""), properties.get(RETRY_TOPIC, "")]
    return [name for name in ("" if topic in CARRIERS else topic, *names) if name]


def masks_property(masks: Sequence[Mask], name: str) -> bool:
    """Return whether one of the masks hides a property."""
    return any(matches(mask.properties, name) for mask in masks)


def matches(patterns: tuple[str, ...], name: str) -> bool:
    """Return whether one of some patterns matches a whole name."""
    return _compiled(patterns).fullmatch(name) is not None


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    # (?!) matches nothing.
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or "(?!)")


_CURRENT: ContextVar[Access] = ContextVar("access", default=FULL_ACCESS)


def current_access() -> Access:
    """Return what the sender of the request in progress may see; everything outside of requests."""
    return _CURRENT.get()


@contextmanager
def with_access(access: Access) -> Iterator[None]:
    """Let the code of the block see what `access` permits."""
    token = _CURRENT.set(access)
    try:
        yield
    finally:
        _CURRENT.reset(token)
