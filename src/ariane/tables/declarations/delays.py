"""Scheduled and actual delivery of delayed messages."""

from __future__ import annotations

from ariane.tables.table import TableSchema

LEVEL, TIME, RETRY = "level", "time", "retry"
PENDING, DELIVERED, CANCELLED = "pending", "delivered", "cancelled"

DELAYS = TableSchema(
    "delays",
    "One row per delayed message: by delay level, until a time, or before a retry. All times are of the broker's clock.",
    {
        "message_id STRING NOT NULL": "unique id of the message; a failed message has one row per retry as well",
        "broker STRING NOT NULL": "",
        "topic STRING": "target topic; for a retry %RETRY% or %DLQ% and the group; null: not in the record",
        "kind STRING NOT NULL": "level, time, or retry: the level was chosen by the consumer group, not by the producer",
        "level INT": "delay level, from 1; null for kind time",
        "scheduled_at TIMESTAMP": "scheduled delivery: stored_at plus the delay of the level, or the requested time; null if "
        "stored_at is unknown or the level does not exist",
        "stored_at TIMESTAMP": "time at which the delayed record was stored; null if no table has that record (any more)",
        "delivered_at TIMESTAMP": "time at which the message was stored in its target topic",
        "lateness_ms BIGINT": "delivered_at minus scheduled_at; negative: early",
        "state STRING NOT NULL": "pending: no delivery seen (overdue if scheduled_at has passed, lost if it stays so), "
        "delivered, cancelled",
        "cancelled_at TIMESTAMP": "time of the cancellation; also set if the delivery was faster",
        "reconsume_times INT": "number of times the message had been sent back",
        "keys STRING": "business keys, separated by spaces",
        "commit_log_offset BIGINT": "of the delayed record",
    },
    sources={
        "*": "messages.*",
        "topic kind": "messages.topic messages.properties",
        "level": "messages.properties",
        "scheduled_at": "messages.properties messages.store_timestamp",
        "stored_at delivered_at": "messages.store_timestamp messages.topic",
        "lateness_ms": "messages.properties messages.store_timestamp",
        "state": "messages.topic messages.properties position_marks.marked_at",
        "cancelled_at": "messages.store_timestamp messages.properties position_marks.marked_at",
    },
    time_column="scheduled_at",
    sort_columns=("message_id", "commit_log_offset"),
    schema=2,
)
