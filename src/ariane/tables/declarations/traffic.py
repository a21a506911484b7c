"""Throughput and latency of producers and consumers, and the slowest messages.

traffic         partial rows: a minute, topic, group and host can have rows from several buckets, which are summed
latencies       the histograms of `traffic` by ten minutes, without hosts
slow_messages   the slowest messages of each bucket, which include the slowest of any longer time
"""

from __future__ import annotations

from ariane.tables import histogram
from ariane.tables.declarations import trace_tables
from ariane.tables.table import TableSchema

MEASURES = ("send_cost_ms", "queueing_ms", "consume_cost_ms")
LATENCY_WINDOW_MINUTES = 10  # of LATENCIES

# Per measure, bucket, topic and group. The ten slowest of an hour are among the ten slowest of its buckets.
SLOWEST_PER_BUCKET = 10

# Reasons why a listener call or a send is not in a histogram.
REDELIVERED, NO_COST = "redelivered", "no_cost"
EXCLUSION_REASONS = {
    REDELIVERED: "only the first delivery of a message counts",
    trace_tables.OUTLIER: "contradicts most other records of its host's clock",
    trace_tables.CONTRADICTION: "no majority of records agrees on its host's clock",
    trace_tables.BEFORE_SENT: "delivered before sent, by clocks of unknown offset",
    trace_tables.NO_CLOCK: "the clock offset of its host is unknown",
    trace_tables.NO_STORE_TIME: "the store time of the message is unknown",
}
# Counter columns: name → measure, reason, description.
EXCLUSION_COUNTERS = {
    "send_cost_missing": ("send_cost_ms", NO_COST, "the duration is unknown or negative (a clock was set back)"),
    **{f"queueing_{reason}": ("queueing_ms", reason, description) for reason, description in EXCLUSION_REASONS.items()},
    "consume_cost_missing": ("consume_cost_ms", NO_COST, "the listener is still running, or its end left no trace"),
}
_LATENCY_COLUMNS = {
    f"send_cost_ms {histogram.TYPE}": "histogram: from the send to the broker's response; null: no values",
    f"queueing_ms {histogram.TYPE}": "histogram: from storing to the first listener call; null: no values",
    f"consume_cost_ms {histogram.TYPE}": "histogram: duration of listener calls; null: no values",
    "send_cost_ms_max BIGINT": "exact maximum",
    "queueing_ms_max BIGINT": "exact maximum",
    "consume_cost_ms_max BIGINT": "exact maximum",
}
_EXCLUSION_COLUMNS = {
    f"{name} BIGINT": f"number not included in {measure}: {description}"
    for name, (measure, _, description) in EXCLUSION_COUNTERS.items()
}

TRAFFIC = TableSchema(
    "traffic",
    "Messages sent and consumed per minute. Rows are partial: sum the rows of a minute, direction, topic, group and host.",
    {
        "minute TIMESTAMP NOT NULL": "start of the minute, by the client's clock: of the send, or of the end of the "
        "consumption",
        "direction STRING NOT NULL": "out: sent by producers; in: consumed",
        "topic STRING": "null: a consumption whose send left no trace",
        "client_group STRING": "producer or consumer group; null if the client's version does not trace it",
        "client_host STRING": "IP address of the client",
        "messages BIGINT NOT NULL": "out: sends; in: listener calls. Each message of a batch and each attempt counts, but at "
        "most 64 "
        "attempts per message",
        "successes BIGINT NOT NULL": "out: stored by the broker; in: the listener succeeded",
        "failures BIGINT NOT NULL": "failed sends or calls; those that are neither are still running, or their end left no "
        "trace",
        "bytes BIGINT": "out: size of the bodies after compression; in: null, because consumption traces do not contain it",
        **_LATENCY_COLUMNS,
        **_EXCLUSION_COLUMNS,
    },
    sources={
        "minute": "trace_events.event_time journeys.deliveries",
        "direction messages": "trace_events.type journeys.deliveries",
        "topic": "trace_events.topic journeys.topic",
        "client_group": "trace_events.client_group journeys.consumer_group",
        "client_host": "trace_events.client_host journeys.deliveries",
        "successes failures": "trace_events.success journeys.deliveries",
        "bytes": "trace_events.body_length",
        "send_cost_ms send_cost_ms_max send_cost_missing": "trace_events.cost_ms",
        "queueing_ms queueing_ms_max": "journeys.queueing_ms",
        "consume_cost_ms consume_cost_ms_max consume_cost_missing queueing_redelivered": "journeys.deliveries",
        "*": "journeys.queueing_missing",
    },
    units={"bytes": "bytes"},
    time_column="minute",
    sort_columns=("minute", "direction", "topic", "client_group"),
    schema=3,
)

LATENCIES = TableSchema(
    "latencies",
    "Histograms of `traffic` by ten minutes and without hosts, for queries over longer times. Rows are partial: sum the rows of "
    "a window, topic and group.",
    {
        "window_start TIMESTAMP NOT NULL": "start of the ten minutes, by the client's clock",
        "topic STRING": "null: a consumption whose send left no trace",
        "client_group STRING": "producer or consumer group; null if the client's version does not trace it",
        **_LATENCY_COLUMNS,
        **_EXCLUSION_COLUMNS,
    },
    sources={
        "window_start": "traffic.minute",
        "*": "traffic.*",
    },
    time_column="window_start",
    sort_columns=("window_start", "topic", "client_group"),
    schema=3,
)

SLOW_MESSAGES = TableSchema(
    "slow_messages",
    f"The {SLOWEST_PER_BUCKET} slowest messages per measure, topic, group and bucket. They include the "
    f"{SLOWEST_PER_BUCKET} slowest messages of any longer time.",
    {
        "measured_at TIMESTAMP": "client's clock: start of the send, or end of the first or slowest call (its start if the end "
        "was not traced)",
        "measure STRING NOT NULL": "send_cost_ms, queueing_ms or consume_cost_ms",
        "ms BIGINT NOT NULL": "duration: of the send, of queueing until the first call, or of the slowest call",
        "topic STRING": "null: the send left no trace",
        "client_group STRING": "producer group of a send, otherwise consumer group",
        "client_host STRING": "IP address of the sending or consuming client",
        "message_id STRING NOT NULL": "argument for `ariane trace --id`",
        "keys STRING": "business keys, separated by spaces",
    },
    sources={
        "measured_at": "journeys.sent_at journeys.deliveries",
        "measure ms": "journeys.send_cost_ms journeys.queueing_ms journeys.deliveries",
        "client_group": "journeys.producer_group journeys.consumer_group",
        "client_host": "journeys.producer_host journeys.deliveries",
        "*": "journeys.*",
    },
    units={"ms": "ms"},
    time_column="measured_at",
    sort_columns=("measure", "topic", "client_group"),
    schema=2,
)
