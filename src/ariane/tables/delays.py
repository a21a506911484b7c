"""What was to be delivered later, and when it was."""

from __future__ import annotations

from ariane.tables.table import Column, Table

LEVEL, TIME, RETRY = "level", "time", "retry"
PENDING, DELIVERED, CANCELLED = "pending", "delivered", "cancelled"

DELAYS = Table(
    "delays",
    "One row per delayed message: by level, to a time, or on its way to be consumed again. All times are of the broker's clock.",
    (
        Column("message_id", "STRING", "unique id of the message; a message that failed has a row for each retry too"),
        Column("broker", "STRING", ""),
        Column(
            "topic",
            "STRING",
            "where it is to go; %RETRY% or %DLQ% and the group for a retry; null: its record does not say",
        ),
        Column(
            "kind",
            "STRING",
            "level, time, or retry: the level was chosen by the group's consumers, not by the producer",
        ),
        Column("level", "INT", "delay level, from 1; null for kind time"),
        Column(
            "asked_at",
            "TIMESTAMP",
            "when it was to be delivered: stored_at and the delay of its level, or the time that was asked for; null when "
            "stored_at is unknown or the list of levels has no such level",
        ),
        Column("stored_at", "TIMESTAMP", "when it was stored to wait; null when that record is in no table (any more)"),
        Column("delivered_at", "TIMESTAMP", "when it was stored in its topic"),
        Column("off_by_ms", "BIGINT", "delivered_at less asked_at: late when positive, early when negative"),
        Column(
            "state",
            "STRING",
            "pending: no delivery is known (overdue, when asked_at is past, and lost, when that lasts), delivered, cancelled",
        ),
        Column("cancelled_at", "TIMESTAMP", "when it was taken back; also with a delivery that was faster"),
        Column("reconsume_times", "INT", "how often the message had been sent back"),
        Column("keys", "STRING", "business keys, joined by blanks"),
        Column("commit_log_offset", "BIGINT", "of the record that waits, or waited"),
    ),
    time="asked_at",
    order=("message_id", "commit_log_offset"),
)
