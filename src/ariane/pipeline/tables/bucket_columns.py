"""`ariane.tables.time_buckets` for columns: the same buckets, of Arrow arrays and of a Spark column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ariane.tables import TableSchema
from ariane.tables.arrow_types import arrow_schema
from ariane.tables.table_format import BUCKET
from ariane.tables.time_buckets import (
    BUCKET_MS,
    CANDIDATE_MONTHS,
    MAX_AHEAD_MS,
    MAX_COUNTED_MS,
    UNIQUE_ID,
    bucket_of_time,
    untimed_bucket,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import Column

    Ms = NDArray[np.int64]

COUNTED = slice(-12, -4)  # digits of a unique id: ms since the beginning of a month, in hex
# 1970 and 9999: buckets have a year of four digits, and brokers and clients may have stored any time.
EARLIEST_MS, LATEST_MS = 0, 253_370_764_800_000


def time_bucket(time: Column) -> Column:
    """Return the bucket of a TIMESTAMP."""
    from pyspark.sql import functions as F

    begin = F.timestamp_millis(F.floor(F.unix_millis(time) / BUCKET_MS) * BUCKET_MS)
    return F.date_format(begin, "yyyy-MM-dd'T'HHmm")


def with_buckets(rows: pa.Table, table: TableSchema, buckets: pa.StringArray | pa.ChunkedArray) -> pa.Table:
    """Return the columns of a table from rows that have them, in its types, and `bucket`."""
    return rows.select(table.column_names).cast(arrow_schema(table)).append_column(BUCKET, buckets)


def ms_of_times(times: pa.Array) -> Ms:
    """Return the ms since the epoch of timestamps, none of them null."""
    return np.asarray(times.cast(pa.timestamp("us", "UTC")).cast(pa.int64())) // 1000


def buckets_of_times(ms: Ms) -> pa.StringArray:
    """Return the bucket of each instant, in ms since the epoch."""
    begins, numbers = np.unique(np.clip(ms, EARLIEST_MS, LATEST_MS) // BUCKET_MS * BUCKET_MS, return_inverse=True)
    return pa.array([bucket_of_time(int(begin)) for begin in begins], pa.string()).take(pa.array(numbers))


def buckets_of_messages(message_ids: pa.StringArray, near_ms: Ms) -> pa.StringArray:
    """Return the bucket of each message, as `time_buckets.bucket_of_id` does.

    Args:
        message_ids: unique ids, none of them null.
        near_ms: broker times at which anything about the messages was stored, ms since the epoch.
    """
    counted_ms = _counted_ms(message_ids)
    is_timed = (counted_ms >= 0) & (counted_ms <= MAX_COUNTED_MS)
    latest_ms = np.clip(near_ms, EARLIEST_MS, LATEST_MS) + MAX_AHEAD_MS
    month = latest_ms.astype("datetime64[ms]").astype("datetime64[M]")
    ms = np.full(len(counted_ms), EARLIEST_MS)
    # The latest month that is not too far ahead, so the earliest one first.
    for back in reversed(range(CANDIDATE_MONTHS)):
        candidate_ms = (month - back).astype("datetime64[ms]").astype(np.int64) + counted_ms
        ms = np.where(candidate_ms <= latest_ms, candidate_ms, ms)
    of_time = buckets_of_times(ms)
    if is_timed.all():
        return of_time
    untimed = pa.array(
        [
            None if has_time else untimed_bucket(text)
            for has_time, text in zip(is_timed, message_ids.to_pylist(), strict=True)
        ],
        pa.string(),
    )
    return pc.coalesce(untimed, of_time)


def _counted_ms(message_ids: pa.StringArray) -> Ms:
    """Return the ms since the beginning of a month that unique ids contain; -1 for other ids."""
    is_unique = pc.match_substring_regex(message_ids, f"^{UNIQUE_ID.pattern}$")
    counted_ms = np.full(len(message_ids), -1)
    digits = pc.utf8_slice_codeunits(message_ids.filter(is_unique), COUNTED.start, COUNTED.stop)
    counted_ms[np.asarray(is_unique)] = [int(text, 16) for text in digits.to_pylist()]
    return counted_ms
