"""Messages that are referenced by queue offset: op messages of transactions and cancellations of timers carry no message id.

RECORD_POSITIONS   records of the two queues and the marks that refer to them; both use the offset for their bucket
POSITION_MARKS     marks joined with their record, in the bucket of the message id
"""

from __future__ import annotations

import zlib

from ariane.tables.table import TableSchema

RECORD, MARK = "record", "mark"
OFFSETS_PER_BUCKET = 16_384  # queue offsets, the range that the join of a mark with its record has to read
BROKER_HASHES = 16  # brokers are separated by a hash; a collision only makes a join read more rows

RECORD_POSITIONS = TableSchema(
    "record_positions",
    "Records of the half queue and of the timer queue, and the marks that refer to such a record by its queue offset. Rows are "
    "only appended. A bucket is a range of queue offsets of a broker.",
    {
        "broker STRING NOT NULL": "",
        "topic STRING NOT NULL": "topic of the record: RMQ_SYS_TRANS_HALF_TOPIC or rmq_sys_wheel_timer",
        "queue_offset BIGINT NOT NULL": "of the record; in the row of a mark, of the record that it refers to",
        "kind STRING NOT NULL": "record; or mark: an op message, a cancellation",
        "message_id STRING": "of the record; null for a mark, which does not contain it",
        "message_bucket STRING": "bucket of that message in the other tables",
        "stored_at TIMESTAMP NOT NULL": "of the record or of the mark: the broker's clock",
    },
    sources={
        "broker topic": "@records.*",
        "queue_offset": "@records.queue_offset @records.body @records.properties",
        "kind": "@records.topic @records.queue_id @records.tags",
        "message_id": "@records.message_id",
        "message_bucket": "@records.message_id @records.born_timestamp @records.store_timestamp",
        "stored_at": "@records.store_timestamp",
    },
    time_column="stored_at",
    sort_columns=("topic", "queue_offset"),
)

POSITION_MARKS = TableSchema(
    "position_marks",
    "Ends of half messages and cancellations of timers, by the id of the message that they refer to. Rows may be duplicated.",
    {
        "message_id STRING NOT NULL": "of the message that the mark refers to",
        "broker STRING NOT NULL": "",
        "topic STRING NOT NULL": "RMQ_SYS_TRANS_HALF_TOPIC: the transaction ended; rmq_sys_wheel_timer: the timer was "
        "cancelled",
        "queue_offset BIGINT NOT NULL": "of the record that the mark refers to, in queue 0 of that topic",
        "record_stored_at TIMESTAMP NOT NULL": "time at which that record was stored",
        "marked_at TIMESTAMP NOT NULL": "time at which the mark was stored: the broker's clock",
    },
    sources={
        "*": "record_positions.*",
        "record_stored_at marked_at": "record_positions.stored_at",
    },
    time_column="marked_at",
    sort_columns=("message_id",),
)


def position_bucket(kind: str, broker: str, queue_offset: int) -> str:
    """Return the bucket of a position; `kind` is half or timer."""
    return f"{kind}-{zlib.crc32(broker.encode()) % BROKER_HASHES:02d}-{queue_offset // OFFSETS_PER_BUCKET:010d}"
