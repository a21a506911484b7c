"""The histogram of due times."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ariane.console.areas.delays.delayed import BUCKET_WIDTHS_MS, BUCKETS_MAX, due_buckets

HOUR_MS = 3_600_000


def test_without_messages_there_is_no_bucket() -> None:
    assert due_buckets([])[1] == []


def test_equal_times_are_one_bucket() -> None:
    width, buckets = due_buckets([HOUR_MS + 1, HOUR_MS + 2])
    assert (width, [(bucket.start_ms, bucket.messages) for bucket in buckets]) == (1_000, [(HOUR_MS, 2)])


def test_a_day_has_buckets_of_an_hour_including_empty_ones() -> None:
    width, buckets = due_buckets([0, 23 * HOUR_MS])
    assert (width, len(buckets), buckets[1].messages) == (HOUR_MS, 24, 0)


@given(st.lists(st.integers(0, 4 * 10**12), min_size=1, max_size=50))
def test_every_message_is_in_its_bucket(times: list[int]) -> None:
    width, buckets = due_buckets(times)
    assert len(buckets) <= BUCKETS_MAX
    assert width in BUCKET_WIDTHS_MS or width % BUCKET_WIDTHS_MS[-1] == 0
    for bucket in buckets:
        assert bucket.messages == sum(bucket.start_ms <= time < bucket.start_ms + width for time in times)
    assert sum(bucket.messages for bucket in buckets) == len(times)
    assert all(second.start_ms - first.start_ms == width for first, second in itertools.pairwise(buckets))
