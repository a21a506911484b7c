"""`ariane.tables.time_buckets` as Spark expressions: the same buckets, computed in the JVM."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
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


def compute_once(frame: DataFrame, **columns: Column) -> DataFrame:
    """Add columns that are computed once per row.

    Spark inlines a plain column into every expression that uses it. The output of a generator is not inlined.
    """
    return frame.select("*", F.inline(F.array(F.struct(*(column.alias(name) for name, column in columns.items())))))


def counted_ms(message_id: Column) -> Column:
    """Return the ms since the beginning of a month that a unique id contains; null for other ids."""
    counted = F.conv(F.substring(message_id, -12, 8), 16, 10).cast("bigint")
    return F.when(message_id.rlike(f"^{UNIQUE_ID.pattern}$"), counted)


def id_months(reference: Column) -> Column:
    """Return what `bucket_of_message` needs of a time: the latest time of an id, and the beginnings of its possible months.

    `reference` is the broker time (TIMESTAMP) at which anything about the message was stored.
    """
    latest_ms = F.unix_millis(reference) + F.lit(MAX_AHEAD_MS)
    latest = F.date_trunc("month", F.timestamp_millis(latest_ms))
    begins = (F.unix_millis(F.add_months(latest, -back).cast("timestamp")) for back in range(CANDIDATE_MONTHS))
    return F.struct(latest_ms.alias("latest_ms"), *(begin.alias(f"m{back}") for back, begin in enumerate(begins)))


def bucket_of_message(message_id: Column, counted: Column, months: Column) -> Column:
    """Return the bucket of a message by its id: by the time in the id, otherwise by a hash of the id.

    Both other arguments are columns that `compute_once` has added: `counted_ms` of the id, and `id_months`.
    """
    begins = [months[f"m{back}"] for back in range(CANDIDATE_MONTHS)]
    past = (F.when(counted <= months["latest_ms"] - begin, begin + counted) for begin in begins)
    of_id = F.when(counted <= MAX_COUNTED_MS, bucket_of_time(F.timestamp_millis(F.greatest(*past))))
    number = F.format_string("unknown-%02d", F.crc32(message_id.cast("binary")) % F.lit(UNTIMED_BUCKETS))
    return F.coalesce(of_id, number)


def add_message_bucket(frame: DataFrame, message_id: Column, reference: Column) -> DataFrame:
    """Add the column `bucket` of messages; `reference` as for `id_months`."""
    timed = compute_once(frame, counted_ms=counted_ms(message_id), id_months=id_months(reference))
    bucket = bucket_of_message(message_id, F.col("counted_ms"), F.col("id_months"))
    return timed.withColumn("bucket", bucket).drop("counted_ms", "id_months")
