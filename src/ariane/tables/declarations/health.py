"""Counts of message anomalies, and of the messages they are compared with."""

from __future__ import annotations

from ariane.tables.table import TableSchema

MAX_EXAMPLES = 10  # per row, the worst ones; the total is in `count`

# Kinds of findings. The comment names the content of `worst`, `cause` and the detail of the examples.
CONSUMED_TWICE = "consumed-twice"  # worst: successful consumptions
STORED_TWICE = "stored-twice"  # worst: copies; detail: their offset ids
OUT_OF_ORDER = "out-of-order"  # cause: one client, two clients; worst: ms
CLOCK_AHEAD = "clock-ahead"  # worst: ms
DEAD_LETTER = "dead-letter"  # cause: result of the last attempt; worst: reconsume times
# Base counts. Reports derive further findings from them, because these depend on the time of the report.
STORED = "stored"  # messages by topic and tag (`cause`); `consumer_group`: all groups that consumed them, separated by spaces
SENT = "sent"  # messages by topic and producer host; cause: traced, untraced
RETRIED = "retried"  # records in a group's retry and dead-letter topics

UNKNOWN_GROUP = "?"  # in `stored`: consumed by a client that does not trace its group
TRACED, UNTRACED = "traced", "untraced"

HEALTH = TableSchema(
    "health",
    "Findings and counts per bucket: one row per kind, minute, topic, group, host and cause. Rows are partial, because a minute "
    "can span several buckets: sum the counts and take the maximum of the worst values. Each message is counted in one bucket.",
    {
        "kind STRING NOT NULL": "see ariane.tables.declarations.health",
        "minute TIMESTAMP NOT NULL": "time at which the message was stored (broker's clock); without a record of it, time at "
        "which its "
        "first trace was stored",
        "topic STRING": "topic of the application, for retries and dead letters as well; null: unknown",
        "consumer_group STRING": "for `stored` possibly several, separated by spaces",
        "host STRING": "client's address without its port",
        "cause STRING": "depends on the kind",
        "count BIGINT NOT NULL": "messages; records for `retried`",
        "worst BIGINT": "depends on the kind",
        "examples ARRAY<STRUCT<worst: BIGINT, message_id: STRING, at: TIMESTAMP, detail: STRING>> NOT NULL": f"the "
        f"{MAX_EXAMPLES} worst, or all if there are fewer",
    },
    sources={
        "kind count": "trace_events.type messages.topic",
        "minute": "messages.store_timestamp trace_events.trace_stored_at",
        "topic": "messages.topic messages.properties trace_events.topic",
        "consumer_group": "trace_events.client_group messages.topic",
        "host": "trace_events.client_host messages.born_host",
        "cause": "messages.tags messages.properties trace_events.context_code trace_events.client_host",
        "worst examples": "messages.store_timestamp messages.born_timestamp messages.reconsume_times messages.message_id "
        "trace_events.event_time trace_events.message_id",
    },
    time_column="minute",
    sort_columns=("kind", "topic", "consumer_group", "minute"),
)
