"""Messages kept for longer than brokers keep them, whole: bodies and properties."""

from __future__ import annotations

from ariane.tables.table import ColumnSchema, TableSchema

ARCHIVE = TableSchema(
    "archive",
    "One row per record of the topics that are archived. Buckets are days and topics, `2026-11-21.orders`: the day (UTC) on "
    "which the broker stored it. What a topic's delay, transaction and retry columns say stands in the properties.",
    (
        ColumnSchema("topic", "STRING", ""),
        ColumnSchema("broker", "STRING", ""),
        ColumnSchema("queue_id", "INT", ""),
        ColumnSchema("queue_offset", "BIGINT", "(topic, broker, queue_id, queue_offset) names a record"),
        ColumnSchema("commit_log_offset", "BIGINT", ""),
        ColumnSchema("message_id", "STRING", "unique id, else the offset id"),
        ColumnSchema("offset_message_id", "STRING", "broker's id of this record"),
        ColumnSchema("keys", "STRING", "business keys, joined by blanks"),
        ColumnSchema("tags", "STRING", ""),
        ColumnSchema("properties", "MAP<STRING, STRING>", "all of them"),
        ColumnSchema("body", "BINARY", "decompressed"),
        ColumnSchema("born_timestamp", "TIMESTAMP", "producer's clock"),
        ColumnSchema("store_timestamp", "TIMESTAMP", "broker's clock"),
        ColumnSchema("born_host", "STRING", "the producer's address"),
        ColumnSchema("store_host", "STRING", "the broker's address"),
        ColumnSchema("reconsume_times", "INT", "how often the message was sent back"),
        ColumnSchema("sys_flag", "INT", "as stored; the body is decompressed all the same"),
        ColumnSchema("flag", "INT", "the application's"),
    ),
    time_column="store_timestamp",
    sort_columns=("queue_id", "queue_offset"),
)
BUCKET_SEPARATOR = "."  # topics cannot hold it


def archive_bucket(day: str, topic: str) -> str:
    """The bucket of a topic's messages of a day, `2026-11-21`."""
    return f"{day}{BUCKET_SEPARATOR}{topic}"


def topic_of_bucket(bucket: str) -> str:
    return bucket.partition(BUCKET_SEPARATOR)[2]
