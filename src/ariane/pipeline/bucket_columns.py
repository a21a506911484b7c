"""`ariane.tables.time_buckets` as Spark's expressions: the same slots, without a row going through Python."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from ariane.tables.time_buckets import AHEAD_MS, COUNTED_MAX_MS, MONTHS, SPAN_MS, UNIQUE_ID, UNKNOWN


def of_time(time: Column) -> Column:
    """The slot of a TIMESTAMP."""
    begin = F.timestamp_millis(F.floor(F.unix_millis(time) / SPAN_MS) * SPAN_MS)
    return F.date_format(begin, "yyyy-MM-dd'T'HHmm")


def of_id(message_id: Column, near: Column) -> Column:
    """The slot of a message by its unique id, of which something was stored at `near` (TIMESTAMP); null for an id that
    tells no time."""
    latest_ms = F.unix_millis(near) + F.lit(AHEAD_MS)
    counted = F.conv(F.substring(message_id, -12, 8), 16, 10).cast("bigint")
    this_month = F.date_trunc("month", F.timestamp_millis(latest_ms))
    past = []
    for back in range(MONTHS):
        at = F.unix_millis(F.add_months(this_month, -back).cast("timestamp")) + counted
        past.append(F.when(at <= latest_ms, at))
    tells = message_id.rlike(f"^{UNIQUE_ID.pattern}$") & (counted <= COUNTED_MAX_MS)
    return F.when(tells, of_time(F.timestamp_millis(F.greatest(*past))))


def of_message(message_id: Column, near: Column) -> Column:
    """The slot of a message by its id; a slot by a hash of the id where it tells no time."""
    number = F.format_string("unknown-%02d", F.crc32(message_id.cast("binary")) % F.lit(UNKNOWN))
    return F.coalesce(of_id(message_id, near), number)
