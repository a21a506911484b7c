"""Who sent and consumed how much, how fast; and the slowest messages.

traffic         partial rows: those of a minute, topic, group and host may come from several buckets, and add up
latencies       its histograms by ten minutes, without hosts
slow_messages   the slowest of each bucket: the slowest of a longer time are among them
"""

from __future__ import annotations

from ariane.tables import histogram, trace_tables
from ariane.tables.table import ColumnSchema, TableSchema

MEASURES = ("send_cost_ms", "queueing_ms", "consume_cost_ms")
LATENCY_WINDOW_MINUTES = 10  # of LATENCIES

# Of each measure, per bucket, topic and group. The ten slowest of an hour are among the ten slowest of its buckets.
SLOWEST_PER_BUCKET = 10

# Why a call of a listener, or a send, is not in a histogram.
REDELIVERED, NO_COST = "redelivered", "no_cost"
EXCLUSION_REASONS = {
    REDELIVERED: "the message was delivered again: only its first delivery counts",
    trace_tables.OUTLIER: "its record contradicts its host's clock, as most records give it",
    trace_tables.CONTRADICTION: "no majority of the records agrees on the clock of its host",
    trace_tables.BEFORE_SENT: "it was delivered before it was sent, by clocks that are not known",
    trace_tables.NO_CLOCK: "the clock of its host is not known",
    trace_tables.NO_STORE_TIME: "the time when the message was stored is not known",
}
# Counters: name → measure, reason, meaning.
EXCLUSION_COUNTERS = {
    "send_cost_missing": ("send_cost_ms", NO_COST, "no cost is known, or a negative one (a clock was set back)"),
    **{f"queueing_{reason}": ("queueing_ms", reason, meaning) for reason, meaning in EXCLUSION_REASONS.items()},
    "consume_cost_missing": ("consume_cost_ms", NO_COST, "the listener has not ended, or its end left no trace"),
}
_EXCLUSION_COLUMNS = tuple(
    ColumnSchema(name, "BIGINT", f"how many are not in {measure}: {meaning}")
    for name, (measure, _, meaning) in EXCLUSION_COUNTERS.items()
)

TRAFFIC = TableSchema(
    "traffic",
    "Messages sent and consumed per minute. Rows are partial: sum those of the same minute, direction, topic, group and host.",
    (
        ColumnSchema(
            "minute", "TIMESTAMP", "its beginning, by the client's clock: of the send, or of the consumption's end"
        ),
        ColumnSchema("direction", "STRING", "out: sent by producers; in: consumed"),
        ColumnSchema("topic", "STRING", "null: consumed, and the send left no trace"),
        ColumnSchema(
            "client_group", "STRING", "producer or consumer group; null where the client's version does not trace it"
        ),
        ColumnSchema("client_host", "STRING", "IP address of the client"),
        ColumnSchema(
            "messages",
            "BIGINT",
            "out: sends, in: calls of listeners; each message of a batch and each attempt counted, of more than 64 attempts 64",
        ),
        ColumnSchema("successes", "BIGINT", "out: the broker stored it; in: the listener succeeded"),
        ColumnSchema("failures", "BIGINT", "the contrary; what is neither has not ended, or its end left no trace"),
        ColumnSchema("bytes", "BIGINT", "out: bodies after compression; null: in, whose traces do not tell"),
        ColumnSchema(
            "send_cost_ms", histogram.TYPE, "histogram: from the send to the broker's answer; null: none known"
        ),
        ColumnSchema(
            "queueing_ms",
            histogram.TYPE,
            "histogram: from the broker's answer to the listener's first call; null: none known",
        ),
        ColumnSchema("consume_cost_ms", histogram.TYPE, "histogram: in the listener; null: none known"),
        ColumnSchema("send_cost_ms_max", "BIGINT", "the greatest, exactly"),
        ColumnSchema("queueing_ms_max", "BIGINT", "the greatest, exactly"),
        ColumnSchema("consume_cost_ms_max", "BIGINT", "the greatest, exactly"),
        *_EXCLUSION_COLUMNS,
    ),
    time_column="minute",
    sort_columns=("minute", "direction", "topic", "client_group"),
    schema=3,
)

LATENCIES = TableSchema(
    "latencies",
    "Histograms of `traffic` by ten minutes and without hosts, for questions about longer times. Rows are partial: add up those "
    "of the same time, topic and group.",
    (
        ColumnSchema("window_start", "TIMESTAMP", "of the ten minutes, by the client's clock"),
        ColumnSchema("topic", "STRING", "null: consumed, and the send left no trace"),
        ColumnSchema(
            "client_group", "STRING", "producer or consumer group; null where the client's version does not trace it"
        ),
        *(column for column in TRAFFIC.columns if column.name in (*MEASURES, *(f"{name}_max" for name in MEASURES))),
        *_EXCLUSION_COLUMNS,
    ),
    time_column="window_start",
    sort_columns=("window_start", "topic", "client_group"),
    schema=3,
)

SLOW_MESSAGES = TableSchema(
    "slow_messages",
    f"The {SLOWEST_PER_BUCKET} slowest messages per measure, topic and group of every bucket: of a longer time, "
    f"the slowest {SLOWEST_PER_BUCKET} are among them, others may not be.",
    (
        ColumnSchema(
            "measured_at",
            "TIMESTAMP",
            "client's clock: start of the send, or end of the first or the slowest call (its start if that is all)",
        ),
        ColumnSchema("measure", "STRING", "send_cost_ms, queueing_ms or consume_cost_ms"),
        ColumnSchema(
            "ms", "BIGINT", "how long it took: queueing until the first call, consumption in the slowest call"
        ),
        ColumnSchema("topic", "STRING", "null: the send left no trace"),
        ColumnSchema("client_group", "STRING", "producer group of a send, else consumer group"),
        ColumnSchema("client_host", "STRING", "IP address of that client: of the send or the call"),
        ColumnSchema("message_id", "STRING", "for `ariane trace --id`"),
        ColumnSchema("keys", "STRING", "business keys, joined by blanks"),
    ),
    time_column="measured_at",
    sort_columns=("measure", "topic", "client_group"),
    schema=2,
)
