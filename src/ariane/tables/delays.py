"""What was to be delivered later, and when it was."""

from __future__ import annotations

from ariane.tables.table import ColumnSchema, TableSchema

LEVEL, TIME, RETRY = "level", "time", "retry"
PENDING, DELIVERED, CANCELLED = "pending", "delivered", "cancelled"

DELAYS = TableSchema(
    "delays",
    "One row per delayed message: by level, to a time, or on its way to be consumed again. All times are of the broker's clock.",
    (
        ColumnSchema(
            "message_id", "STRING", "unique id of the message; a message that failed has a row for each retry too"
        ),
        ColumnSchema("broker", "STRING", ""),
        ColumnSchema(
            "topic",
            "STRING",
            "where it is to go; %RETRY% or %DLQ% and the group for a retry; null: its record does not say",
        ),
        ColumnSchema(
            "kind",
            "STRING",
            "level, time, or retry: the level was chosen by the group's consumers, not by the producer",
        ),
        ColumnSchema("level", "INT", "delay level, from 1; null for kind time"),
        ColumnSchema(
            "scheduled_at",
            "TIMESTAMP",
            "when it was to be delivered: stored_at and the delay of its level, or the time that was asked for; null when "
            "stored_at is unknown or the list of levels has no such level",
        ),
        ColumnSchema(
            "stored_at", "TIMESTAMP", "when it was stored to wait; null when that record is in no table (any more)"
        ),
        ColumnSchema("delivered_at", "TIMESTAMP", "when it was stored in its topic"),
        ColumnSchema(
            "lateness_ms", "BIGINT", "delivered_at less scheduled_at: late when positive, early when negative"
        ),
        ColumnSchema(
            "state",
            "STRING",
            "pending: no delivery is known (overdue, when scheduled_at is past, and lost, when that lasts), delivered, cancelled",
        ),
        ColumnSchema("cancelled_at", "TIMESTAMP", "when it was taken back; also with a delivery that was faster"),
        ColumnSchema("reconsume_times", "INT", "how often the message had been sent back"),
        ColumnSchema("keys", "STRING", "business keys, joined by blanks"),
        ColumnSchema("commit_log_offset", "BIGINT", "of the record that waits, or waited"),
    ),
    time_column="scheduled_at",
    sort_columns=("message_id", "commit_log_offset"),
    schema=2,
)
