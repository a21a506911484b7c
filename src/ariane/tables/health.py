"""What is wrong with messages, counted; and what has to be known beside to judge it."""

from __future__ import annotations

from ariane.tables.table import ColumnSchema, TableSchema

MAX_EXAMPLES = 10  # of a row, the worst ones; `count` says how many there are

# Findings. What `cause`, `worst` and the details of the examples are, stands behind.
CONSUMED_TWICE = "consumed-twice"  # worst: successes
STORED_TWICE = "stored-twice"  # worst: copies; details: their offset ids
OUT_OF_ORDER = "out-of-order"  # cause: one client, two clients; worst: ms
CLOCK_AHEAD = "clock-ahead"  # worst: ms
DEAD_LETTER = "dead-letter"  # cause: result of the last attempt; worst: reconsume times
# What findings are made of when asked, because it depends on what is known by then.
STORED = "stored"  # messages by topic and tag (`cause`); `consumer_group`: all that consumed it, joined by blanks
SENT = "sent"  # messages by topic and producer's host; cause: traced, untraced
RETRIED = "retried"  # records in a group's retry and dead-letter topics

UNKNOWN_GROUP = "?"  # in `stored`: a client that does not tell its group consumed it
TRACED, UNTRACED = "traced", "untraced"

HEALTH = TableSchema(
    "health",
    "Findings and counts per bucket, one row per kind, minute, topic, group, host and cause. Rows are partial: a minute may lie in "
    "several buckets, so counts are summed and worst values compared over rows. Each message is in one bucket.",
    (
        ColumnSchema("kind", "STRING", "see ariane.tables.health"),
        ColumnSchema("minute", "TIMESTAMP", "in which the message was stored: broker's clock; where no record of it is known, when "
               "the first trace of it was stored"),
        ColumnSchema("topic", "STRING", "of the application, of retries and dead letters too; null where nothing tells it"),
        ColumnSchema("consumer_group", "STRING", "for `stored` several, joined by blanks"),
        ColumnSchema("host", "STRING", "client's address, without its port"),
        ColumnSchema("cause", "STRING", "depends on the kind"),
        ColumnSchema("count", "BIGINT", "messages; for `retried` records"),
        ColumnSchema("worst", "BIGINT", "depends on the kind"),
        ColumnSchema(
            "examples",
            "ARRAY<STRUCT<worst: BIGINT, message_id: STRING, at: TIMESTAMP, detail: STRING>>",
            f"the worst {MAX_EXAMPLES}, or all if there are no more",
        ),
    ),
    time_column="minute",
    sort_columns=("kind", "topic", "consumer_group", "minute"),
)  # fmt: skip
