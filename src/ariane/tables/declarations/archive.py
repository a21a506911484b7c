"""Archive of whole messages, with body and properties, retained longer than brokers retain them."""

from __future__ import annotations

from ariane.tables.table import TableSchema

ARCHIVE = TableSchema(
    "archive",
    "One row per record of the archived topics. A bucket is a day and a topic, `2026-11-21.orders`: the day (UTC) on which the "
    "broker stored the record. Delay, transaction and retry attributes are in the properties.",
    {
        "topic STRING NOT NULL": "",
        "broker STRING NOT NULL": "",
        "queue_id INT NOT NULL": "",
        "queue_offset BIGINT NOT NULL": "(topic, broker, queue_id, queue_offset) identifies a record",
        "commit_log_offset BIGINT NOT NULL": "",
        "message_id STRING NOT NULL": "unique id; the offset id if the message has none",
        "offset_message_id STRING": "broker's id of this record",
        "keys STRING": "business keys, separated by spaces",
        "tags STRING": "",
        "properties MAP<STRING, STRING>": "all properties",
        "body BINARY": "decompressed",
        "born_timestamp TIMESTAMP": "producer's clock",
        "store_timestamp TIMESTAMP NOT NULL": "broker's clock",
        "born_host STRING": "producer's address",
        "store_host STRING": "broker's address",
        "reconsume_times INT": "number of times the message was sent back",
        "sys_flag INT": "as stored; the body is decompressed nevertheless",
        "flag INT": "set by the application",
    },
    sources={
        "*": "@records.*",
    },
    time_column="store_timestamp",
    sort_columns=("queue_id", "queue_offset"),
)
BUCKET_SEPARATOR = "."  # invalid in topic names


def topic_of_bucket(bucket: str) -> str:
    """Return the topic of a bucket of the archive."""
    return bucket.partition(BUCKET_SEPARATOR)[2]
