"""Buckets of messages by their ids: the same for all who know the id, whenever they tell of it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ariane.model import ids
from ariane.tables import time_buckets

DAY_MS = 86_400_000
NOV_1 = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1000)


def unique_id(counted: int) -> str:
    return f"7F0000010001AABBCCDD{counted:08X}0001"


def test_an_instant_is_in_the_ten_minutes_that_hold_it() -> None:
    ms = NOV_1 + 10 * 3_600_000
    assert time_buckets.bucket_of_time(ms) == time_buckets.bucket_of_time(ms + 599_999) == "2026-11-01T1000"
    assert time_buckets.bucket_of_time(ms + 600_000) == "2026-11-01T1010"
    assert time_buckets.bucket_start_ms("2026-11-01T1010") == ms + 600_000
    assert time_buckets.bucket_start_ms("unknown-03") is None


@given(
    born=st.integers(NOV_1, NOV_1 + 400 * DAY_MS),
    later=st.lists(st.integers(0, 20 * DAY_MS), min_size=2, max_size=5),
)
def test_news_of_a_message_come_into_the_slot_of_its_birth(born: int, later: list[int]) -> None:
    """With the ids that our own clients make, on a machine whose clock shows UTC."""
    begin = datetime.fromtimestamp(born / 1000, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    counted = born - int(begin.timestamp() * 1000)
    message_id = unique_id(counted)
    assert {time_buckets.bucket_of_id(message_id, born + wait) for wait in later} == {time_buckets.bucket_of_time(born)}


def test_a_client_far_in_the_east_counts_from_another_midnight() -> None:
    """It is the 1st of December there while it is still November here: one bucket, whoever tells it when."""
    born = NOV_1 + 30 * DAY_MS - 3_600_000  # 23:00 UTC, 07:00 of the next month for the client
    message_id = unique_id(7 * 3_600_000)
    assert (
        time_buckets.bucket_of_id(message_id, born)
        == time_buckets.bucket_of_id(message_id, born + 5 * DAY_MS)
        == "2026-12-01T0700"
    )


@pytest.mark.parametrize("message_id", ["", "A", "x" * 32, "7F000001" * 3, "FF" * 16])
def test_ids_that_tell_no_time(message_id: str) -> None:
    bucket = time_buckets.bucket_of_id(message_id, NOV_1)
    assert bucket.startswith("unknown-")
    assert bucket == time_buckets.bucket_of_id(message_id, NOV_1 + 50 * DAY_MS)


def test_our_own_ids_are_understood() -> None:
    born = ids.month_start_ms(NOV_1 + 5 * DAY_MS) + 4 * DAY_MS
    message_id = ids.unique_ids(lambda: born, ip="::1")()
    assert len(message_id) == 56
    assert not time_buckets.bucket_of_id(message_id, born).startswith("unknown-")


def test_every_slot_that_a_message_may_lie_in() -> None:
    message_id = unique_id(4 * DAY_MS)
    found = time_buckets.candidate_buckets(message_id, NOV_1, NOV_1 + 40 * DAY_MS)
    assert found == {"2026-10-05T0000", "2026-11-05T0000", "2026-12-05T0000"}
