"""Stored records → messages, record_positions, position_marks: the input of all tables that need more than traces.

    records of all topics ─→ messages           headers, in the bucket of their message
                          └→ record_positions   half messages, timers, and marks that refer to them by offset ─→ position_marks

The bucket of a record is that of its unique id; without one, that of its store time. For a message with a long delay the month of
the id is determined by the born time, because its records may be stored more than a month later. The record of Ariane's brokers
that cancels a timer becomes one of the cancelled message, as it is in Apache's.
"""

from __future__ import annotations

import itertools
import re
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
from ariane.tables.arrow_types import arrow_schema
from ariane.tables.declarations.record_positions import BROKER_HASHES, MARK, OFFSETS_PER_BUCKET, RECORD

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    Mask = NDArray[np.bool_]

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
IDENTITY = ("topic", "broker", "message_id", "store_timestamp", "bucket")  # columns of RECORD_POSITIONS by row

# An integer of at most 19 digits, as many as MAX_OFFSET has. As in casts of SQL, leading zeros do not count, and blanks and control
# characters around the integer are ignored.
INTEGER = r"^[\x00-\x20\x7f]*(?P<integer>[+-]?0*[0-9]{1,19})[\x00-\x20\x7f]*$"
MAX_OFFSET = 2**63 - 1


def options(*topics: str) -> dict[str, str]:
    """Return the topic options of format("rocketmq"): all topics with messages, except `topics` (other traces and samples)."""
    unread = "|".join(map(re.escape, sorted(_UNREAD.union(topics))))
    pattern = f"(?:{'|'.join(READ_SYSTEM_TOPICS)}|(?!(?:{unread})$|{SYSTEM_TOPIC_PREFIX}).+)"
    # Of all other records the length of the body is enough.
    return {"topicsPattern": pattern, "includeSystemTopics": "true", "topicsWithBody": OP_HALF_TOPIC}


def decode(messages: pa.Table) -> dict[str, pa.Table]:
    """Return the rows of MESSAGES and RECORD_POSITIONS, each with its `bucket` as the last column, by table name.

    Args:
        messages: rows of a micro-batch with columns of SCHEMA. Columns that are missing are null.
    """
    rows = _complete(messages)
    topic, queue_id, properties = rows["topic"], rows["queue_id"], rows["properties"]
    is_timer = _is_equal(topic, TIMER_TOPIC)
    is_cancel = is_timer & _is_equal(queue_id, CANCELS)
    is_end = _is_equal(topic, OP_HALF_TOPIC) & _is_equal(_property(properties, TAGS), OP_TAG)
    is_record = _is_equal(topic, HALF_TOPIC) | (is_timer & _is_equal(queue_id, TIMERS))

    cancelled_id = pc.if_else(is_cancel, _property(properties, TIMER_DEL_UNIQKEY), None)
    message_id = pc.coalesce(cancelled_id, rows["message_id"])
    rows = rows.set_column(rows.column_names.index("message_id"), "message_id", message_id)
    has_key = pc.or_(pc.is_valid(_property(properties, UNIQ_KEY)), pc.is_valid(cancelled_id))
    rows = rows.append_column("bucket", _buckets(rows, has_key))

    records = pa.array(np.flatnonzero(is_record))
    marks, means = _marks(rows, is_end, is_cancel)
    positions = rows.select(IDENTITY).take(_concat(records, marks))
    offsets = _concat(rows["queue_offset"].take(records), means)
    return {
        MESSAGES.name: rows.drop_columns("body"),
        RECORD_POSITIONS.name: _positions(positions, offsets, np.arange(len(positions)) >= len(records)),
    }


def position_marks(new: DataFrame, all_there: DataFrame) -> DataFrame:
    """Join marks with their records where either is new. Return the columns of POSITION_MARKS and the message's `bucket`."""
    pairs = _pairs(new, all_there).unionByName(_pairs(all_there, new))
    marks = pairs.select(*POSITION_MARKS.column_names, "message_bucket").distinct()
    return marks.withColumnRenamed("message_bucket", "bucket")


def _pairs(records: DataFrame, marks: DataFrame) -> DataFrame:
    """Join the records among `records` with the marks among `marks` that refer to them."""
    position = ["broker", "topic", "queue_offset"]
    marked_records = records.where(f"kind = '{RECORD}'").withColumnRenamed("stored_at", "record_stored_at")
    times = marks.where(f"kind = '{MARK}'").select(*position, "stored_at").withColumnRenamed("stored_at", "marked_at")
    return marked_records.join(times, position)


def _complete(messages: pa.Table) -> pa.Table:
    """Return the columns of MESSAGES and the body. A column that the source does not have is null."""
    schema = arrow_schema(MESSAGES).append(pa.field("body", pa.binary()))
    columns = (
        messages[field.name].cast(field.type)
        if field.name in messages.column_names
        else pa.nulls(len(messages), field.type)
        for field in schema
    )
    return pa.table(list(columns), schema)


def _is_equal(values: pa.ChunkedArray, value: str | int) -> Mask:
    """Return where `values` equal `value`; null values do not."""
    return np.asarray(pc.fill_null(pc.equal(values, value), False))


def _property(properties: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return a property of each row; null where it is missing."""
    return pc.map_lookup(properties, name, "first")


def _buckets(rows: pa.Table, has_key: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the bucket of each row: that of its message id if it `has_key`, otherwise that of its store time."""
    stored, born = rows["store_timestamp"], rows["born_timestamp"]
    stored = pc.coalesce(stored, pa.scalar(0, stored.type))
    stored_ms = bucket_columns.ms_of_times(stored)
    born_ms = bucket_columns.ms_of_times(pc.coalesce(born, stored))
    # The time from which the month of the id follows.
    near_ms = np.where(_is_delayed(rows["properties"]) & (stored_ms - born_ms > LONG_MS), born_ms, stored_ms)
    of_id = bucket_columns.buckets_of_messages(pc.fill_null(rows["message_id"], ""), near_ms)
    return pc.if_else(has_key, of_id, bucket_columns.buckets_of_times(stored_ms))


def _is_delayed(properties: pa.ChunkedArray) -> Mask:
    """Return which rows have a delay."""
    level = _property(properties, DELAY)
    is_delayed = np.asarray(pc.is_valid(level)) & ~_is_equal(level, "0")
    for name in DELAYS:
        is_delayed |= np.asarray(pc.is_valid(_property(properties, name)))
    return is_delayed


def _marks(rows: pa.Table, is_end: Mask, is_cancel: Mask) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Return the marks of op messages and of cancellations: numbers of their rows, and the queue offset that each refers to.

    An op message refers to any number of half messages, a cancellation to one timer.
    """
    ends = pc.split_pattern(rows["body"].filter(is_end), ",")
    cancels = _property(rows["properties"].filter(is_cancel), TIMER_CANCELS).cast(pa.binary())
    ends_per_row = np.asarray(pc.fill_null(pc.list_value_length(ends), 0))
    of_ends, of_cancels = np.repeat(np.flatnonzero(is_end), ends_per_row), np.flatnonzero(is_cancel)
    return _concat(pa.array(of_ends), pa.array(of_cancels)), _offsets(_concat(pc.list_flatten(ends), cancels))


def _positions(rows: pa.Table, queue_offsets: pa.ChunkedArray, is_mark: Mask) -> pa.Table:
    """Return the rows of RECORD_POSITIONS with their `bucket`, except those with a null or a negative offset.

    Args:
        rows: records and marks, with the columns IDENTITY.
        queue_offsets: of the records, by row.
        is_mark: whether a row is a mark.
    """
    is_valid = np.asarray(pc.fill_null(pc.greater_equal(queue_offsets, 0), False))
    rows, queue_offsets, is_mark = rows.filter(is_valid), queue_offsets.filter(is_valid), is_mark[is_valid]
    is_timer = _is_equal(rows["topic"], TIMER_TOPIC)
    columns = {
        "broker": rows["broker"],
        "topic": pc.if_else(is_timer, TIMER_TOPIC, HALF_TOPIC),
        "queue_offset": queue_offsets,
        "kind": pc.if_else(is_mark, MARK, RECORD),
        "message_id": pc.if_else(is_mark, None, rows["message_id"]),
        "message_bucket": pc.if_else(is_mark, None, rows["bucket"]),
        "stored_at": rows["store_timestamp"],
        "bucket": _position_buckets(pc.if_else(is_timer, "timer", "half"), rows["broker"], queue_offsets),
    }
    return pa.table(columns, arrow_schema(RECORD_POSITIONS).append(pa.field("bucket", pa.string())))


def _concat(first: pa.Array | pa.ChunkedArray, second: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of two arrays of one type, one after the other."""
    chunks = (array.chunks if isinstance(array, pa.ChunkedArray) else [array] for array in (first, second))
    return pa.chunked_array([*itertools.chain(*chunks)], first.type)


def _offsets(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the offsets that texts (binary) consist of; null for other texts."""
    integers = pc.struct_field(pc.extract_regex(texts, INTEGER), "integer").cast(pa.string()).cast(pa.decimal128(19))
    is_offset = pc.and_(pc.greater_equal(integers, 0), pc.less_equal(integers, MAX_OFFSET))
    return pc.if_else(is_offset, integers, None).cast(pa.int64())


def _position_buckets(
    kinds: pa.StringArray, brokers: pa.ChunkedArray, queue_offsets: pa.ChunkedArray
) -> pa.ChunkedArray:
    """Return `record_positions.position_bucket` of each row."""
    names = pc.fill_null(brokers, "").combine_chunks().dictionary_encode()
    hashes = [f"{zlib.crc32(name.encode()) % BROKER_HASHES:02d}" for name in names.dictionary.to_pylist()]
    ranges = pc.divide(queue_offsets, OFFSETS_PER_BUCKET).cast(pa.string())
    return pc.binary_join_element_wise(
        kinds, pa.array(hashes, pa.string()).take(names.indices), pc.utf8_lpad(ranges, 10, "0"), "-"
    )
