"""What names a message by its place: op messages of transactions and cancellations of timers say a queue offset, and no id.

PLACES   records of the two queues and the marks on them, side by side because they lie in slots by place
MARKS    the marks that found their record, in slots by the message's id
"""

from __future__ import annotations

import zlib

from ariane.tables.table import ColumnSchema, TableSchema

RECORD, MARK = "record", "mark"
SPAN = 16_384  # queue offsets of one slot: what a look for their records has to read
BROKERS = 16  # brokers are told apart by a hash; those that share one only read more

PLACES = TableSchema(
    "places",
    "Records of the half queue and of the timer queue, and the marks that mean one of them by its queue offset; appended only. "
    "A slot is a range of queue offsets of a broker.",
    (
        ColumnSchema("broker", "STRING", ""),
        ColumnSchema("topic", "STRING", "RMQ_SYS_TRANS_HALF_TOPIC or rmq_sys_wheel_timer: where the record lies"),
        ColumnSchema("queue_offset", "BIGINT", "of the record, also in the row of a mark"),
        ColumnSchema("what", "STRING", "record, or mark: an op message, a cancellation"),
        ColumnSchema("message_id", "STRING", "of the record; null in the row of a mark, which does not know it"),
        ColumnSchema("message_slot", "STRING", "slot of that message in the other tables"),
        ColumnSchema("stored_at", "TIMESTAMP", "of the record or of the mark: the broker's clock"),
    ),
    time="stored_at",
    order=("topic", "queue_offset"),
)

MARKS = TableSchema(
    "marks",
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
    time="marked_at",
    order=("message_id",),
)


def slot(kind: str, broker: str, queue_offset: int) -> str:
    """The slot of a place; `kind` is half or timer."""
    return f"{kind}-{zlib.crc32(broker.encode()) % BROKERS:02d}-{queue_offset // SPAN:010d}"
