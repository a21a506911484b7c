"""Columns have the buckets that `time_buckets` computes one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ariane.pipeline.tables import bucket_columns
from ariane.tables import time_buckets

T0_MS = 1_700_000_000_000
DAY_MS = 86_400_000
HEX = st.text("0123456789abcdefABCDEF", min_size=4, max_size=4)
COUNTED = st.integers(0, 34 * DAY_MS).map(lambda ms: f"{ms:08X}")
UNIQUE_IDS = st.builds(lambda head, counted, end: head * 5 + counted + end, HEX, COUNTED, HEX)
IDS = st.one_of(
    UNIQUE_IDS, UNIQUE_IDS.map(lambda text: "0" * 24 + text), UNIQUE_IDS.map(lambda text: text + "\n"), st.text()
)
NEAR_MS = st.integers(T0_MS, T0_MS + 400 * DAY_MS)


@given(st.lists(st.tuples(IDS, NEAR_MS)))
def test_messages_are_in_the_buckets_of_their_ids(cases: list[tuple[str, int]]) -> None:
    ids = pa.array([message_id for message_id, _ in cases], pa.string())
    near_ms = np.array([ms for _, ms in cases], np.int64)
    expected = [time_buckets.bucket_of_id(message_id, ms) for message_id, ms in cases]
    assert bucket_columns.buckets_of_messages(ids, near_ms).to_pylist() == expected


@given(st.lists(st.integers(0, bucket_columns.LATEST_MS)))
def test_rows_are_in_the_buckets_of_their_times(times_ms: list[int]) -> None:
    expected = [time_buckets.bucket_of_time(ms) for ms in times_ms]
    assert bucket_columns.buckets_of_times(np.array(times_ms, np.int64)).to_pylist() == expected


@given(st.integers(-(2**62), 2**62))
def test_no_time_is_refused(ms: int) -> None:
    (bucket,) = bucket_columns.buckets_of_messages(pa.array(["0" * 32]), np.array([ms])).to_pylist()
    assert time_buckets.bucket_start_ms(bucket) is not None
