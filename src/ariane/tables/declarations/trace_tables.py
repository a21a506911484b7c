"""Traces that clients sent about their messages, and the journeys computed from them."""

from __future__ import annotations

from ariane.tables.table import TableSchema

TRACE_EVENTS = TableSchema(
    "trace_events",
    "One row per trace record as written by a client. Rows are only appended. (trace_broker, trace_queue_id, trace_queue_offset, "
    "record_index) identifies a record.",
    {
        "type STRING NOT NULL": "Pub, SubBefore, SubAfter, EndTransaction or Recall",
        "event_time TIMESTAMP": "client's clock; null for SubAfter of clients that do not send it",
        "region STRING": "region of the broker",
        "client_group STRING": "producer or consumer group; null for SubAfter of old clients",
        "topic STRING": "null for consumption, whose records do not carry it",
        "message_id STRING NOT NULL": "unique id of the message; the record of a batch yields one row per id",
        "tags STRING": "",
        "keys STRING": "business keys, separated by spaces",
        "store_host STRING": "address of the target broker",
        "body_length INT": "bytes after compression",
        "cost_ms BIGINT": "duration of the send or of the consumption, as measured by the client: negative if its clock was set "
        "back",
        "message_type INT": "0 normal, 1 half, 2 commit, 3 delay, 4 order",
        "offset_message_id STRING": "broker's id of the message",
        "success BOOLEAN": "whether the client regarded it as successful",
        "request_id STRING": "join key of SubBefore and SubAfter",
        "retry_times INT": "number of earlier deliveries to the group",
        "context_code INT": "0 success, 1 timeout, 2 exception, 3 null, 4 failed; null if not sent",
        "transaction_id STRING": "EndTransaction only",
        "transaction_state STRING": "COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW",
        "from_check BOOLEAN": "whether the decision answered a check by the broker",
        "client_host STRING": "client that wrote the record: from the record, otherwise the sender's address of the trace "
        "message",
        "trace_broker STRING NOT NULL": "broker that stored the trace message",
        "trace_queue_id INT NOT NULL": "",
        "trace_queue_offset BIGINT NOT NULL": "",
        "record_index INT NOT NULL": "index of the record in its trace message, from 0",
        "trace_stored_at TIMESTAMP NOT NULL": "time at which the trace message was stored: the broker's clock",
        "clock_lower_ms BIGINT": "lower bound of (broker's clock - client's clock) as the client measured it at that time; null: "
        "it did not",
        "clock_upper_ms BIGINT": "upper bound; null if clock_lower_ms is",
        "client_process STRING": "process that wrote the record: its address, pid and a constant, in hex, from the unique id of "
        "the trace message; null: no such id",
    },
    sources={
        "*": "@traces.body",
        "client_host": "@traces.body @traces.born_host",
        "trace_broker": "@traces.broker",
        "trace_queue_id": "@traces.queue_id",
        "trace_queue_offset": "@traces.queue_offset",
        "trace_stored_at": "@traces.store_timestamp",
        "clock_lower_ms clock_upper_ms": "@traces.properties @traces.body",
        "client_process": "@traces.properties",
    },
    units={"body_length": "bytes"},
    time_column="trace_stored_at",
    sort_columns=("message_id",),
    row_group_bytes=1024 * 1024,  # few messages of a bucket are read again and again
    schema=3,
)

TRACE_REJECTS = TableSchema(
    "trace_rejects",
    "Trace records that cannot be decoded, with the reason.",
    {
        "record STRING NOT NULL": "original text",
        "reason STRING NOT NULL": "why it was rejected",
        "trace_broker STRING NOT NULL": "",
        "trace_queue_id INT NOT NULL": "",
        "trace_queue_offset BIGINT NOT NULL": "",
        "record_index INT NOT NULL": "",
        "trace_stored_at TIMESTAMP NOT NULL": "",
    },
    sources={
        "*": "@traces.body",
        "trace_broker": "@traces.broker",
        "trace_queue_id": "@traces.queue_id",
        "trace_queue_offset": "@traces.queue_offset",
        "trace_stored_at": "@traces.store_timestamp",
    },
    time_column="trace_stored_at",
    sort_columns=("trace_stored_at",),
)

CLOCKS = TableSchema(
    "clocks",
    "Clock offsets of clients that do not measure them: per address and minute, the bounds of (broker's clock - client's clock) "
    "that more than half of the messages agree on. One row per time bucket: of several rows of an address, client and minute, each "
    "holds.",
    {
        "host STRING NOT NULL": "IP address of the client",
        "client STRING": "process (`client_process` in `trace_events`) or client id, if the address may have several clocks (NAT, "
        "containers); null: one clock for the clients of the address",
        "minute TIMESTAMP NOT NULL": "minute of the broker's clock in which the traces were stored",
        "lower_ms BIGINT": "lower bound of the offset; null: unbounded",
        "upper_ms BIGINT": "upper bound of the offset; null: unbounded. Less than lower_ms: no majority agrees, or the clock was "
        "set in this minute, the one before or the one after; no time is corrected",
        "messages BIGINT NOT NULL": "messages with a record of this clock; each gives an upper bound",
        "sends BIGINT NOT NULL": "messages whose store time (from `messages`) was compared with their send",
        "deliveries BIGINT NOT NULL": "messages whose store time (from `messages`) was compared with their delivery",
        "discarded BIGINT NOT NULL": "messages that were not used because their records contradict these bounds; without a "
        "majority all "
        "messages",
        "discarded_ids ARRAY<STRING> NOT NULL": "up to 8 ids of discarded messages; empty without a majority",
    },
    sources={
        "host": "trace_events.client_host",
        "client": "trace_events.client_process trace_events.client_host",
        "minute": "trace_events.trace_stored_at",
        "*": "trace_events.message_id trace_events.event_time trace_events.cost_ms trace_events.trace_stored_at "
        "trace_events.offset_message_id messages.store_timestamp",
    },
    time_column="minute",
    sort_columns=("host", "minute"),
    schema=3,
)

DELIVERY = (
    "STRUCT<request_id:STRING,started_at:TIMESTAMP,ended_at:TIMESTAMP,cost_ms:BIGINT,result:STRING,retry_times:INT,host:STRING,"
    "region:STRING,clock_ms:BIGINT,clock_error_ms:BIGINT,started_corrected_at:TIMESTAMP,ended_corrected_at:TIMESTAMP>"
)
DECISION = "STRUCT<decided_at:TIMESTAMP,state:STRING,from_check:BOOLEAN,host:STRING,transaction_id:STRING>"

# Reasons why `queueing_ms` of a delivered message is null.
OUTLIER, CONTRADICTION, BEFORE_SENT, NO_CLOCK, NO_STORE_TIME = (
    "outlier", "contradiction", "before_sent", "no_clock", "no_store_time",
)  # fmt: skip

JOURNEYS = TableSchema(
    "journeys",
    "One row per message and consumer group, or one with a null group if no consumption of the message was seen. Times named "
    "*_corrected_at are converted to the broker's clock, see `clocks`. Durations are never negative.",
    {
        "message_id STRING NOT NULL": "unique id of the message",
        "consumer_group STRING": "null: no consumption was seen, or (attempts not null) the client's version does not trace its "
        "group",
        "topic STRING": "null if neither the send nor the record was seen",
        "keys STRING": "business keys, separated by spaces",
        "tags STRING": "",
        "message_type INT": "0 normal, 1 half, 2 commit, 3 delay, 4 order; null if the send left no trace",
        "region STRING": "region of the broker",
        "producer_group STRING": "",
        "producer_host STRING": "client that traced the send: from its record, otherwise the sender's address of the trace "
        "message",
        "store_host STRING": "address of the broker",
        "offset_message_id STRING": "broker's id of the record that the send created",
        "sent_at TIMESTAMP": "producer's clock: start of the successful send",
        "sent_corrected_at TIMESTAMP": "the same by the broker's clock; null: the clock offset is unknown, or this record "
        "contradicts its bounds",
        "producer_clock_ms BIGINT": "estimate of broker's clock - producer's clock; null if sent_corrected_at is",
        "producer_clock_error_ms BIGINT": "maximum error of the estimate",
        "producer_clock_measured BOOLEAN": "whether the producer measured the offset itself; otherwise it is from `clocks`; null "
        "if producer_clock_ms is",
        "send_cost_ms BIGINT": "duration of the send, until the broker's response",
        "stored_at TIMESTAMP": "broker's clock (stored_exact); otherwise the time of the response, an upper bound, corrected if "
        "the producer's clock offset is known",
        "stored_exact BOOLEAN": "whether stored_at is the broker's own time; null if stored_at is",
        "available_at TIMESTAMP": "broker's clock: stored in its target topic, visible to consumers; null: unknown",
        "delay_ms BIGINT": "time for which the broker held the message back (delay, transaction); null: unknown",
        "sends BIGINT": "number of traced sends of this id",
        "sent_ok BOOLEAN": "whether one of them succeeded; null if none was traced",
        "recalled_at TIMESTAMP": "producer's clock, or that of the machine of an operator who cancelled it: the delayed message "
        "was recalled. Without a traced recall, when its record was stored, by the producer's clock (the broker's if the offset is "
        "unknown)",
        f"transactions ARRAY<{DECISION}>": "decisions sent by producers (their clocks), in order; null if none was traced",
        "transaction_state STRING": "COMMIT_MESSAGE or ROLLBACK_MESSAGE: the last such decision; UNKNOW: only that was sent; "
        "null: none was traced",
        "first_pulled_at TIMESTAMP": "broker's clock: first pop by a 5.x client, from the property 1ST_POP_TIME of its retries; "
        "otherwise null, as pulls are not traced",
        "delivered_at TIMESTAMP": "consumer's clock: first call of the listener, from its SubBefore record, otherwise its end "
        "minus its cost",
        "delivered_corrected_at TIMESTAMP": "the same by the broker's clock; null: the clock offset is unknown, or this record "
        "contradicts its bounds",
        "delivered_error_ms BIGINT": "maximum error of delivered_corrected_at",
        "delivered_clock_measured BOOLEAN": "whether the consumer measured the offset itself; otherwise it is from `clocks`; "
        "null if delivered_corrected_at is",
        "queueing_ms BIGINT": "from available_at (otherwise stored_at) to delivered_corrected_at; by the clients' clocks if no "
        "offset is known (error null); 0 if the delivery preceded the response to the producer; null: unknown",
        "queueing_error_ms BIGINT": "maximum error of queueing_ms; null: unknown",
        "queueing_missing STRING": "why queueing_ms is null: outlier, contradiction, before_sent, no_clock, no_store_time "
        "(docs/journeys.md); null if it is not, and without a delivery",
        "consume_cost_ms BIGINT": "duration of the last attempt",
        "consumed_at TIMESTAMP": "consumer's clock: end of the last attempt",
        "attempts BIGINT": "calls of the listener; null: none was traced",
        "consumed_times BIGINT": "successful calls: more than 1 means duplicate consumption (or broadcasting)",
        "retries INT": "number of redeliveries according to the last record that has it; null: unknown",
        "result STRING": "of the last attempt: success, timeout, exception, null, failed; unknown: its end was not traced",
        "consumer_host STRING": "client that traced the last attempt, see producer_host",
        f"deliveries ARRAY<{DELIVERY}>": "attempts in order, with started_at and ended_at by the consumer's clock; of more than "
        "64 the first and the last 32",
        "dead_lettered_at TIMESTAMP": "broker's clock: stored in the group's dead-letter topic",
        "dead_lettered BOOLEAN": "null if `messages` has no record of the message",
        "clock_skew BOOLEAN": "whether clocks are the reason why queueing_ms is null: outlier, contradiction or before_sent in "
        "queueing_missing; null without a delivery",
    },
    sources={
        "*": "trace_events.*",
        "consumer_group": "trace_events.client_group messages.topic messages.properties",
        "topic": "trace_events.topic messages.topic",
        "producer_group": "trace_events.client_group",
        "producer_host consumer_host": "trace_events.client_host",
        "sent_at": "trace_events.event_time",
        "sent_corrected_at producer_clock_ms producer_clock_error_ms": "trace_events.event_time clocks.lower_ms "
        "clocks.upper_ms trace_events.clock_lower_ms trace_events.clock_upper_ms messages.store_timestamp",
        "producer_clock_measured delivered_clock_measured": "trace_events.clock_lower_ms clocks.lower_ms",
        "send_cost_ms consume_cost_ms": "trace_events.cost_ms",
        "stored_at": "messages.store_timestamp trace_events.event_time trace_events.cost_ms clocks.lower_ms clocks.upper_ms",
        "stored_exact delay_ms": "messages.store_timestamp",
        "available_at dead_lettered_at": "messages.store_timestamp messages.topic",
        "dead_lettered": "messages.topic",
        "sends": "trace_events.event_time trace_events.offset_message_id",
        "sent_ok": "trace_events.success",
        "recalled_at": "trace_events.event_time trace_events.success messages.store_timestamp messages.properties "
        "clocks.lower_ms clocks.upper_ms",
        "transactions": "trace_events.event_time trace_events.transaction_state trace_events.from_check "
        "trace_events.client_host trace_events.transaction_id",
        "first_pulled_at": "messages.properties",
        "delivered_at consumed_at": "trace_events.event_time trace_events.cost_ms",
        "delivered_corrected_at delivered_error_ms": "trace_events.event_time clocks.lower_ms clocks.upper_ms "
        "trace_events.clock_lower_ms trace_events.clock_upper_ms messages.store_timestamp",
        "queueing_ms queueing_error_ms queueing_missing clock_skew": "trace_events.event_time trace_events.cost_ms "
        "clocks.lower_ms clocks.upper_ms trace_events.clock_lower_ms trace_events.clock_upper_ms messages.store_timestamp",
        "attempts": "trace_events.request_id",
        "consumed_times result": "trace_events.context_code trace_events.success",
        "retries": "trace_events.retry_times",
        "deliveries": "trace_events.request_id trace_events.event_time trace_events.cost_ms trace_events.context_code "
        "trace_events.success trace_events.retry_times trace_events.client_host trace_events.region clocks.lower_ms "
        "clocks.upper_ms trace_events.clock_lower_ms trace_events.clock_upper_ms",
    },
    time_column="stored_at",
    sort_columns=("message_id", "consumer_group"),
    schema=5,
)

MESSAGE_KEYS = TableSchema(
    "message_keys",
    "Index from search terms to messages. Rows may be duplicated.",
    {
        "term STRING NOT NULL": "a business key, or the broker's id of the message",
        "message_id STRING NOT NULL": "unique id of the message",
        "journey_bucket STRING NOT NULL": "time bucket of its journeys",
        "first_traced_at TIMESTAMP NOT NULL": "time at which the broker stored its first trace",
    },
    sources={
        "term": "trace_events.keys trace_events.offset_message_id",
        "message_id journey_bucket": "trace_events.message_id",
        "first_traced_at": "trace_events.trace_stored_at",
    },
    time_column="first_traced_at",
    sort_columns=("term", "first_traced_at"),
    schema=2,
    row_group_bytes=1024 * 1024,
)
