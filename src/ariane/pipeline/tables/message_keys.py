"""trace_events → message_keys: index from business keys and broker ids to messages.

    like all computed tables:   bucket → its terms, one file per bucket
    `merge_days`:               the settled buckets of a day → one file per day, sorted by term

A lookup has to search every file, so there must be few. Rows are only added: a bucket that is rebuilt after its day was merged
adds a file with rows that the day's file contains as well, until the next merge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ariane.pipeline.publishing import table_publisher
from ariane.tables import MESSAGE_KEYS
from ariane.tables.table_format import BUCKET, DataFile, TableVersion
from ariane.tables.table_home import Home
from ariane.tables.table_store import read_version
from ariane.tables.time_buckets import BUCKET_MS, bucket_start_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTLE_MS = 3_600_000  # after its end, most late rows have arrived
MAX_UNMERGED_FILES = 24  # unmerged files per day next to the day's file: buckets of four hours, or of late rows
DAY_MS = 86_400_000
MAX_TERM_CHARS = 1024  # longer words are not keys that anyone searches for


def message_keys(events: DataFrame) -> DataFrame:
    """Return rows with the columns of MESSAGE_KEYS and `bucket`, from trace_events with `bucket`."""
    words = F.split(F.coalesce("keys", F.lit("")), r"\s+")
    terms = F.array_append(words, F.coalesce("offset_message_id", F.lit("")))
    traced = events.select("bucket", "message_id", "trace_stored_at", F.explode(terms).alias("term"))
    indexed = traced.where((F.col("term") != "") & (F.char_length("term") <= MAX_TERM_CHARS))
    rows = indexed.groupBy("bucket", "term", "message_id").agg(F.min("trace_stored_at").alias("first_traced_at"))
    rows = rows.withColumn("journey_bucket", F.col("bucket"))
    return rows.select(
        *(F.col(column.name).cast(column.type).alias(column.name) for column in MESSAGE_KEYS.columns), "bucket"
    )


def merge_days(spark: SparkSession, home: Home, now_ms: int) -> TableVersion | None:
    """Merge the files of settled buckets into one file per day; return None if no day needs it.

    A day needs it when it is over, or when it has more than `MAX_UNMERGED_FILES`.
    """
    former = read_version(home, MESSAGE_KEYS)
    if former is None:
        return None
    days: dict[str, list[DataFile]] = {}
    for file in former.files:
        begin = bucket_start_ms(file.bucket)
        if begin is not None and begin + BUCKET_MS + SETTLE_MS <= now_ms:
            days.setdefault(day_of(file.bucket), []).append(file)
    merged_before = {file.bucket for file in former.files}

    def least(day: str) -> int:
        """Return how many files may stay unmerged: none after the end of a day, except for rows that arrive later still."""
        is_over = _begins(day) + DAY_MS + SETTLE_MS <= now_ms
        return 0 if is_over and day not in merged_before else MAX_UNMERGED_FILES

    due_days = {day: files for day, files in days.items() if len(files) > least(day)}
    if not due_days:
        return None
    merged = {file.bucket for files in due_days.values() for file in files} | set(due_days)
    frame = table_publisher.read_table(spark, home, MESSAGE_KEYS, lambda file: file.bucket in merged)
    rows = frame.withColumn(BUCKET, F.substring(BUCKET, 1, len("2026-11-21"))).distinct()
    change = table_publisher.TableChange(frame=rows, applied=former.applied, replaced=merged, as_of_ms=former.as_of_ms)
    return table_publisher.commit(home, MESSAGE_KEYS, change, now_ms)


def day_of(bucket: str) -> str:
    """Return the name of the merged bucket: 2026-11-21 for 2026-11-21T1020."""
    return bucket.partition("T")[0]


def _begins(day: str) -> int:
    begin = bucket_start_ms(f"{day}T0000")
    assert begin is not None
    return begin
