"""Messages kept for longer than brokers keep them, whole: bodies and properties."""

from __future__ import annotations

from ariane.tables.table import Column, Table

ARCHIVE = Table(
    "archive",
    "One row per record of the topics that are archived. Slots are days and topics, `2026-11-21.orders`: the day (UTC) on "
    "which the broker stored it. What a topic's delay, transaction and retry columns say stands in the properties.",
    (
        Column("topic", "STRING", ""),
        Column("broker", "STRING", ""),
        Column("queue_id", "INT", ""),
        Column("queue_offset", "BIGINT", "(topic, broker, queue_id, queue_offset) names a record"),
        Column("commit_log_offset", "BIGINT", ""),
        Column("message_id", "STRING", "unique id, else the offset id"),
        Column("offset_message_id", "STRING", "broker's id of this record"),
        Column("keys", "STRING", "business keys, joined by blanks"),
        Column("tags", "STRING", ""),
        Column("properties", "MAP<STRING, STRING>", "all of them"),
        Column("body", "BINARY", "decompressed"),
        Column("born_timestamp", "TIMESTAMP", "producer's clock"),
        Column("store_timestamp", "TIMESTAMP", "broker's clock"),
        Column("born_host", "STRING", "the producer's address"),
        Column("store_host", "STRING", "the broker's address"),
        Column("reconsume_times", "INT", "how often the message was sent back"),
        Column("sys_flag", "INT", "as stored; the body is decompressed all the same"),
        Column("flag", "INT", "the application's"),
    ),
    time="store_timestamp",
    order=("queue_id", "queue_offset"),
)
SLOT_SEPARATOR = "."  # topics cannot hold it


def slot(day: str, topic: str) -> str:
    """The slot of a topic's messages of a day, `2026-11-21`."""
    return f"{day}{SLOT_SEPARATOR}{topic}"


def topic_of(slot: str) -> str:
    return slot.partition(SLOT_SEPARATOR)[2]
