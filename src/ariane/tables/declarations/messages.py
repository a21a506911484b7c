"""Records that brokers stored, of every topic that is read, without the body."""

from __future__ import annotations

from ariane.tables.table import TableSchema

MESSAGES = TableSchema(
    "messages",
    "One row per stored record, including system topics (delayed, half, retry and dead-letter messages). Rows are only appended "
    "and may be duplicated after a failure: (broker, commit_log_offset) identifies a record.",
    {
        "topic STRING NOT NULL": "topic in which the record is stored",
        "broker STRING NOT NULL": "",
        "queue_id INT NOT NULL": "",
        "queue_offset BIGINT NOT NULL": "",
        "commit_log_offset BIGINT NOT NULL": "",
        "message_id STRING NOT NULL": "unique id, the same in all topics that the message passes through; the offset id if the "
        "message "
        "has none",
        "offset_message_id STRING NOT NULL": "broker's id of this record",
        "keys STRING": "business keys, separated by spaces",
        "tags STRING": "",
        "properties MAP<STRING, STRING>": "all properties",
        "body_length INT": "bytes, decompressed",
        "born_timestamp TIMESTAMP": "producer's clock",
        "store_timestamp TIMESTAMP NOT NULL": "broker's clock",
        "born_host STRING": "producer's address",
        "store_host STRING": "broker's address",
        "reconsume_times INT": "number of times the message was sent back",
        "sys_flag INT": "compression, transaction state, address types",
        "prepared_transaction_offset BIGINT": "of a completed transaction: offset of its half message",
    },
    sources={
        "*": "@records.*",
        "body_length": "@records.body",
    },
    units={"body_length": "bytes"},
    time_column="store_timestamp",
    sort_columns=("topic", "message_id"),
    row_group_bytes=1024 * 1024,
)
