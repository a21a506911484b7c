"""What clients told of their messages, and the journeys that follow from it."""

from __future__ import annotations

from ariane.tables.table import ColumnSchema, TableSchema

TRACE_EVENTS = TableSchema(
    "trace_events",
    "One row per trace record as clients wrote them, appended only. (trace_broker, trace_queue_id, trace_queue_offset, "
    "record_index) names a record.",
    (
        ColumnSchema("type", "STRING", "Pub, SubBefore, SubAfter, EndTransaction or Recall"),
        ColumnSchema("event_time", "TIMESTAMP", "client clock; null for SubAfter of clients that do not send it"),
        ColumnSchema("region", "STRING", "region of the broker"),
        ColumnSchema("client_group", "STRING", "producer or consumer group; null for SubAfter of old clients"),
        ColumnSchema("topic", "STRING", "null for consumption, whose records do not carry it"),
        ColumnSchema(
            "message_id", "STRING", "unique id of the message; the record of a batch is a row for each of its ids"
        ),
        ColumnSchema("tags", "STRING", "tag of the message"),
        ColumnSchema("keys", "STRING", "business keys, joined by blanks"),
        ColumnSchema("store_host", "STRING", "address of the broker that was sent to"),
        ColumnSchema("body_length", "INT", "bytes, after compression"),
        ColumnSchema(
            "cost_ms",
            "BIGINT",
            "of the send, or of the consumption, as the client says: negative if its clock was set back",
        ),
        ColumnSchema("message_type", "INT", "0 normal, 1 half, 2 commit, 3 delay, 4 order"),
        ColumnSchema("offset_message_id", "STRING", "broker's id of the message"),
        ColumnSchema("success", "BOOLEAN", "whether the client took it for a success"),
        ColumnSchema("request_id", "STRING", "joins SubBefore and SubAfter"),
        ColumnSchema("retry_times", "INT", "how often it had been delivered to the group before"),
        ColumnSchema(
            "context_code", "INT", "0 success, 1 time-out, 2 exception, 3 null, 4 failed; null where not sent"
        ),
        ColumnSchema("transaction_id", "STRING", "EndTransaction only"),
        ColumnSchema("transaction_state", "STRING", "COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW"),
        ColumnSchema("from_check", "BOOLEAN", "whether the decision answered a check of the broker"),
        ColumnSchema(
            "client_host", "STRING", "who wrote the record: what it says, else the address its trace message came from"
        ),
        ColumnSchema("trace_broker", "STRING", "where the trace message lies"),
        ColumnSchema("trace_queue_id", "INT", ""),
        ColumnSchema("trace_queue_offset", "BIGINT", ""),
        ColumnSchema("record_index", "INT", "place of the record in its trace message, from 0"),
        ColumnSchema("trace_stored_at", "TIMESTAMP", "when the broker stored the trace message: the broker's clock"),
    ),
    time_column="trace_stored_at",
    sort_columns=("message_id",),
)

TRACE_REJECTS = TableSchema(
    "trace_rejects",
    "Records that could not be read, and why.",
    (
        ColumnSchema("record", "STRING", "the text as it was"),
        ColumnSchema("reason", "STRING", "what is wrong with it"),
        ColumnSchema("trace_broker", "STRING", ""),
        ColumnSchema("trace_queue_id", "INT", ""),
        ColumnSchema("trace_queue_offset", "BIGINT", ""),
        ColumnSchema("record_index", "INT", ""),
        ColumnSchema("trace_stored_at", "TIMESTAMP", ""),
    ),
    time_column="trace_stored_at",
    sort_columns=("trace_stored_at",),
)

CLOCKS = TableSchema(
    "clocks",
    "How far the clocks of clients are off: per address and hour, the bounds of (broker's clock - client's clock) that more than "
    "half of the messages agree on. A row per ten minutes of message ids: bounds of one address and hour hold together (greatest "
    "lower_ms, least upper_ms), counts add up.",
    (
        ColumnSchema("host", "STRING", "IP address of the client"),
        ColumnSchema("hour", "TIMESTAMP", "hour of the broker's clock in which the evidence was stored"),
        ColumnSchema("lower_ms", "BIGINT", "the difference is no less; null: nothing bounds it"),
        ColumnSchema(
            "upper_ms",
            "BIGINT",
            "the difference is no more; null: nothing bounds it. Less than lower_ms: no majority agrees, nothing is corrected",
        ),
        ColumnSchema(
            "messages", "BIGINT", "messages with a record of this host, each of which bounds the difference from above"
        ),
        ColumnSchema("sends", "BIGINT", "messages whose store time, known from `messages`, lies within the send"),
        ColumnSchema("deliveries", "BIGINT", "messages delivered after their store time, known from `messages`"),
        ColumnSchema(
            "discarded",
            "BIGINT",
            "messages whose records contradict these bounds and were not used for them; without a majority all of them",
        ),
        ColumnSchema("discarded_ids", "ARRAY<STRING>", "up to 8 of the discarded; empty without a majority"),
    ),
    time_column="hour",
    sort_columns=("host", "hour"),
    schema=2,
)


def _struct(*fields: tuple[str, str]) -> str:
    return "STRUCT<" + ",".join(f"{name}:{kind}" for name, kind in fields) + ">"


DELIVERY = _struct(
    ("request_id", "STRING"),
    ("started_at", "TIMESTAMP"),
    ("ended_at", "TIMESTAMP"),
    ("cost_ms", "BIGINT"),
    ("result", "STRING"),
    ("retry_times", "INT"),
    ("host", "STRING"),
    ("region", "STRING"),
    ("clock_ms", "BIGINT"),
    ("clock_error_ms", "BIGINT"),
    ("started_corrected_at", "TIMESTAMP"),
    ("ended_corrected_at", "TIMESTAMP"),
)
DECISION = _struct(
    ("decided_at", "TIMESTAMP"),
    ("state", "STRING"),
    ("from_check", "BOOLEAN"),
    ("host", "STRING"),
    ("transaction_id", "STRING"),
)

# Why `queueing_ms` of a delivered message is null.
OUTLIER, CONTRADICTION, BEFORE_SENT, NO_CLOCK, NO_STORE_TIME = (
    "outlier", "contradiction", "before_sent", "no_clock", "no_store_time",
)  # fmt: skip

JOURNEYS = TableSchema(
    "journeys",
    "One row per message and consumer group; one with a null group for a message that nobody is known to have consumed. Times "
    "named *_corrected_at are by the broker's clock, see `clocks`. No duration is ever negative.",
    (
        ColumnSchema("message_id", "STRING", "unique id of the message"),
        ColumnSchema(
            "consumer_group",
            "STRING",
            "null: no consumption is known, or (attempts not null) the client's version does not trace its group",
        ),
        ColumnSchema("topic", "STRING", "null when neither the send nor the record is known"),
        ColumnSchema("keys", "STRING", "business keys, joined by blanks"),
        ColumnSchema("tags", "STRING", ""),
        ColumnSchema(
            "message_type", "INT", "0 normal, 1 half, 2 commit, 3 delay, 4 order; null when the send left no trace"
        ),
        ColumnSchema("region", "STRING", "region of the broker"),
        ColumnSchema("producer_group", "STRING", ""),
        ColumnSchema(
            "producer_host", "STRING", "who traced the send: what it says of itself, else the address it came from"
        ),
        ColumnSchema("store_host", "STRING", "address of the broker"),
        ColumnSchema("offset_message_id", "STRING", "broker's id of the record that the send made"),
        ColumnSchema("sent_at", "TIMESTAMP", "producer's clock, start of the send that succeeded"),
        ColumnSchema(
            "sent_corrected_at",
            "TIMESTAMP",
            "the same by the broker's clock; null: its clock is not known, or this record contradicts what is known of it",
        ),
        ColumnSchema(
            "producer_clock_ms",
            "BIGINT",
            "broker's clock - producer's clock, as estimated (`clocks`); null as sent_corrected_at",
        ),
        ColumnSchema("producer_clock_error_ms", "BIGINT", "at most so far off is the estimate"),
        ColumnSchema("send_cost_ms", "BIGINT", "until the broker's answer"),
        ColumnSchema(
            "stored_at",
            "TIMESTAMP",
            "broker's clock (stored_exact); else when the answer came, corrected where the producer's clock is known: no later "
            "than this",
        ),
        ColumnSchema("stored_exact", "BOOLEAN", "whether stored_at is the broker's; null when stored_at is"),
        ColumnSchema(
            "available_at", "TIMESTAMP", "broker's clock: stored in its own topic, for consumers; null: not known"
        ),
        ColumnSchema(
            "delay_ms",
            "BIGINT",
            "how long the broker held it back (delay, transaction); 0: not at all; null: not known",
        ),
        ColumnSchema("sends", "BIGINT", "how many sends of this id left a trace"),
        ColumnSchema("sent_ok", "BOOLEAN", "whether one of them succeeded; null when none left a trace"),
        ColumnSchema("recalled_at", "TIMESTAMP", "producer's clock: taken back before its time"),
        ColumnSchema(
            "transactions",
            f"ARRAY<{DECISION}>",
            "decisions as producers sent them (their clocks), in order; null when none is known",
        ),
        ColumnSchema(
            "transaction_state",
            "STRING",
            "COMMIT_MESSAGE or ROLLBACK_MESSAGE: the last such decision; UNKNOW: no other was sent; null: none is known",
        ),
        ColumnSchema(
            "first_pulled_at",
            "TIMESTAMP",
            "broker's clock, of retries after a pop of 5.x (their property 1ST_POP_TIME); null else: pulls leave no trace",
        ),
        ColumnSchema(
            "delivered_at",
            "TIMESTAMP",
            "consumer's clock, first call of the listener: its own record, else its end less its cost",
        ),
        ColumnSchema(
            "delivered_corrected_at",
            "TIMESTAMP",
            "the same by the broker's clock; null: its clock is not known, or this record contradicts what is known of it",
        ),
        ColumnSchema("delivered_error_ms", "BIGINT", "at most so far off is delivered_corrected_at"),
        ColumnSchema(
            "queueing_ms",
            "BIGINT",
            "from available_at, else stored_at, to delivered_corrected_at; by the clients' clocks when none is known (error "
            "null); 0 when the delivery overtook the answer; null when unknown",
        ),
        ColumnSchema("queueing_error_ms", "BIGINT", "at most so far off is queueing_ms; null: not known"),
        ColumnSchema(
            "queueing_missing",
            "STRING",
            "why queueing_ms is null: outlier, contradiction, before_sent, no_clock, no_store_time (docs/journeys.md); null "
            "when it is known, and without a delivery",
        ),
        ColumnSchema("consume_cost_ms", "BIGINT", "of the last attempt"),
        ColumnSchema("consumed_at", "TIMESTAMP", "consumer's clock, end of the last attempt"),
        ColumnSchema("attempts", "BIGINT", "calls of the listener; null: none is known"),
        ColumnSchema(
            "consumed_times", "BIGINT", "how many of them succeeded: more than 1 is a duplicate (or broadcasting)"
        ),
        ColumnSchema(
            "retries", "INT", "how often it was delivered again, as the last record says; null when none says it"
        ),
        ColumnSchema(
            "result",
            "STRING",
            "of the last attempt: success, timeout, exception, null, failed; unknown: no end is known",
        ),
        ColumnSchema("consumer_host", "STRING", "who traced the last attempt, as producer_host"),
        ColumnSchema(
            "deliveries",
            f"ARRAY<{DELIVERY}>",
            "the attempts in order, started_at and ended_at by the consumer's clock; of more than 64 the first and the last 32",
        ),
        ColumnSchema("dead_lettered_at", "TIMESTAMP", "broker's clock: stored in the group's dead-letter topic"),
        ColumnSchema("dead_lettered", "BOOLEAN", "null when `messages` holds no record of the message"),
        ColumnSchema(
            "clock_skew",
            "BOOLEAN",
            "whether clocks are why queueing_ms is null: outlier, contradiction or before_sent in queueing_missing; null "
            "without a delivery",
        ),
    ),
    time_column="stored_at",
    sort_columns=("message_id", "consumer_group"),
    schema=4,
)

MESSAGE_KEYS = TableSchema(
    "message_keys",
    "Which messages a term leads to. A row may be there twice.",
    (
        ColumnSchema("term", "STRING", "a business key, or the broker's id of the message"),
        ColumnSchema("message_id", "STRING", "unique id of the message"),
        ColumnSchema("journey_bucket", "STRING", "the bucket of its journeys"),
        ColumnSchema("first_traced_at", "TIMESTAMP", "when the broker stored the first trace of it"),
    ),
    time_column="first_traced_at",
    sort_columns=("term", "first_traced_at"),
    schema=2,
    row_group_bytes=1024 * 1024,
)
