"""Stored records → messages, record_positions, position_marks: the input of all tables that need more than traces.

    records of all topics ─→ messages           headers, in the bucket of their message
                          └→ record_positions   half messages, timers, and marks that refer to them by offset ─→ position_marks

The bucket of a record is that of its unique id; without one, that of its store time. For a message with a long delay the month of
the id is determined by the born time, because its records may be stored more than a month later. The record of Ariane's brokers
that cancels a timer becomes one of the cancelled message, as it is in Apache's.
"""

from __future__ import annotations

import re

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ariane.model.message import (
    DELAY,
    START_DELIVER_TIME,
    TAGS,
    TIMER_CANCELS,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
)
from ariane.model.topic import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SAMPLES_TOPIC,
    SCHEDULE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
)
from ariane.pipeline.tables import bucket_columns
from ariane.spark.records.record_columns import COLUMNS
from ariane.tables import MESSAGES, POSITION_MARKS, RECORD_POSITIONS
from ariane.tables.declarations.record_positions import BROKER_HASHES, MARK, OFFSETS_PER_BUCKET, RECORD

# System topics with information about messages. Traces and samples are separate sources.
READ_SYSTEM_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC)
_UNREAD = (SYSTEM_TOPICS | {SAMPLES_TOPIC}) - set(READ_SYSTEM_TOPICS)

# The columns of the source that exist in this version of it; others are null. `body_error` is selected so that a body that cannot
# be decompressed yields a null length instead of a failed query.
SCHEMA = ", ".join(
    f"{name} {COLUMNS[name][1]}" for name in (*MESSAGES.column_names, "body", "body_error") if name in COLUMNS
)

TIMERS, CANCELS = 0, 1  # queues of the timer topic
OP_TAG = "d"
# A delay beyond this, without a requested delay, is more likely caused by a producer's wrong clock.
LONG_MS = 3 * 86_400_000
DELAYS = (START_DELIVER_TIME, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS)


def options(*topics: str) -> dict[str, str]:
    """Return the topic options of format("rocketmq"): all topics with messages, except `topics` (other traces and samples)."""
    unread = "|".join(map(re.escape, sorted(_UNREAD.union(topics))))
    pattern = f"(?:{'|'.join(READ_SYSTEM_TOPICS)}|(?!(?:{unread})$|{SYSTEM_TOPIC_PREFIX}).+)"
    # Of all other records the length of the body is enough.
    return {"topicsPattern": pattern, "includeSystemTopics": "true", "topicsWithBody": OP_HALF_TOPIC}


def decode_records(batch: DataFrame) -> DataFrame:
    """Return a micro-batch with the columns of MESSAGES, `bucket`, and `means`: the queue offsets that a mark refers to."""
    properties = F.col("properties")
    body = F.make_valid_utf8(F.col("body").cast("string"))
    ends = F.when((F.col("topic") == OP_HALF_TOPIC) & (properties[TAGS] == OP_TAG), F.split(body, ","))
    cancels = F.when(
        (F.col("topic") == TIMER_TOPIC) & (F.col("queue_id") == CANCELS), F.array(properties[TIMER_CANCELS])
    )
    named = batch.withColumn("message_id", F.coalesce(_cancelled_key(), "message_id"))
    of_message = bucket_columns.add_message_bucket(named, F.col("message_id"), _id_reference())
    has_key = properties[UNIQ_KEY].isNotNull() | _cancelled_key().isNotNull()
    of_time = bucket_columns.bucket_of_time(F.col("store_timestamp"))
    return of_message.select(
        *(
            (F.col(name) if name in batch.columns else F.lit(None)).cast(kind).alias(name)
            for name, kind, *_ in MESSAGES.columns
        ),
        F.when(has_key, F.col("bucket")).otherwise(of_time).alias("bucket"),
        F.transform(F.coalesce(ends, cancels), lambda text: F.trim(text).try_cast("bigint")).alias("means"),
    )


def message_headers(rows: DataFrame) -> DataFrame:
    """Return decoded records with the columns of MESSAGES and `bucket`."""
    return rows.drop("means")


def record_positions(rows: DataFrame) -> DataFrame:
    """Return records and marks with the columns of RECORD_POSITIONS and `bucket`, from decoded records."""
    topic = F.col("topic")
    is_record = (topic == HALF_TOPIC) | ((topic == TIMER_TOPIC) & (F.col("queue_id") == TIMERS))
    is_mark = F.col("means").isNotNull()
    positions = rows.where(is_record | is_mark).select(
        "broker",
        F.when(topic == TIMER_TOPIC, TIMER_TOPIC).otherwise(HALF_TOPIC).alias("topic"),
        F.explode(F.when(is_mark, F.col("means")).otherwise(F.array("queue_offset"))).alias("queue_offset"),
        F.when(is_mark, MARK).otherwise(RECORD).alias("kind"),
        F.when(~is_mark, F.col("message_id")).alias("message_id"),
        F.when(~is_mark, F.col("bucket")).alias("message_bucket"),
        F.col("store_timestamp").alias("stored_at"),
    )
    valid = positions.where("queue_offset >= 0")  # op messages of another kind contain no offset
    return valid.select(*RECORD_POSITIONS.column_names, position_bucket().alias("bucket"))


def position_marks(new: DataFrame, all_there: DataFrame) -> DataFrame:
    """Join marks with their records where either is new. Return the columns of POSITION_MARKS and the message's `bucket`."""
    pairs = _pairs(new, all_there).unionByName(_pairs(all_there, new))
    return pairs.select(*POSITION_MARKS.column_names, F.col("message_bucket").alias("bucket")).distinct()


def position_bucket() -> Column:
    """Return `tables.record_positions.position_bucket` as an expression for rows of RECORD_POSITIONS."""
    kind = F.when(F.col("topic") == TIMER_TOPIC, "timer").otherwise("half")
    broker = F.crc32(F.col("broker").cast("binary")) % BROKER_HASHES
    return F.format_string("%s-%02d-%010d", kind, broker, F.floor(F.col("queue_offset") / OFFSETS_PER_BUCKET))


def _pairs(records: DataFrame, marks: DataFrame) -> DataFrame:
    """Join the records among `records` with the marks among `marks` that refer to them."""
    position = ("broker", "topic", "queue_offset")
    marked_records = records.where(F.col("kind") == RECORD)
    means = marks.where(F.col("kind") == MARK).select(*position, F.col("stored_at").alias("marked_at"))
    return marked_records.withColumnRenamed("stored_at", "record_stored_at").join(means, list(position))


def _cancelled_key() -> Column:
    """Return the unique id of the message whose timer a record of Ariane's brokers cancels; null for other records."""
    is_cancel = (F.col("topic") == TIMER_TOPIC) & (F.col("queue_id") == CANCELS)
    return F.when(is_cancel, F.col("properties")[TIMER_DEL_UNIQKEY])


def _id_reference() -> Column:
    """Return the time from which the month of a record's id follows."""
    properties, stored, born = F.col("properties"), F.col("store_timestamp"), F.col("born_timestamp")
    is_delayed = F.coalesce(properties[DELAY], F.lit("0")) != "0"
    for name in DELAYS:
        is_delayed |= properties[name].isNotNull()
    is_long = F.unix_millis(stored) - F.unix_millis(born) > LONG_MS
    return F.when(is_delayed & is_long, born).otherwise(stored)
