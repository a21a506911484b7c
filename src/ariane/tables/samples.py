"""What the collector saw of all brokers (`ariane.metrics_collector.poller`), and the consumption that follows from it.

`sampled_at` is the collector's clock when the answer came: rates are differences of two answers by this one clock. Ages of
messages are differences of the broker's own clock.
"""

from __future__ import annotations

from ariane.tables.table import ColumnSchema, TableSchema

WINDOW_MS = 60_000  # Java clients commit every 5 s: in shorter windows a rate of commits would jump

_ORIGIN_COLUMNS = (
    ColumnSchema("collector", "STRING", "which collector: its host's name, or what it was called"),
    ColumnSchema("sampled_at", "TIMESTAMP", "when the answer came: the collector's clock"),
    ColumnSchema("stored_at", "TIMESTAMP", "when the sample was stored: the clock of the broker that keeps it"),
    ColumnSchema("broker", "STRING", "the broker's name, which its master and slaves share"),
    ColumnSchema("broker_id", "BIGINT", "0 master, else a slave"),
)

SAMPLES_BROKERS = TableSchema(
    "samples_brokers",
    "One row per broker, slaves included, and round of the collector; a broker that did not answer has a row, too. Appended "
    "only: a row may be there twice after a fault.",
    (
        *_ORIGIN_COLUMNS,
        ColumnSchema("cluster", "STRING", ""),
        ColumnSchema("addr", "STRING", ""),
        ColumnSchema("error", "STRING", "why it is not known how the broker fares; null: it answered"),
        ColumnSchema("interval_ms", "BIGINT", "pause of the collector between rounds"),
        ColumnSchema("duration_ms", "BIGINT", "how long the questions to this broker took"),
        ColumnSchema("requests", "BIGINT", "how many they were"),
        ColumnSchema("booted_at", "TIMESTAMP", "when the broker was started; its counters began at zero then"),
        ColumnSchema("put_total", "BIGINT", "messages stored since then, those copied from a master included"),
        ColumnSchema("get_total", "BIGINT", "messages handed out since then, to whomever"),
        ColumnSchema("log_min", "BIGINT", "first byte of the commit log"),
        ColumnSchema(
            "log_max", "BIGINT", "end of the commit log: a slave's distance to its master's is what it has to copy"
        ),
        ColumnSchema("dispatch_behind_bytes", "BIGINT", "bytes of the log that are not in consume queues yet"),
        ColumnSchema("skipped_topics", "BIGINT", "topics that had no turn in this round, for it was full"),
        ColumnSchema("skipped_groups", "BIGINT", "the same of pairs of topic and group, whose offsets were not told"),
        ColumnSchema(
            "skipped_counters", "BIGINT", "the same of pairs of topic and group, whose counters were not asked"
        ),
        ColumnSchema(
            "skipped_ages", "BIGINT", "the same of pairs of topic and group, whose oldest message was not asked"
        ),
        ColumnSchema(
            "dropped_samples", "BIGINT", "samples that this collector has thrown away, as no broker took them for long"
        ),
        ColumnSchema("failed_requests", "ARRAY<STRING>", "questions that the broker refused"),
    ),
    time_column="stored_at",
    sort_columns=("broker", "broker_id", "sampled_at"),
    schema=2,
)

SAMPLES_QUEUES = TableSchema(
    "samples_queues",
    "Offsets of masters: one row per queue and round with a null group, and one per queue, group and round. Appended only: a "
    "row may be there twice after a fault.",
    (
        *_ORIGIN_COLUMNS,
        ColumnSchema(
            "bounds_at",
            "TIMESTAMP",
            "when the ends came; the committed offset, which was asked before, came at `sampled_at`",
        ),
        ColumnSchema("topic", "STRING", ""),
        ColumnSchema("consumer_group", "STRING", "null: the queue itself"),
        ColumnSchema("queue_id", "INT", ""),
        ColumnSchema("min_offset", "BIGINT", "first message that is still there; null when the broker did not say"),
        ColumnSchema("max_offset", "BIGINT", "number of the next message; null when the broker did not say"),
        ColumnSchema("committed_offset", "BIGINT", "number of the next message that the group wants"),
        ColumnSchema(
            "oldest_age_ms", "BIGINT", "how long that message has been stored: the broker's clock; null: not known"
        ),
    ),
    time_column="stored_at",
    sort_columns=("topic", "consumer_group", "broker", "queue_id", "sampled_at"),
    schema=2,
)

SAMPLES_COUNTERS = TableSchema(
    "samples_counters",
    "Statistics of brokers, slaves included: one row per statistic, topic, group, broker and round. Appended only: a row may "
    "be there twice after a fault.",
    (
        *_ORIGIN_COLUMNS,
        ColumnSchema("statistic", "STRING", "TOPIC_PUT_NUMS, GROUP_GET_NUMS, GROUP_GET_SIZE or SNDBCK_PUT_NUMS"),
        ColumnSchema("topic", "STRING", ""),
        ColumnSchema("consumer_group", "STRING", "null for those of a topic"),
        ColumnSchema("total", "BIGINT", "what was counted in the broker's last minute: messages, or bytes for _SIZE"),
        ColumnSchema(
            "tps", "DOUBLE", "the same a second; 0 also when the broker has counted none since it was started"
        ),
    ),
    time_column="stored_at",
    sort_columns=("topic", "consumer_group", "broker", "broker_id", "sampled_at"),
    schema=2,
)

SAMPLES_REJECTS = TableSchema(
    "samples_rejects",
    "Messages of the samples' topic that are no samples, and why.",
    (
        ColumnSchema("body", "STRING", "the text as it was"),
        ColumnSchema("reason", "STRING", "what is wrong with it"),
        ColumnSchema("broker", "STRING", "where the message lies"),
        ColumnSchema("queue_id", "INT", ""),
        ColumnSchema("queue_offset", "BIGINT", ""),
        ColumnSchema("stored_at", "TIMESTAMP", ""),
    ),
    time_column="stored_at",
    sort_columns=("stored_at",),
    schema=2,
)

CONSUMPTION = TableSchema(
    "consumption",
    "One row per minute, broker, topic and group, and one with a null group per minute, broker and topic: what came in, what "
    "the group confirmed, what each role handed out, what is left. A value that cannot be known is null and `flags` says why.",
    (
        ColumnSchema("window_start", "TIMESTAMP", "begin of the minute: the collector's clock"),
        ColumnSchema("broker", "STRING", "the broker's name, which its master and slaves share"),
        ColumnSchema("topic", "STRING", ""),
        ColumnSchema("consumer_group", "STRING", "null: the topic itself"),
        ColumnSchema("queues", "BIGINT", "how many queues this is about"),
        ColumnSchema("seconds", "DOUBLE", "how long the samples that the rates come from lie apart"),
        ColumnSchema("produced_tps", "DOUBLE", "messages a second that were stored, by the queues' ends"),
        ColumnSchema("consumed_tps", "DOUBLE", "messages a second that the group confirmed, by its committed offsets"),
        ColumnSchema(
            "delivered_master_tps",
            "DOUBLE",
            "messages a second that the master says it handed to the group: a console's TPS",
        ),
        ColumnSchema("delivered_slaves_tps", "DOUBLE", "the same of all slaves together; 0 when there is none"),
        ColumnSchema("lag", "BIGINT", "messages that the group has not confirmed, at the minute's last sample"),
        ColumnSchema("lag_change", "BIGINT", "how much that is more than at its first sample"),
        ColumnSchema(
            "oldest_age_ms",
            "BIGINT",
            "how long the oldest of them has been stored; null with a lag of 0: there is none",
        ),
        ColumnSchema("removed", "BIGINT", "messages of that lag that the broker has removed already"),
        ColumnSchema(
            "drain_s",
            "DOUBLE",
            "after how long it is all consumed if rates stay as they are; null: it is not, or not known",
        ),
        ColumnSchema("flags", "ARRAY<STRING>", "why a value is null or in doubt"),
    ),
    time_column="window_start",
    sort_columns=("consumer_group", "topic", "broker", "window_start"),
    schema=2,
)
