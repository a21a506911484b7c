"""The lag of consumer groups: the one definition that commands, console, metrics, alerts and collector use. Pure.

    committed offset, or the start without one ─→ next_offset ─┐
    end of the queue ──────────────────────────────────────────┴→ queue_lag ─→ sum_lags ─→ LagSum

A group continues at its committed offset. Without one it starts at 0 while the broker still has the first message of the queue in
memory, as it answers to QUERY_CONSUMER_OFFSET. Otherwise it may start at the end, and its lag is unknown. Messages
that the broker has deleted since the committed offset are part of the lag, as in Java's tools. An offset beyond the end is a lag
of 0; Java's tools show a negative one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from ariane.model.topic import retry_topic
from ariane.protocol.requests.stats import QueueTimeSpan

KEEPING_UP_S = 10.0  # a lag of at most this many seconds of deliveries consists of messages in transit
AGE_MAX_MS = 40 * 365 * 86_400_000  # of a message; larger values come from an unknown store time


class LagSum(NamedTuple):
    """The lag of several queues.

    Attributes:
        minimum: Sum of the known lags: a lower bound; None if none is known.
        is_partial: Whether the lag of a queue is unknown.
    """

    minimum: int | None
    is_partial: bool

    @property
    def total(self) -> int | None:
        """Messages not consumed yet; None if the lag of a queue is unknown, or without queues."""
        return None if self.is_partial else self.minimum


def next_offset(committed: int | None, first: int, last: int, *, starts_first: bool = False) -> int | None:
    """Return the offset at which a group continues in a queue; None if that is unknown.

    Args:
        committed: Committed offset; None or negative: none.
        first: Min offset of the queue.
        last: Max offset of the queue: that of the next message.
        starts_first: Whether the broker answers that a group without a committed offset starts at 0.
    """
    if committed is not None and committed >= 0:
        return committed
    return 0 if last == 0 or (starts_first and first <= 0) else None


def has_unknown_start(committed: int | None, first: int, last: int) -> bool:
    """Return whether only the answer of the broker decides where a group continues in a queue."""
    return (committed is None or committed < 0) and first <= 0 < last


def queue_lag(offset: int | None, last: int) -> int | None:
    """Return the messages of a queue that a group has not consumed; None if the offset at which it continues is unknown."""
    return None if offset is None else max(0, last - offset)


def sum_lags(lags: Iterable[int | None], *, is_partial: bool = False) -> LagSum:
    """Return the sum of the lags of queues; `is_partial`: queues are missing."""
    minimum: int | None = None
    for lag in lags:
        if lag is None:
            is_partial = True
        else:
            minimum = (minimum or 0) + lag
    return LagSum(minimum, is_partial)


def is_consumed_topic(topic: str, group: str, subscribed: Collection[str], *, has_offsets: bool) -> bool:
    """Return whether the queues of a topic belong to the lag of a group.

    These are the topics that its clients subscribe to; while it is offline, those with committed offsets, and its retry topic. As
    in RocketMQ, the offsets of an online group in a topic that it does not subscribe to any more are ignored.

    Args:
        topic: An existing topic.
        group: The group.
        subscribed: Topics that its clients subscribe to; empty while it is offline.
        has_offsets: Whether the group has committed an offset in the topic.
    """
    if subscribed:
        return topic in subscribed
    return has_offsets or topic == retry_topic(group)


def oldest_age_ms(span: QueueTimeSpan) -> int | None:
    """Return the age of the first message that a group has not consumed, by the broker's clock; None if it is unknown.

    For a message that they cannot find, Java brokers report their time plus 1 ms. Without a committed offset they look for the one
    at -1, although the group starts at the first message, whose time they report as that of the last consumed one.
    """
    age_ms = span.delay_time
    if age_ms >= AGE_MAX_MS and span.consume_time_stamp == span.min_time_stamp > 0:
        age_ms -= 1 + span.min_time_stamp
    return age_ms if 0 <= age_ms < AGE_MAX_MS else None
