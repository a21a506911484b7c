"""Records that brokers stored, of every topic that is read, without the body."""

from __future__ import annotations

from ariane.tables.table import ColumnSchema, TableSchema

MESSAGES = TableSchema(
    "messages",
    "One row per stored record, including system topics (delayed, half, retry and dead-letter messages). Rows are only appended "
    "and may be duplicated after a failure: (broker, commit_log_offset) identifies a record.",
    (
        ColumnSchema("topic", "STRING", "topic in which the record is stored"),
        ColumnSchema("broker", "STRING", ""),
        ColumnSchema("queue_id", "INT", ""),
        ColumnSchema("queue_offset", "BIGINT", ""),
        ColumnSchema("commit_log_offset", "BIGINT", ""),
        ColumnSchema(
            "message_id",
            "STRING",
            "unique id, the same in all topics that the message passes through; the offset id if the message has none",
        ),
        ColumnSchema("offset_message_id", "STRING", "broker's id of this record"),
        ColumnSchema("keys", "STRING", "business keys, separated by spaces"),
        ColumnSchema("tags", "STRING", ""),
        ColumnSchema("properties", "MAP<STRING, STRING>", "all properties"),
        ColumnSchema("body_length", "INT", "bytes, decompressed"),
        ColumnSchema("born_timestamp", "TIMESTAMP", "producer's clock"),
        ColumnSchema("store_timestamp", "TIMESTAMP", "broker's clock"),
        ColumnSchema("born_host", "STRING", "producer's address"),
        ColumnSchema("store_host", "STRING", "broker's address"),
        ColumnSchema("reconsume_times", "INT", "number of times the message was sent back"),
        ColumnSchema("sys_flag", "INT", "compression, transaction state, address types"),
        ColumnSchema("prepared_transaction_offset", "BIGINT", "of a completed transaction: offset of its half message"),
    ),
    time_column="store_timestamp",
    sort_columns=("topic", "message_id"),
)
