"""What brokers stored: one row per record of every topic that is read, without the body."""

from __future__ import annotations

from ariane.tables.table import ColumnSchema, TableSchema

MESSAGES = TableSchema(
    "messages",
    "One row per stored record, system topics (delayed, half, retry, dead-letter) included; appended only, so a record may be "
    "there twice after a fault: (broker, commit_log_offset) names it.",
    (
        ColumnSchema("topic", "STRING", "where the record lies"),
        ColumnSchema("broker", "STRING", ""),
        ColumnSchema("queue_id", "INT", ""),
        ColumnSchema("queue_offset", "BIGINT", ""),
        ColumnSchema("commit_log_offset", "BIGINT", ""),
        ColumnSchema(
            "message_id",
            "STRING",
            "unique id, the same in every topic that the message comes through; else the offset id",
        ),
        ColumnSchema("offset_message_id", "STRING", "broker's id of this record"),
        ColumnSchema("keys", "STRING", "business keys, joined by blanks"),
        ColumnSchema("tags", "STRING", ""),
        ColumnSchema("properties", "MAP<STRING, STRING>", "all of them"),
        ColumnSchema("body_length", "INT", "bytes, decompressed"),
        ColumnSchema("born_timestamp", "TIMESTAMP", "producer's clock"),
        ColumnSchema("store_timestamp", "TIMESTAMP", "broker's clock"),
        ColumnSchema("born_host", "STRING", "the producer's address"),
        ColumnSchema("store_host", "STRING", "the broker's address"),
        ColumnSchema("reconsume_times", "INT", "how often the message was sent back"),
        ColumnSchema("sys_flag", "INT", "compression, transaction state, kinds of addresses"),
        ColumnSchema("prepared_transaction_offset", "BIGINT", "of a decided transaction: where its half message lies"),
    ),
    time_column="store_timestamp",
    sort_columns=("topic", "message_id"),
)
