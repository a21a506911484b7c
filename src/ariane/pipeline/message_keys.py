"""trace_events → message_keys: which messages a business key, or an id of the broker, leads to.

    fold, as every table:   bucket → its terms, one file a bucket
    `merge_days`:           the buckets of a day, once they are quiet → one file a day, sorted by term

A question for a term has to look into every file, so there must be few. Rows are never taken back, only added: a bucket that is
folded again after its day was merged adds a file with rows that the day's file has too, until the next merge.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ariane.pipeline import table_publisher
from ariane.tables import MESSAGE_KEYS
from ariane.tables.table_format import BUCKET, DataFile, TableVersion, read_version
from ariane.tables.time_buckets import BUCKET_MS, bucket_start_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTLE_MS = 3_600_000  # after its end: until then most of what is late has come
MAX_UNMERGED_FILES = (
    24  # files of a day's buckets that may lie beside the day's file: four hours of them, or what came late
)
DAY_MS = 86_400_000
MAX_TERM_CHARS = 1024  # characters; what is longer is no key that anybody types


def message_keys(events: DataFrame) -> DataFrame:
    """Rows with the columns of MESSAGE_KEYS and `bucket`, of trace_events with `bucket`."""
    words = F.split(F.coalesce("keys", F.lit("")), r"\s+")
    terms = F.array_append(words, F.coalesce("offset_message_id", F.lit("")))
    told = events.select("bucket", "message_id", "trace_stored_at", F.explode(terms).alias("term"))
    known = told.where((F.col("term") != "") & (F.char_length("term") <= MAX_TERM_CHARS))
    rows = known.groupBy("bucket", "term", "message_id").agg(F.min("trace_stored_at").alias("first_traced_at"))
    rows = rows.withColumn("journey_bucket", F.col("bucket"))
    return rows.select(*(F.col(one.name).cast(one.type).alias(one.name) for one in MESSAGE_KEYS.columns), "bucket")


def merge_days(spark: SparkSession, home: Path, now_ms: int) -> TableVersion | None:
    """Merge the files of quiet buckets into one file a day, where a day has many of them or is over; None when there are
    none."""
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
        """How many files are left as they are: of a day that is over none, but what comes late after that is collected."""
        is_over = _begins(day) + DAY_MS + SETTLE_MS <= now_ms
        return 0 if is_over and day not in merged_before else MAX_UNMERGED_FILES

    many = {day: files for day, files in days.items() if len(files) > least(day)}
    if not many:
        return None
    merged = {file.bucket for files in many.values() for file in files} | set(many)
    frame = table_publisher.read_table(spark, home, MESSAGE_KEYS, lambda file: file.bucket in merged)
    rows = frame.withColumn(BUCKET, F.substring(BUCKET, 1, len("2026-11-21"))).distinct()
    return table_publisher.commit(
        rows, home, MESSAGE_KEYS, applied=former.applied, replaced=merged, as_of_ms=former.as_of_ms, now_ms=now_ms
    )


def day_of(bucket: str) -> str:
    """The name under which a bucket is merged: 2026-11-21, of 2026-11-21T1020."""
    return bucket.partition("T")[0]


def _begins(day: str) -> int:
    begin = bucket_start_ms(f"{day}T0000")
    assert begin is not None
    return begin
