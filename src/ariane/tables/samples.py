"""What the collector saw of all brokers (`ariane.metrics_collector.poller`), and the consumption that follows from it.

`sampled_at` is the collector's clock when the answer came: rates are differences of two answers by this one clock. Ages of
messages are differences of the broker's own clock.
"""

from __future__ import annotations

from ariane.tables.table import Column, Table

WINDOW_MS = 60_000  # Java clients commit every 5 s: in shorter windows a rate of commits would jump

_WHO = (
    Column("collector", "STRING", "which collector: its host's name, or what it was called"),
    Column("sampled_at", "TIMESTAMP", "when the answer came: the collector's clock"),
    Column("stored_at", "TIMESTAMP", "when the sample was stored: the clock of the broker that keeps it"),
    Column("broker", "STRING", "the broker's name, which its master and slaves share"),
    Column("broker_id", "BIGINT", "0 master, else a slave"),
)

SAMPLES_BROKERS = Table(
    "samples_brokers",
    "One row per broker, slaves included, and round of the collector; a broker that did not answer has a row, too. Appended "
    "only: a row may be there twice after a fault.",
    (
        *_WHO,
        Column("cluster", "STRING", ""),
        Column("addr", "STRING", ""),
        Column("away", "STRING", "why it is not known how the broker fares; null: it answered"),
        Column("interval_ms", "BIGINT", "pause of the collector between rounds"),
        Column("took_ms", "BIGINT", "how long the questions to this broker took"),
        Column("requests", "BIGINT", "how many they were"),
        Column("booted_at", "TIMESTAMP", "when the broker was started; its counters began at zero then"),
        Column("put_total", "BIGINT", "messages stored since then, those copied from a master included"),
        Column("get_total", "BIGINT", "messages handed out since then, to whomever"),
        Column("log_min", "BIGINT", "first byte of the commit log"),
        Column("log_max", "BIGINT", "end of the commit log: a slave's distance to its master's is what it has to copy"),
        Column("behind_bytes", "BIGINT", "bytes of the log that are not in consume queues yet"),
        Column("left_topics", "BIGINT", "topics that had no turn in this round, for it was full"),
        Column("left_groups", "BIGINT", "the same of pairs of topic and group, whose offsets were not told"),
        Column("left_counters", "BIGINT", "the same of pairs of topic and group, whose counters were not asked"),
        Column("left_ages", "BIGINT", "the same of pairs of topic and group, whose oldest message was not asked"),
        Column("lost", "BIGINT", "samples that this collector has thrown away, as no broker took them for long"),
        Column("faults", "ARRAY<STRING>", "questions that the broker refused"),
    ),
    time="stored_at",
    order=("broker", "broker_id", "sampled_at"),
)

SAMPLES_QUEUES = Table(
    "samples_queues",
    "Offsets of masters: one row per queue and round with a null group, and one per queue, group and round. Appended only: a "
    "row may be there twice after a fault.",
    (
        *_WHO,
        Column(
            "ends_at",
            "TIMESTAMP",
            "when the ends came; the committed offset, which was asked before, came at `sampled_at`",
        ),
        Column("topic", "STRING", ""),
        Column("consumer_group", "STRING", "null: the queue itself"),
        Column("queue_id", "INT", ""),
        Column("min_offset", "BIGINT", "first message that is still there; null when the broker did not say"),
        Column("max_offset", "BIGINT", "number of the next message; null when the broker did not say"),
        Column("committed_offset", "BIGINT", "number of the next message that the group wants"),
        Column("oldest_age_ms", "BIGINT", "how long that message has been stored: the broker's clock; null: not known"),
    ),
    time="stored_at",
    order=("topic", "consumer_group", "broker", "queue_id", "sampled_at"),
)

SAMPLES_COUNTERS = Table(
    "samples_counters",
    "Statistics of brokers, slaves included: one row per statistic, topic, group, broker and round. Appended only: a row may "
    "be there twice after a fault.",
    (
        *_WHO,
        Column("statistic", "STRING", "TOPIC_PUT_NUMS, GROUP_GET_NUMS, GROUP_GET_SIZE or SNDBCK_PUT_NUMS"),
        Column("topic", "STRING", ""),
        Column("consumer_group", "STRING", "null for those of a topic"),
        Column("total", "BIGINT", "what was counted in the broker's last minute: messages, or bytes for _SIZE"),
        Column("tps", "DOUBLE", "the same a second; 0 also when the broker has counted none since it was started"),
    ),
    time="stored_at",
    order=("topic", "consumer_group", "broker", "broker_id", "sampled_at"),
)

SAMPLES_REJECTS = Table(
    "samples_rejects",
    "Messages of the samples' topic that are no samples, and why.",
    (
        Column("body", "STRING", "the text as it was"),
        Column("reason", "STRING", "what is wrong with it"),
        Column("broker", "STRING", "where the message lies"),
        Column("queue_id", "INT", ""),
        Column("queue_offset", "BIGINT", ""),
        Column("stored_at", "TIMESTAMP", ""),
    ),
    time="stored_at",
    order=("stored_at",),
)

CONSUMPTION = Table(
    "consumption",
    "One row per minute, broker, topic and group, and one with a null group per minute, broker and topic: what came in, what "
    "the group confirmed, what each role handed out, what is left. A value that cannot be known is null and `flags` says why.",
    (
        Column("window_at", "TIMESTAMP", "begin of the minute: the collector's clock"),
        Column("broker", "STRING", "the broker's name, which its master and slaves share"),
        Column("topic", "STRING", ""),
        Column("consumer_group", "STRING", "null: the topic itself"),
        Column("queues", "BIGINT", "how many queues this is about"),
        Column("seconds", "DOUBLE", "how long the samples that the rates come from lie apart"),
        Column("produced_tps", "DOUBLE", "messages a second that were stored, by the queues' ends"),
        Column("consumed_tps", "DOUBLE", "messages a second that the group confirmed, by its committed offsets"),
        Column(
            "delivered_master_tps",
            "DOUBLE",
            "messages a second that the master says it handed to the group: a console's TPS",
        ),
        Column("delivered_slaves_tps", "DOUBLE", "the same of all slaves together; 0 when there is none"),
        Column("lag", "BIGINT", "messages that the group has not confirmed, at the minute's last sample"),
        Column("lag_change", "BIGINT", "how much that is more than at its first sample"),
        Column(
            "oldest_age_ms",
            "BIGINT",
            "how long the oldest of them has been stored; null with a lag of 0: there is none",
        ),
        Column("removed", "BIGINT", "messages of that lag that the broker has removed already"),
        Column(
            "drain_s",
            "DOUBLE",
            "after how long it is all consumed if rates stay as they are; null: it is not, or not known",
        ),
        Column("flags", "ARRAY<STRING>", "why a value is null or in doubt"),
    ),
    time="window_at",
    order=("consumer_group", "topic", "broker", "window_at"),
)
