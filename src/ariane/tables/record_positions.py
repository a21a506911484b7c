"""What names a message by its place: op messages of transactions and cancellations of timers say a queue offset, and no id.

PLACES   records of the two queues and the marks on them, side by side because they lie in buckets by place
MARKS    the marks that found their record, in buckets by the message's id
"""

from __future__ import annotations

import zlib

from ariane.tables.table import ColumnSchema, TableSchema

RECORD, MARK = "record", "mark"
OFFSETS_PER_BUCKET = 16_384  # queue offsets of one bucket: what a look for their records has to read
BROKER_HASHES = 16  # brokers are told apart by a hash; those that share one only read more

RECORD_POSITIONS = TableSchema(
    "record_positions",
    "Records of the half queue and of the timer queue, and the marks that mean one of them by its queue offset; appended only. "
    "A bucket is a range of queue offsets of a broker.",
    (
        ColumnSchema("broker", "STRING", ""),
        ColumnSchema("topic", "STRING", "RMQ_SYS_TRANS_HALF_TOPIC or rmq_sys_wheel_timer: where the record lies"),
        ColumnSchema("queue_offset", "BIGINT", "of the record, also in the row of a mark"),
        ColumnSchema("kind", "STRING", "record, or mark: an op message, a cancellation"),
        ColumnSchema("message_id", "STRING", "of the record; null in the row of a mark, which does not know it"),
        ColumnSchema("message_bucket", "STRING", "bucket of that message in the other tables"),
        ColumnSchema("stored_at", "TIMESTAMP", "of the record or of the mark: the broker's clock"),
    ),
    time_column="stored_at",
    sort_columns=("topic", "queue_offset"),
)

POSITION_MARKS = TableSchema(
    "position_marks",
    "Ends of half messages and cancellations of timers, under the id of the message that they mean; a mark may be there twice.",
    (
        ColumnSchema("message_id", "STRING", "of the message that is meant"),
        ColumnSchema("broker", "STRING", ""),
        ColumnSchema(
            "topic", "STRING", "RMQ_SYS_TRANS_HALF_TOPIC: it was ended; rmq_sys_wheel_timer: it was cancelled"
        ),
        ColumnSchema("queue_offset", "BIGINT", "of the record that is meant, in queue 0 of that topic"),
        ColumnSchema("record_stored_at", "TIMESTAMP", "when that record was stored"),
        ColumnSchema("marked_at", "TIMESTAMP", "when the mark was stored: the broker's clock"),
    ),
    time_column="marked_at",
    sort_columns=("message_id",),
)


def position_bucket(kind: str, broker: str, queue_offset: int) -> str:
    """The bucket of a place; `kind` is half or timer."""
    return f"{kind}-{zlib.crc32(broker.encode()) % BROKER_HASHES:02d}-{queue_offset // OFFSETS_PER_BUCKET:010d}"
