"""Samples that the metrics collector takes of all brokers (`ariane.metrics_collector`), and the consumption computed from them.

`sampled_at` is the collector's clock at the time of the response: a rate is the difference of two responses by this one clock.
Ages of messages are differences of the broker's own clock.
"""

from __future__ import annotations

from ariane.tables.table import TableSchema

WINDOW_MS = 60_000  # Java clients commit every 5 s: rates of commits would jump in shorter windows

_ORIGIN_COLUMNS = {
    "collector STRING NOT NULL": "name of the collector, by default its host name",
    "sampled_at TIMESTAMP NOT NULL": "time of the response: the collector's clock",
    "stored_at TIMESTAMP NOT NULL": "time at which the sample was stored: the clock of the storing broker",
    "broker STRING NOT NULL": "broker name, shared by master and slaves",
    "broker_id BIGINT NOT NULL": "0: master; otherwise a slave",
}

SAMPLES_BROKERS = TableSchema(
    "samples_brokers",
    "One row per broker (slaves included) and round of the collector, including brokers that did not respond. Rows are only "
    "appended and may be duplicated after a failure.",
    {
        **_ORIGIN_COLUMNS,
        "cluster STRING": "",
        "addr STRING": "",
        "error STRING": "why the broker could not be polled; null: it responded",
        "interval_ms BIGINT": "pause of the collector between rounds",
        "duration_ms BIGINT": "duration of all requests to this broker",
        "requests BIGINT": "number of these requests",
        "booted_at TIMESTAMP": "start of the broker, at which its counters were zero",
        "put_total BIGINT": "messages stored since then, including those copied from a master",
        "get_total BIGINT": "messages delivered since then, to any client",
        "log_min BIGINT": "first byte of the commit log",
        "log_max BIGINT": "end of the commit log; the difference to the master's is the backlog of a slave",
        "dispatch_behind_bytes BIGINT": "bytes of the commit log that are not dispatched to consume queues yet",
        "skipped_topics BIGINT": "topics not polled in this round because of the limit per round",
        "skipped_groups BIGINT": "the same for pairs of topic and group whose offsets were not recorded",
        "skipped_counters BIGINT": "the same for pairs of topic and group whose statistics were not polled",
        "skipped_ages BIGINT": "the same for pairs of topic and group whose oldest message was not polled",
        "dropped_samples BIGINT": "samples that this collector has dropped because no broker accepted them",
        "failed_requests ARRAY<STRING>": "requests that the broker rejected",
    },
    sources={
        "*": "@samples.body",
        "stored_at": "@samples.store_timestamp",
    },
    units={"log_min": "bytes", "log_max": "bytes"},
    time_column="stored_at",
    sort_columns=("broker", "broker_id", "sampled_at"),
    schema=2,
)

SAMPLES_QUEUES = TableSchema(
    "samples_queues",
    "Offsets of masters: one row per queue and round with a null group, and one per queue, group and round. Rows are only "
    "appended and may be duplicated after a failure.",
    {
        **_ORIGIN_COLUMNS,
        "bounds_at TIMESTAMP": "time of the response with min_offset and max_offset; the committed offset was requested before, "
        "see `sampled_at`",
        "topic STRING NOT NULL": "",
        "consumer_group STRING": "null: the queue itself",
        "queue_id INT": "",
        "min_offset BIGINT": "offset of the first message that is still stored; null: unknown",
        "max_offset BIGINT": "offset of the next message to be stored; null: unknown",
        "committed_offset BIGINT": "offset of the next message for the group; null: unknown",
        "oldest_age_ms BIGINT": "time since that message was stored, by the broker's clock; null: unknown",
    },
    sources={
        "*": "@samples.body",
        "stored_at": "@samples.store_timestamp",
    },
    time_column="stored_at",
    sort_columns=("topic", "consumer_group", "broker", "queue_id", "sampled_at"),
    schema=2,
)

SAMPLES_COUNTERS = TableSchema(
    "samples_counters",
    "Statistics of brokers (slaves included): one row per statistic, topic, group, broker and round. Rows are only appended and "
    "may be duplicated after a failure.",
    {
        **_ORIGIN_COLUMNS,
        "statistic STRING NOT NULL": "TOPIC_PUT_NUMS, GROUP_GET_NUMS, GROUP_GET_SIZE or SNDBCK_PUT_NUMS",
        "topic STRING NOT NULL": "",
        "consumer_group STRING": "null for statistics of a topic",
        "total BIGINT": "sum of the broker's last minute: messages, or bytes for _SIZE",
        "tps DOUBLE": "the same per second; also 0 if the broker has counted nothing since its start",
    },
    sources={
        "*": "@samples.body",
        "stored_at": "@samples.store_timestamp",
    },
    units={"tps": "1/s"},
    time_column="stored_at",
    sort_columns=("topic", "consumer_group", "broker", "broker_id", "sampled_at"),
    schema=2,
)

SAMPLES_REJECTS = TableSchema(
    "samples_rejects",
    "Messages of the samples topic that are not valid samples, with the reason.",
    {
        "body STRING": "original text",
        "reason STRING NOT NULL": "why it was rejected",
        "broker STRING NOT NULL": "broker that stored the message",
        "queue_id INT NOT NULL": "",
        "queue_offset BIGINT NOT NULL": "",
        "stored_at TIMESTAMP NOT NULL": "",
    },
    sources={
        "body reason": "@samples.body",
        "stored_at": "@samples.store_timestamp",
        "*": "@samples.*",
    },
    time_column="stored_at",
    sort_columns=("stored_at",),
    schema=2,
)

CONSUMPTION = TableSchema(
    "consumption",
    "One row per minute, broker, topic and group, and one with a null group per minute, broker and topic: messages stored, "
    "confirmed by the group, delivered by each role, and pending. Unknown values are null, and `flags` has the reason.",
    {
        "window_start TIMESTAMP NOT NULL": "start of the minute: the collector's clock",
        "broker STRING NOT NULL": "broker name, shared by master and slaves",
        "topic STRING NOT NULL": "",
        "consumer_group STRING": "null: the topic itself",
        "queues BIGINT": "number of queues included",
        "seconds DOUBLE": "time between the samples from which the rates are computed. consumed_tps × seconds is the number of "
        "messages confirmed in it; without a group, produced_tps × seconds that of messages stored",
        "produced_tps DOUBLE": "messages stored per second of this time, from the max offsets of the queues",
        "consumed_tps DOUBLE": "messages confirmed by the group per second of this time, from its committed offsets. A step in "
        "which the offset of a queue is new or moved back adds nothing for this queue",
        "delivered_master_tps DOUBLE": "messages per second delivered to the group according to the master; this is the TPS that "
        "consoles show",
        "delivered_slaves_tps DOUBLE": "the same for all slaves together; 0 if there are none",
        "lag BIGINT": "messages that the group has not confirmed, at the last sample of the minute",
        "lag_change BIGINT": "increase of the lag since the first sample of the minute",
        "oldest_age_ms BIGINT": "time since the oldest of these messages was stored; null if the lag is 0",
        "removed BIGINT": "messages of the lag that the broker has already deleted",
        "drain_s DOUBLE": "time until the lag is consumed at these rates; null: it does not shrink, or rates are unknown",
        "flags ARRAY<STRING> NOT NULL": "reasons why values are null or doubtful",
    },
    sources={
        "window_start": "samples_queues.sampled_at",
        "broker topic consumer_group": "samples_queues.*",
        "queues": "samples_queues.queue_id",
        "seconds": "samples_queues.sampled_at samples_queues.bounds_at",
        "produced_tps": "samples_queues.max_offset samples_queues.bounds_at",
        "consumed_tps": "samples_queues.committed_offset samples_queues.sampled_at",
        "delivered_master_tps": "samples_counters.tps",
        "delivered_slaves_tps": "samples_counters.tps samples_brokers.broker_id",
        "lag lag_change": "samples_queues.max_offset samples_queues.committed_offset",
        "oldest_age_ms": "samples_queues.oldest_age_ms samples_queues.max_offset samples_queues.committed_offset",
        "removed": "samples_queues.min_offset samples_queues.committed_offset",
        "drain_s": "samples_queues.max_offset samples_queues.committed_offset samples_queues.sampled_at "
        "samples_queues.bounds_at",
        "flags": "samples_queues.min_offset samples_queues.max_offset samples_queues.committed_offset "
        "samples_queues.oldest_age_ms samples_counters.tps samples_brokers.error",
    },
    units={"seconds": "s"},
    time_column="window_start",
    sort_columns=("consumer_group", "topic", "broker", "window_start"),
    schema=2,
)
