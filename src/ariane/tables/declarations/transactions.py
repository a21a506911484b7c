"""Outcome of transactions."""

from __future__ import annotations

from ariane.tables.table import TableSchema

COMMIT, ROLLBACK, UNKNOWN, OPEN, DISCARDED = "commit", "rollback", "unknown", "open", "discarded"

TRANSACTIONS = TableSchema(
    "transactions",
    "One row per transactional message and broker. Times are of the broker's clock. The age of an open transaction is the current "
    "time minus half_stored_at.",
    {
        "message_id STRING NOT NULL": "unique id of the message",
        "broker STRING NOT NULL": "",
        "topic STRING": "target topic of a commit",
        "producer_group STRING": "",
        "keys STRING": "business keys, separated by spaces",
        "half_stored_at TIMESTAMP": "time at which the half message was stored; null if no table has that record (any more)",
        "half_count BIGINT": "initial copies of the half message: several if the send was repeated or it was resumed",
        "checks BIGINT": "rounds of transaction checks, answered or not; Java brokers also count rounds in which the message was "
        "immune",
        "checked_at ARRAY<TIMESTAMP>": "times at which the copies of these rounds were stored, if available",
        "decision STRING NOT NULL": "commit; rollback: ended without a visible commit, or rolled back according to the "
        "producer's trace "
        "and not checked since; unknown: ended without a visible commit although the producer's trace says commit; discarded: "
        "checked too often and moved aside; open: none of these. Op messages of Java brokers cannot be pulled: without traces, "
        "transactions rolled back there appear as open (last_copy_at is the time of the last check)",
        "decided_at TIMESTAMP": "time at which the commit, the op message or the discarded copy was stored; null if only a trace "
        "has the decision",
        "decision_ms BIGINT": "decided_at minus half_stored_at",
        "commits BIGINT NOT NULL": "committed records; more than one: delivered more than once",
        "from_check BOOLEAN": "whether the decision answered a check, from the producer's trace; null without a trace",
        "reported_state STRING": "last state sent by the producer: COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW; from its trace, "
        "null without a trace",
        "last_copy_at TIMESTAMP": "time at which the latest copy was stored: a broker writes a copy in each round of checks",
        "offset_message_id STRING": "broker's id of the latest copy; used to resume the message",
    },
    sources={
        "*": "messages.*",
        "topic producer_group checks": "messages.properties",
        "half_stored_at half_count checked_at last_copy_at": "messages.store_timestamp messages.properties",
        "decision": "messages.topic messages.sys_flag position_marks.marked_at trace_events.transaction_state",
        "decided_at decision_ms": "messages.store_timestamp position_marks.marked_at",
        "commits": "messages.sys_flag messages.topic",
        "from_check": "trace_events.from_check",
        "reported_state": "trace_events.transaction_state",
    },
    time_column="half_stored_at",
    sort_columns=("message_id",),
    schema=2,
)
