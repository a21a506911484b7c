"""Archive of whole messages, with body and properties, retained longer than brokers retain them."""

from __future__ import annotations

from ariane.tables.table import ColumnSchema, TableSchema

ARCHIVE = TableSchema(
    "archive",
    "One row per record of the archived topics. A bucket is a day and a topic, `2026-11-21.orders`: the day (UTC) on which the "
    "broker stored the record. Delay, transaction and retry attributes are in the properties.",
    (
        ColumnSchema("topic", "STRING", ""),
        ColumnSchema("broker", "STRING", ""),
        ColumnSchema("queue_id", "INT", ""),
        ColumnSchema("queue_offset", "BIGINT", "(topic, broker, queue_id, queue_offset) identifies a record"),
        ColumnSchema("commit_log_offset", "BIGINT", ""),
        ColumnSchema("message_id", "STRING", "unique id; the offset id if the message has none"),
        ColumnSchema("offset_message_id", "STRING", "broker's id of this record"),
        ColumnSchema("keys", "STRING", "business keys, separated by spaces"),
        ColumnSchema("tags", "STRING", ""),
        ColumnSchema("properties", "MAP<STRING, STRING>", "all properties"),
        ColumnSchema("body", "BINARY", "decompressed"),
        ColumnSchema("born_timestamp", "TIMESTAMP", "producer's clock"),
        ColumnSchema("store_timestamp", "TIMESTAMP", "broker's clock"),
        ColumnSchema("born_host", "STRING", "producer's address"),
        ColumnSchema("store_host", "STRING", "broker's address"),
        ColumnSchema("reconsume_times", "INT", "number of times the message was sent back"),
        ColumnSchema("sys_flag", "INT", "as stored; the body is decompressed nevertheless"),
        ColumnSchema("flag", "INT", "set by the application"),
    ),
    time_column="store_timestamp",
    sort_columns=("queue_id", "queue_offset"),
)
BUCKET_SEPARATOR = "."  # invalid in topic names


def topic_of_bucket(bucket: str) -> str:
    """Return the topic of a bucket of the archive."""
    return bucket.partition(BUCKET_SEPARATOR)[2]
