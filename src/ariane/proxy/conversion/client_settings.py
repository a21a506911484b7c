"""Settings that clients and server exchange by Telemetry. [ClientSettingsManager of the proxy]

A client is useless without the answer: it starts with it, and takes back-off, batch size and polling time from it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from ariane.filter import tags
from ariane.model.topic import ExponentialRetry, GroupRetryPolicy, SubscriptionGroupConfig
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.messaging import EXPRESSION_MAX, SQL92, TAG
from ariane.proxy import api
from ariane.proxy.conversion import field_checks
from ariane.proxy.conversion.grpc_statuses import CallRefused, StatusCode

RECEIVE_BATCH = 32
LONG_POLLING_S = 20
REQUEST_TIMEOUT_MS = 3_000
PRODUCER_ATTEMPTS = 3
PRODUCER_BACKOFF = {"initial": {"nanos": 10_000_000}, "max": {"seconds": 1}, "multiplier": 2.0}
# Back-off of push consumers by attempt: the first failure is followed by 1 s. A group may have another.
RETRY_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
RETRY_MS = tuple(seconds * 1_000 for seconds in RETRY_S)
DEFAULT_RETRY = GroupRetryPolicy()
FILTER_SQL = 2  # FilterType
SHOWN_MAX = 255  # characters of a property


class ClientKind(IntEnum):
    """ClientType of the protocol."""

    PRODUCER = 1
    PUSH_CONSUMER = 2
    SIMPLE_CONSUMER = 3
    PULL_CONSUMER = 4


CONSUMERS = (ClientKind.PUSH_CONSUMER, ClientKind.SIMPLE_CONSUMER)


class ReportedSettings(msgspec.Struct, frozen=True):
    """What the server needs of a client's settings."""

    kind: ClientKind
    topics: tuple[str, ...] = ()
    """Of a producer, whose transactions are checked with it."""
    group: str = ""
    """Of a consumer."""
    subscriptions: tuple[SubscriptionData, ...] = ()
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    properties: dict[str, str] = {}
    """What tools show of the client."""


def parse(settings: Any, now_ms: int) -> ReportedSettings:
    """Return the settings of a client. Raise CallRefused if they are incomplete or name something that cannot exist."""
    kind = client_kind(settings.client_type)
    timeout_ms = settings.request_timeout.ToMilliseconds() or REQUEST_TIMEOUT_MS
    which = settings.WhichOneof("pub_sub")
    if which is None:
        text = "the settings have neither publishing nor subscription data"
        raise CallRefused(StatusCode.BAD_REQUEST, text)
    if which == "publishing":
        field_checks.check_entries(settings.publishing.topics)
        topics = tuple(dict.fromkeys(field_checks.topic_name(topic) for topic in settings.publishing.topics))
        return ReportedSettings(kind, topics=topics, request_timeout_ms=timeout_ms, properties=_shown(settings))
    if kind not in CONSUMERS:
        raise CallRefused(StatusCode.UNRECOGNIZED_CLIENT_TYPE, f"Client type is not consumer, type: {kind.name}")
    subscription = settings.subscription
    field_checks.check_entries(subscription.subscriptions)
    return ReportedSettings(
        kind,
        group=field_checks.group_name(subscription.group),
        subscriptions=tuple(
            subscription_data(each.topic, each.expression, now_ms) for each in subscription.subscriptions
        ),
        request_timeout_ms=timeout_ms,
        properties=_shown(settings),
    )


def _shown(settings: Any) -> dict[str, str]:
    agent = settings.user_agent
    texts = {
        "PROP_CLIENT_VERSION": agent.version,
        "platform": agent.platform,
        "hostName": agent.hostname,
        "requestTimeout": str(settings.request_timeout.ToMilliseconds() or ""),
    }
    return {name: text[:SHOWN_MAX] for name, text in texts.items() if text}


def client_kind(number: int) -> ClientKind:
    """Return the kind of a client. Raise CallRefused for one that is not served."""
    try:
        return ClientKind(number)
    except ValueError:
        text = f"Client type {number} is not supported: expected a producer, a push consumer or a simple consumer"
        raise CallRefused(StatusCode.UNRECOGNIZED_CLIENT_TYPE, text) from None


def subscription_data(topic: Any, expression: Any, now_ms: int) -> SubscriptionData:
    """Return a subscription, as heartbeats of remoting clients have it. Raise CallRefused if a tag expression has no tag."""
    name, text = field_checks.topic_name(topic), expression.expression.strip() or tags.ALL
    if len(text) > EXPRESSION_MAX:
        reason = f"Invalid filter expression of {len(text)} characters: expected at most {EXPRESSION_MAX}"
        raise CallRefused(StatusCode.ILLEGAL_FILTER_EXPRESSION, reason)
    if expression.type == FILTER_SQL:
        return SubscriptionData(expression_type=SQL92, sub_string=text, sub_version=now_ms, topic=name)
    selected = tags.parse(text)
    if selected is not None and not selected:
        raise CallRefused(StatusCode.ILLEGAL_FILTER_EXPRESSION, f"Invalid tag expression {text[:100]!r}: it has no tag")
    return SubscriptionData(
        code_set=tags.codes(selected) or frozenset(),
        expression_type=TAG,
        sub_string=text,
        sub_version=now_ms,
        tags_set=selected or frozenset(),
        topic=name,
    )


def answer(
    settings: Any, reported: ReportedSettings, body_bytes_max: int, group: SubscriptionGroupConfig | None
) -> Any:
    """Return the settings that a client has to use: its own, with those that the server decides.

    Args:
        settings: Settings of the client.
        reported: The same, parsed.
        body_bytes_max: Largest body of a message.
        group: Of a consumer.
    """
    answered = api.Settings()
    answered.CopyFrom(settings)
    answered.metric.SetInParent()  # present and off
    answered.backoff_policy.Clear()
    if group is None:
        answered.publishing.max_body_size = body_bytes_max
        # Checked by the server, too; a client that does not check may send to topics that it does not know yet.
        answered.publishing.validate_message_type = True
        answered.backoff_policy.max_attempts = PRODUCER_ATTEMPTS
        answered.backoff_policy.exponential_backoff.CopyFrom(api.ExponentialBackoff(**PRODUCER_BACKOFF))
        return answered
    answered.subscription.fifo = group.is_ordered
    answered.subscription.receive_batch_size = RECEIVE_BATCH
    answered.subscription.long_polling_timeout.seconds = LONG_POLLING_S
    answered.backoff_policy.max_attempts = max_attempts(group)
    _set_backoff(answered.backoff_policy, group.group_retry_policy or DEFAULT_RETRY)
    return answered


def _set_backoff(backoff: Any, policy: GroupRetryPolicy) -> None:
    """Set when attempts of a group follow each other. Clients cannot use a policy without values.

    No delay is longer than an invisible time may be: push consumers repeat a refused change each second.
    """
    if policy.type == "EXPONENTIAL":
        retry = policy.exponential_retry_policy or ExponentialRetry()
        backoff.exponential_backoff.initial.FromMilliseconds(min(retry.initial, field_checks.INVISIBLE_MS_MAX))
        backoff.exponential_backoff.max.FromMilliseconds(min(retry.max, field_checks.INVISIBLE_MS_MAX))
        backoff.exponential_backoff.multiplier = retry.multiplier
        return
    delays = policy.customized_retry_policy.next if policy.customized_retry_policy else RETRY_MS
    for delay_ms in delays:
        backoff.customized_backoff.next.add().FromMilliseconds(min(delay_ms, field_checks.INVISIBLE_MS_MAX))


def max_attempts(group: SubscriptionGroupConfig) -> int:
    """Return how often a message is delivered to a group before it becomes a dead letter."""
    return group.retry_max_times + 1
