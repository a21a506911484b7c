"""How transactions ended."""

from __future__ import annotations

from ariane.tables.table import ColumnSchema, TableSchema

COMMIT, ROLLBACK, UNKNOWN, OPEN, DISCARDED = "commit", "rollback", "unknown", "open", "discarded"

TRANSACTIONS = TableSchema(
    "transactions",
    "One row per transactional message and broker. Times are of the broker's clock. How old an open one is depends on when it is "
    "asked: now less half_stored_at.",
    (
        ColumnSchema("message_id", "STRING", "unique id of the message"),
        ColumnSchema("broker", "STRING", ""),
        ColumnSchema("topic", "STRING", "where a commit puts it"),
        ColumnSchema("producer_group", "STRING", ""),
        ColumnSchema("keys", "STRING", "business keys, joined by blanks"),
        ColumnSchema(
            "half_stored_at",
            "TIMESTAMP",
            "when its half message was stored; null when that record is in no table (any more)",
        ),
        ColumnSchema(
            "half_count", "BIGINT", "first copies of it: more than one when its send was repeated, or it was resumed"
        ),
        ColumnSchema(
            "checks",
            "BIGINT",
            "rounds that asked for it, also in vain; a Java broker also counts those in which it was immune",
        ),
        ColumnSchema("checked_at", "ARRAY<TIMESTAMP>", "when these copies were stored, as far as they are known"),
        ColumnSchema(
            "decision",
            "STRING",
            "commit; rollback: ended, and no commit is known, or its producer's trace says so and it was not asked about since; "
            "unknown: ended, and no commit is known, though its producer's trace says commit; discarded: asked about too often "
            "and put aside; open: none of these. Java brokers do not let op messages be pulled: without traces, what is rolled "
            "back there looks open (last_copy_at tells when it was asked about last)",
        ),
        ColumnSchema(
            "decided_at",
            "TIMESTAMP",
            "when the commit, the op message, or the copy put aside was stored; null where only a trace tells of the decision",
        ),
        ColumnSchema("decision_ms", "BIGINT", "from half_stored_at to decided_at"),
        ColumnSchema("commits", "BIGINT", "committed records: more than one was delivered more than once"),
        ColumnSchema(
            "from_check", "BOOLEAN", "whether the decision answered a check: by the producer's trace, null without one"
        ),
        ColumnSchema(
            "reported_state",
            "STRING",
            "last the producer said: COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW; by its trace, null without one",
        ),
        ColumnSchema(
            "last_copy_at", "TIMESTAMP", "when its newest copy was stored: a broker makes one with each round of checks"
        ),
        ColumnSchema("offset_message_id", "STRING", "broker's id of its newest copy, by which it can be resumed"),
    ),
    time_column="half_stored_at",
    sort_columns=("message_id",),
    schema=2,
)
