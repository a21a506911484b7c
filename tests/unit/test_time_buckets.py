"""Time buckets of messages by their ids: equal for every record of a message, at any time."""

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


def test_a_time_belongs_to_its_ten_minute_bucket() -> None:
    ms = NOV_1 + 10 * 3_600_000
    assert time_buckets.bucket_of_time(ms) == time_buckets.bucket_of_time(ms + 599_999) == "2026-11-01T1000"
    assert time_buckets.bucket_of_time(ms + 600_000) == "2026-11-01T1010"
    assert time_buckets.bucket_start_ms("2026-11-01T1010") == ms + 600_000
    for untimed in ("unknown-03", "2026-11-21", "2026-13-21T1020", "timer-07-000012"):
        assert time_buckets.bucket_start_ms(untimed) is None


@given(
    born=st.integers(NOV_1, NOV_1 + 400 * DAY_MS),
    later=st.lists(st.integers(0, 20 * DAY_MS), min_size=2, max_size=5),
)
def test_events_of_a_message_belong_to_the_bucket_of_its_creation(born: int, later: list[int]) -> None:
    """With ids of Ariane's clients, on a machine in UTC."""
    begin = datetime.fromtimestamp(born / 1000, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    counted = born - int(begin.timestamp() * 1000)
    message_id = unique_id(counted)
    assert {time_buckets.bucket_of_id(message_id, born + wait) for wait in later} == {time_buckets.bucket_of_time(born)}


def test_a_bucket_does_not_depend_on_the_clients_time_zone() -> None:
    """It is December 1 at the client and November 30 in UTC: one bucket, whenever an event is recorded."""
    born = NOV_1 + 30 * DAY_MS - 3_600_000  # 23:00 UTC, 07:00 of the next month for the client
    message_id = unique_id(7 * 3_600_000)
    assert (
        time_buckets.bucket_of_id(message_id, born)
        == time_buckets.bucket_of_id(message_id, born + 5 * DAY_MS)
        == "2026-12-01T0700"
    )


@pytest.mark.parametrize("message_id", ["", "A", "x" * 32, "7F000001" * 3, "FF" * 16])
def test_ids_without_a_time_belong_to_an_unknown_bucket(message_id: str) -> None:
    bucket = time_buckets.bucket_of_id(message_id, NOV_1)
    assert bucket.startswith("unknown-")
    assert bucket == time_buckets.bucket_of_id(message_id, NOV_1 + 50 * DAY_MS)


def test_ids_of_arianes_clients_are_parsed() -> None:
    born = ids.month_start_ms(NOV_1 + 5 * DAY_MS) + 4 * DAY_MS
    message_id = ids.unique_ids(lambda: born, ip="::1")()
    assert len(message_id) == 56
    assert not time_buckets.bucket_of_id(message_id, born).startswith("unknown-")


def test_candidate_buckets_of_an_id_cover_every_month() -> None:
    message_id = unique_id(4 * DAY_MS)
    result = time_buckets.candidate_buckets(message_id, NOV_1, NOV_1 + 40 * DAY_MS)
    assert result == {"2026-10-05T0000", "2026-11-05T0000", "2026-12-05T0000"}
