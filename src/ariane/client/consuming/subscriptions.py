"""Subscriptions in the form that heartbeats and pull requests carry. [FilterAPI]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ariane.client.instance.validation import of_kind
from ariane.errors import ConfigError
from ariane.filter import tags
from ariane.model.topic import topic_name_fault
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.messaging import SQL92


class Sql(NamedTuple):
    """SQL92 expression on message properties, used as a subscription.

    The broker compiles it (4.9.4 with `enablePropertyFilter=true`) and rejects an invalid one with `ReplyError` code 23, when
    the consumer is opened or at `subscribe`.

    Example:
        PushConsumer(namesrv, "g", {"orders": Sql("price > 100 AND region IN ('north', 'south')")}, listener)
    """

    expression: str


# As applications give them: topics with all their messages, or with an expression each.
TopicSubscriptions = str | Sequence[str] | Mapping[str, str | Sql]


def check_topic(topic: str) -> str:
    """Return `topic`, or raise ConfigError if it is not a valid topic name."""
    of_kind("subscriptions", topic, str)
    if fault := topic_name_fault(topic):
        raise ConfigError("subscriptions", topic, fault)
    return topic


def tag_subscription(topic: str, expression: str, version: int) -> SubscriptionData:
    """Return a subscription to messages with one of the tags of `expression` (`a || b`, or `*` for all)."""
    check_topic(topic)
    if not isinstance(expression, str):
        fix = f'expected a string of tags ("a || b", or "*" for every message) for topic {topic}'
        raise ConfigError("subscriptions", expression, fix)
    tag_set = tags.parse(expression)
    if tag_set is not None and not tag_set:
        raise ConfigError("subscriptions", expression, "expected at least one tag, or * for every message")
    return SubscriptionData(
        code_set=tags.codes(tag_set) or frozenset(),
        sub_string=expression,
        sub_version=version,
        tags_set=tag_set or frozenset(),
        topic=topic,
    )


def subscription_data(topic: str, expression: str | Sql, version: int) -> SubscriptionData:
    """Return a subscription by tags or by an SQL92 expression."""
    if not isinstance(expression, Sql):
        return tag_subscription(topic, expression, version)
    check_topic(topic)
    if not expression.expression.strip():
        raise ConfigError("subscriptions", topic, 'the SQL92 expression is empty; expected one like Sql("a > 5")')
    return SubscriptionData(expression_type=SQL92, sub_string=expression.expression, sub_version=version, topic=topic)
