"""What a consumer wants of a topic, as heartbeats and pulls carry it. [FilterAPI]"""

from __future__ import annotations

from ariane.client.validation import of_kind
from ariane.errors import ConfigError
from ariane.filter import tags
from ariane.model.topic import topic_name_fault
from ariane.protocol.requests.clients import SubscriptionData


def check_topic(topic: str) -> str:
    """`topic`, or ConfigError saying why it can be none."""
    of_kind("subscriptions", topic, str)
    if fault := topic_name_fault(topic):
        raise ConfigError("subscriptions", topic, fault)
    return topic


def tag_subscription(topic: str, expression: str, version: int) -> SubscriptionData:
    """Messages of `topic` with one of the tags of `expression` (`a || b`, or `*` for all)."""
    check_topic(topic)
    if not isinstance(expression, str):
        fix = f'expected tags as one text ("a || b", or "*" for every message) for topic {topic}'
        raise ConfigError("subscriptions", expression, fix)
    wanted = tags.parse(expression)
    if wanted is not None and not wanted:
        raise ConfigError("subscriptions", expression, "name at least one tag, or * for every message")
    return SubscriptionData(
        code_set=tags.codes(wanted) or frozenset(),
        sub_string=expression,
        sub_version=version,
        tags_set=wanted or frozenset(),
        topic=topic,
    )
