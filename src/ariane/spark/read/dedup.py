"""Deduplication on the reading side of at-least-once writes: keeps one row of those that the sink wrote twice.

    drop_duplicates(spark.read.format("rocketmq")…load())                       the whole frame
    drop_duplicates(spark.readStream.format("rocketmq")…load(), "1 hour")       copies read within an hour of each other

Two rows are copies if they have the same ARIANE_DEDUP property: run, batch, partition and sequence of the row that was
written. Messages of other producers lack the property and are all retained, except that the same stored message read twice
counts as one.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ariane.errors import ConfigError
from ariane.model.dedup import DEDUP

REQUIRED_COLUMNS = ("topic", "broker", "queue_id", "queue_offset", "properties")
DEDUP_COLUMN, READ_AT_COLUMN = "_ariane_row", "_ariane_read_at"  # temporary columns, dropped from the result


def drop_duplicates(frame: DataFrame, within: str = "") -> DataFrame:
    """Return `frame` with one row of each group of copies.

    Args:
        frame: A batch or streaming frame with the columns topic, broker, queue_id, queue_offset and properties.
        within: For streams only, and required there: how long a row is remembered after it was read, for example "1 hour".
            Copies that are read later than that are not recognised.

    Raises:
        ConfigError: a required column is missing, or `within` does not fit the kind of frame.

    Example:
        >>> drop_duplicates(spark.read.format("rocketmq").options(namesrv="127.0.0.1:9876", topic="orders").load())
    """
    if missing := [name for name in REQUIRED_COLUMNS if name not in frame.columns]:
        fix = f"required to identify messages; the frame has only {', '.join(frame.columns)}"
        raise ConfigError("columns", ", ".join(missing), fix)
    if within and not frame.isStreaming:
        raise ConfigError(
            "within",
            within,
            "only for streaming frames: a batch is always deduplicated completely; remove the argument",
        )
    if frame.isStreaming and not within.strip():
        raise ConfigError(
            "within", within, 'required for streaming frames, to bound the state: pass a duration such as "1 hour"'
        )
    stored_position = F.to_json(F.struct("topic", "broker", "queue_id", "queue_offset"))
    dedup_key = F.coalesce(F.concat(F.lit(f"{DEDUP} "), F.col("properties")[DEDUP]), stored_position)
    keyed = frame.withColumn(DEDUP_COLUMN, dedup_key)
    if frame.isStreaming:
        timed = keyed.withColumn(READ_AT_COLUMN, F.current_timestamp()).withWatermark(READ_AT_COLUMN, within)
        return timed.dropDuplicatesWithinWatermark([DEDUP_COLUMN]).drop(DEDUP_COLUMN, READ_AT_COLUMN)
    return keyed.dropDuplicates([DEDUP_COLUMN]).drop(DEDUP_COLUMN)
