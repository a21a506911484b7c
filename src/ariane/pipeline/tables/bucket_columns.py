"""`ariane.tables.time_buckets` as Spark expressions: the same buckets, computed in the JVM."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from ariane.tables.time_buckets import (
    BUCKET_MS,
    CANDIDATE_MONTHS,
    MAX_AHEAD_MS,
    MAX_COUNTED_MS,
    UNIQUE_ID,
    UNTIMED_BUCKETS,
)


def bucket_of_time(time: Column) -> Column:
    """Return the bucket of a TIMESTAMP."""
    begin = F.timestamp_millis(F.floor(F.unix_millis(time) / BUCKET_MS) * BUCKET_MS)
    return F.date_format(begin, "yyyy-MM-dd'T'HHmm")


def bucket_of_id(message_id: Column, reference: Column) -> Column:
    """Return the bucket of a message by its unique id; null if the id contains no time.

    `reference` is the broker time (TIMESTAMP) at which anything about the message was stored.
    """
    latest_ms = F.unix_millis(reference) + F.lit(MAX_AHEAD_MS)
    counted = F.conv(F.substring(message_id, -12, 8), 16, 10).cast("bigint")
    this_month = F.date_trunc("month", F.timestamp_millis(latest_ms))
    past = []
    for back in range(CANDIDATE_MONTHS):
        time_ms = F.unix_millis(F.add_months(this_month, -back).cast("timestamp")) + counted
        past.append(F.when(time_ms <= latest_ms, time_ms))
    has_time = message_id.rlike(f"^{UNIQUE_ID.pattern}$") & (counted <= MAX_COUNTED_MS)
    return F.when(has_time, bucket_of_time(F.timestamp_millis(F.greatest(*past))))


def bucket_of_message(message_id: Column, reference: Column) -> Column:
    """Return the bucket of a message by its id: by the time in the id, otherwise by a hash of the id."""
    number = F.format_string("unknown-%02d", F.crc32(message_id.cast("binary")) % F.lit(UNTIMED_BUCKETS))
    return F.coalesce(bucket_of_id(message_id, reference), number)
