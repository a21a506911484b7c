"""What the times of a message prove about the clock of its producer."""

from __future__ import annotations

import pytest
from client_script import message

from ariane.model.born_time import ClockDifference, compare_clocks
from ariane.model.message import TRANSACTION_COMMIT, MessageQueue
from ariane.model.quantities import duration_text

STORED_MS = 1_780_000_000_000
MINUTE_MS = 60_000
UNKNOWN = ClockDifference()


def compare(born_after_ms: int, **more: object) -> ClockDifference:
    return compare_clocks(message(1, store_ms=STORED_MS, born_ms=STORED_MS + born_after_ms, **more))


def test_a_message_born_after_it_was_stored_proves_a_clock_ahead() -> None:
    assert compare(90 * MINUTE_MS) == ClockDifference(ahead_ms=90 * MINUTE_MS)
    assert compare(1_001) == ClockDifference(ahead_ms=1_001)


def test_small_differences_are_no_statement() -> None:
    for born_after_ms in (1_000, 5, 0, -3_000, -MINUTE_MS):
        assert compare(born_after_ms) == UNKNOWN


def test_a_message_born_long_before_it_was_stored_proves_no_clock_behind() -> None:
    assert compare(-90 * MINUTE_MS) == ClockDifference(late_ms=90 * MINUTE_MS)


@pytest.mark.parametrize(
    "waited",
    [
        {"reconsume_times": 1},
        {"sys_flag": TRANSACTION_COMMIT},
        {"queue": MessageQueue("%RETRY%G", "a", 0)},
        {"queue": MessageQueue("%DLQ%G", "a", 0)},
        {"queue": MessageQueue("SCHEDULE_TOPIC_XXXX", "a", 17)},
        {"queue": MessageQueue("RMQ_SYS_TRANS_HALF_TOPIC", "a", 0)},
        {"properties": {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "0"}},
        {"properties": {"TIMER_DELIVER_MS": "1780000000000"}},
        {"properties": {"__STARTDELIVERTIME": "1780000000000"}},
        {"properties": {"RETRY_TOPIC": "T"}},
        {"properties": {"TRAN_MSG": "true"}},
    ],
)
def test_a_message_that_waited_at_a_broker_keeps_its_born_time(waited: dict[str, object]) -> None:
    assert compare(-90 * MINUTE_MS, **waited) == UNKNOWN
    # The store time is later than the send in any case, so that a clock ahead is still proved.
    assert compare(90 * MINUTE_MS, **waited) == ClockDifference(ahead_ms=90 * MINUTE_MS)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_500, "1.5 s"),
        (90 * MINUTE_MS, "1 h 30 min"),
        (90 * MINUTE_MS - 12, "1 h 30 min"),
        (90 * MINUTE_MS - 1_000, "1 h 29 min"),
        (3_600_000, "1 h"),
        (-25 * 3_600_000, "-1 d 1 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(ms: int, text: str) -> None:
    assert duration_text(ms) == text
