"""The definition of lag: where groups continue, sums with unknown parts, topics that count, ages of Java brokers."""

from __future__ import annotations

import pytest

from ariane.cluster.lag import (
    LagSum,
    has_unknown_start,
    is_consumed_topic,
    next_offset,
    oldest_age_ms,
    queue_lag,
    sum_lags,
)
from ariane.protocol.requests.clients import WireQueue
from ariane.protocol.requests.stats import QueueTimeSpan

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("committed", "first", "last", "starts_first", "lag"),
    [
        (4, 0, 9, False, 5),
        (9, 0, 9, False, 0),
        (12, 0, 9, False, 0),  # beyond the end: the topic was created again
        (0, 0, 9, False, 9),
        (2, 5, 9, False, 7),  # messages that were deleted count, as in Java's tools
        (None, 0, 0, False, 0),
        (None, 0, 9, True, 9),
        (None, 0, 9, False, None),
        (None, 5, 9, True, None),  # the first message was deleted since the broker answered
        (-1, 0, 9, False, None),
        (-1, 0, 9, True, 9),
    ],
)
def test_lag_of_a_queue(committed: int | None, first: int, last: int, starts_first: bool, lag: int | None) -> None:
    assert queue_lag(next_offset(committed, first, last, starts_first=starts_first), last) == lag


def test_only_the_broker_can_tell_the_start_of_queues_with_their_first_message() -> None:
    cases = {(None, 0, 9): True, (-1, 0, 9): True, (0, 0, 9): False, (None, 1, 9): False, (None, 0, 0): False}
    assert {case: has_unknown_start(*case) for case in cases} == cases


@pytest.mark.parametrize(
    ("lags", "expected", "total"),
    [
        ([], LagSum(None, False), None),
        ([0, 5], LagSum(5, False), 5),
        ([None, 5], LagSum(5, True), None),
        ([None], LagSum(None, True), None),
    ],
)
def test_a_sum_with_an_unknown_part_is_a_lower_bound(
    lags: list[int | None], expected: LagSum, total: int | None
) -> None:
    assert sum_lags(lags) == expected
    assert sum_lags(lags).total == total
    assert sum_lags(lags, is_partial=True).total is None


def test_topics_of_a_group() -> None:
    def consumed(topic: str, subscribed: set[str], *, has_offsets: bool) -> bool:
        return is_consumed_topic(topic, "G", subscribed, has_offsets=has_offsets)

    assert consumed("T", set(), has_offsets=True)
    assert not consumed("T", set(), has_offsets=False)
    assert consumed("%RETRY%G", set(), has_offsets=False)
    assert consumed("T", {"T"}, has_offsets=False)
    assert not consumed("old", {"T"}, has_offsets=True)
    assert not consumed("%RETRY%G", {"T"}, has_offsets=False)  # a group that broadcasts, for example


@pytest.mark.parametrize(
    ("delay", "consumed", "first", "age"),
    [
        (4_100, 50, 10, 4_100),
        (-1, -1, 10, None),  # our broker, message not found
        (NOW_MS + 1, NOW_MS - 9_000, NOW_MS - 9_000, 9_000),  # Java broker, no committed offset
        (NOW_MS + 1, -1, NOW_MS - 9_000, None),  # Java broker, the message was deleted
        (NOW_MS + 1, -1, -1, None),
    ],
)
def test_age_of_the_first_message_that_is_not_consumed(delay: int, consumed: int, first: int, age: int | None) -> None:
    span = QueueTimeSpan(consumed, "", delay, NOW_MS, "", WireQueue("b", 0, "T"), first, "")
    assert oldest_age_ms(span) == age
