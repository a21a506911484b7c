"""What brokers stored: one row per record of every topic that is read, without the body."""

from __future__ import annotations

from ariane.tables.table import Column, Table

MESSAGES = Table(
    "messages",
    "One row per stored record, system topics (delayed, half, retry, dead-letter) included; appended only, so a record may be "
    "there twice after a fault: (broker, commit_log_offset) names it.",
    (
        Column("topic", "STRING", "where the record lies"),
        Column("broker", "STRING", ""),
        Column("queue_id", "INT", ""),
        Column("queue_offset", "BIGINT", ""),
        Column("commit_log_offset", "BIGINT", ""),
        Column(
            "message_id",
            "STRING",
            "unique id, the same in every topic that the message comes through; else the offset id",
        ),
        Column("offset_message_id", "STRING", "broker's id of this record"),
        Column("keys", "STRING", "business keys, joined by blanks"),
        Column("tags", "STRING", ""),
        Column("properties", "MAP<STRING, STRING>", "all of them"),
        Column("body_length", "INT", "bytes, decompressed"),
        Column("born_timestamp", "TIMESTAMP", "producer's clock"),
        Column("store_timestamp", "TIMESTAMP", "broker's clock"),
        Column("born_host", "STRING", "the producer's address"),
        Column("store_host", "STRING", "the broker's address"),
        Column("reconsume_times", "INT", "how often the message was sent back"),
        Column("sys_flag", "INT", "compression, transaction state, kinds of addresses"),
        Column("prepared_transaction_offset", "BIGINT", "of a decided transaction: where its half message lies"),
    ),
    time="store_timestamp",
    order=("topic", "message_id"),
)
