"""Samples that the metrics collector takes of all brokers (`ariane.metrics_collector`), and the consumption computed from them.

`sampled_at` is the collector's clock at the time of the response: a rate is the difference of two responses by this one clock.
Ages of messages are differences of the broker's own clock.
"""

from __future__ import annotations

from ariane.tables.table import ColumnSchema, TableSchema

WINDOW_MS = 60_000  # Java clients commit every 5 s: rates of commits would jump in shorter windows

_ORIGIN_COLUMNS = (
    ColumnSchema("collector", "STRING", "name of the collector, by default its host name"),
    ColumnSchema("sampled_at", "TIMESTAMP", "time of the response: the collector's clock"),
    ColumnSchema("stored_at", "TIMESTAMP", "time at which the sample was stored: the clock of the storing broker"),
    ColumnSchema("broker", "STRING", "broker name, shared by master and slaves"),
    ColumnSchema("broker_id", "BIGINT", "0: master; otherwise a slave"),
)

SAMPLES_BROKERS = TableSchema(
    "samples_brokers",
    "One row per broker (slaves included) and round of the collector, including brokers that did not respond. Rows are only "
    "appended and may be duplicated after a failure.",
    (
        *_ORIGIN_COLUMNS,
        ColumnSchema("cluster", "STRING", ""),
        ColumnSchema("addr", "STRING", ""),
        ColumnSchema("error", "STRING", "why the broker could not be polled; null: it responded"),
        ColumnSchema("interval_ms", "BIGINT", "pause of the collector between rounds"),
        ColumnSchema("duration_ms", "BIGINT", "duration of all requests to this broker"),
        ColumnSchema("requests", "BIGINT", "number of these requests"),
        ColumnSchema("booted_at", "TIMESTAMP", "start of the broker, at which its counters were zero"),
        ColumnSchema("put_total", "BIGINT", "messages stored since then, including those copied from a master"),
        ColumnSchema("get_total", "BIGINT", "messages delivered since then, to any client"),
        ColumnSchema("log_min", "BIGINT", "first byte of the commit log"),
        ColumnSchema(
            "log_max", "BIGINT", "end of the commit log; the difference to the master's is the backlog of a slave"
        ),
        ColumnSchema(
            "dispatch_behind_bytes", "BIGINT", "bytes of the commit log that are not dispatched to consume queues yet"
        ),
        ColumnSchema("skipped_topics", "BIGINT", "topics not polled in this round because of the limit per round"),
        ColumnSchema(
            "skipped_groups", "BIGINT", "the same for pairs of topic and group whose offsets were not recorded"
        ),
        ColumnSchema(
            "skipped_counters", "BIGINT", "the same for pairs of topic and group whose statistics were not polled"
        ),
        ColumnSchema(
            "skipped_ages", "BIGINT", "the same for pairs of topic and group whose oldest message was not polled"
        ),
        ColumnSchema(
            "dropped_samples", "BIGINT", "samples that this collector has dropped because no broker accepted them"
        ),
        ColumnSchema("failed_requests", "ARRAY<STRING>", "requests that the broker rejected"),
    ),
    time_column="stored_at",
    sort_columns=("broker", "broker_id", "sampled_at"),
    schema=2,
)

SAMPLES_QUEUES = TableSchema(
    "samples_queues",
    "Offsets of masters: one row per queue and round with a null group, and one per queue, group and round. Rows are only "
    "appended and may be duplicated after a failure.",
    (
        *_ORIGIN_COLUMNS,
        ColumnSchema(
            "bounds_at",
            "TIMESTAMP",
            "time of the response with min_offset and max_offset; the committed offset was requested before, see `sampled_at`",
        ),
        ColumnSchema("topic", "STRING", ""),
        ColumnSchema("consumer_group", "STRING", "null: the queue itself"),
        ColumnSchema("queue_id", "INT", ""),
        ColumnSchema("min_offset", "BIGINT", "offset of the first message that is still stored; null: unknown"),
        ColumnSchema("max_offset", "BIGINT", "offset of the next message to be stored; null: unknown"),
        ColumnSchema("committed_offset", "BIGINT", "offset of the next message for the group; null: unknown"),
        ColumnSchema(
            "oldest_age_ms", "BIGINT", "time since that message was stored, by the broker's clock; null: unknown"
        ),
    ),
    time_column="stored_at",
    sort_columns=("topic", "consumer_group", "broker", "queue_id", "sampled_at"),
    schema=2,
)

SAMPLES_COUNTERS = TableSchema(
    "samples_counters",
    "Statistics of brokers (slaves included): one row per statistic, topic, group, broker and round. Rows are only appended and "
    "may be duplicated after a failure.",
    (
        *_ORIGIN_COLUMNS,
        ColumnSchema("statistic", "STRING", "TOPIC_PUT_NUMS, GROUP_GET_NUMS, GROUP_GET_SIZE or SNDBCK_PUT_NUMS"),
        ColumnSchema("topic", "STRING", ""),
        ColumnSchema("consumer_group", "STRING", "null for statistics of a topic"),
        ColumnSchema("total", "BIGINT", "sum of the broker's last minute: messages, or bytes for _SIZE"),
        ColumnSchema("tps", "DOUBLE", "the same per second; also 0 if the broker has counted nothing since its start"),
    ),
    time_column="stored_at",
    sort_columns=("topic", "consumer_group", "broker", "broker_id", "sampled_at"),
    schema=2,
)

SAMPLES_REJECTS = TableSchema(
    "samples_rejects",
    "Messages of the samples topic that are not valid samples, with the reason.",
    (
        ColumnSchema("body", "STRING", "original text"),
        ColumnSchema("reason", "STRING", "why it was rejected"),
        ColumnSchema("broker", "STRING", "broker that stored the message"),
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
    "One row per minute, broker, topic and group, and one with a null group per minute, broker and topic: messages stored, "
    "confirmed by the group, delivered by each role, and pending. Unknown values are null, and `flags` has the reason.",
    (
        ColumnSchema("window_start", "TIMESTAMP", "start of the minute: the collector's clock"),
        ColumnSchema("broker", "STRING", "broker name, shared by master and slaves"),
        ColumnSchema("topic", "STRING", ""),
        ColumnSchema("consumer_group", "STRING", "null: the topic itself"),
        ColumnSchema("queues", "BIGINT", "number of queues included"),
        ColumnSchema("seconds", "DOUBLE", "time between the samples from which the rates are computed"),
        ColumnSchema("produced_tps", "DOUBLE", "messages stored per second, from the max offsets of the queues"),
        ColumnSchema(
            "consumed_tps", "DOUBLE", "messages confirmed by the group per second, from its committed offsets"
        ),
        ColumnSchema(
            "delivered_master_tps",
            "DOUBLE",
            "messages per second delivered to the group according to the master; this is the TPS that consoles show",
        ),
        ColumnSchema("delivered_slaves_tps", "DOUBLE", "the same for all slaves together; 0 if there are none"),
        ColumnSchema("lag", "BIGINT", "messages that the group has not confirmed, at the last sample of the minute"),
        ColumnSchema("lag_change", "BIGINT", "increase of the lag since the first sample of the minute"),
        ColumnSchema(
            "oldest_age_ms", "BIGINT", "time since the oldest of these messages was stored; null if the lag is 0"
        ),
        ColumnSchema("removed", "BIGINT", "messages of the lag that the broker has already deleted"),
        ColumnSchema(
            "drain_s",
            "DOUBLE",
            "time until the lag is consumed at these rates; null: it does not shrink, or rates are unknown",
        ),
        ColumnSchema("flags", "ARRAY<STRING>", "reasons why values are null or doubtful"),
    ),
    time_column="window_start",
    sort_columns=("consumer_group", "topic", "broker", "window_start"),
    schema=2,
)
