"""The reader's side of at-least-once writing: one row of those that the sink wrote twice. DataFrame → DataFrame.

    drop_duplicates(spark.read.format("rocketmq")…load())                       the whole frame
    drop_duplicates(spark.readStream.format("rocketmq")…load(), "1 hour")       copies read within an hour of each other

Two rows are copies when their property ARIANE_DEDUP is the same: run, batch, partition and sequence of the row that was
written. Messages without it (other producers') all stay, except that the same stored message, read twice, is one.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ariane.errors import ConfigError
from ariane.model.dedup import DEDUP

REQUIRED_COLUMNS = ("topic", "broker", "queue_id", "queue_offset", "properties")
DEDUP_COLUMN, READ_AT_COLUMN = "_ariane_row", "_ariane_read_at"  # columns that live only within


def drop_duplicates(frame: DataFrame, within: str = "") -> DataFrame:
    """`frame` with one of all copies of a row. `within`, for streams, is how long a row is remembered after it was read: copies
    that are read later come through.

    The time is that of the reading. By the time of storing, rows of a queue that lags behind another would be late for Spark,
    and it drops late rows whether they are copies or not.
    """
    if missing := [name for name in REQUIRED_COLUMNS if name not in frame.columns]:
        fix = f"are needed to tell messages apart; the frame has {', '.join(frame.columns)}"
        raise ConfigError("columns", ", ".join(missing), fix)
    if within and not frame.isStreaming:
        raise ConfigError("within", within, "is for streams: a batch leaves out all copies in the frame")
    if frame.isStreaming and not within.strip():
        raise ConfigError("within", within, 'a stream cannot remember for ever: give a time, such as "1 hour"')
    stored_position = F.to_json(F.struct("topic", "broker", "queue_id", "queue_offset"))
    dedup_key = F.coalesce(F.concat(F.lit(f"{DEDUP} "), F.col("properties")[DEDUP]), stored_position)
    keyed = frame.withColumn(DEDUP_COLUMN, dedup_key)
    if frame.isStreaming:
        timed = keyed.withColumn(READ_AT_COLUMN, F.current_timestamp()).withWatermark(READ_AT_COLUMN, within)
        return timed.dropDuplicatesWithinWatermark([DEDUP_COLUMN]).drop(DEDUP_COLUMN, READ_AT_COLUMN)
    return keyed.dropDuplicates([DEDUP_COLUMN]).drop(DEDUP_COLUMN)
