"""What clients told of their messages, and the journeys that follow from it."""

from __future__ import annotations

from ariane.tables.table import Column, Table

TRACE_EVENTS = Table(
    "trace_events",
    "One row per trace record as clients wrote them, appended only. (trace_broker, trace_queue_id, trace_queue_offset, "
    "record_index) names a record.",
    (
        Column("type", "STRING", "Pub, SubBefore, SubAfter or EndTransaction"),
        Column("event_time", "TIMESTAMP", "client clock; null for SubAfter of clients that do not send it"),
        Column("region", "STRING", "region of the broker"),
        Column("client_group", "STRING", "producer or consumer group; null for SubAfter of old clients"),
        Column("topic", "STRING", "null for consumption, whose records do not carry it"),
        Column("message_id", "STRING", "unique id of the message; the record of a batch is a row for each of its ids"),
        Column("tags", "STRING", "tag of the message"),
        Column("keys", "STRING", "business keys, joined by blanks"),
        Column("store_host", "STRING", "address of the broker that was sent to"),
        Column("body_length", "INT", "bytes, after compression"),
        Column("cost_ms", "BIGINT", "of the send, or of the consumption"),
        Column("message_type", "INT", "0 normal, 1 half, 2 commit, 3 delay, 4 order"),
        Column("offset_message_id", "STRING", "broker's id of the message"),
        Column("success", "BOOLEAN", "whether the client took it for a success"),
        Column("request_id", "STRING", "joins SubBefore and SubAfter"),
        Column("retry_times", "INT", "how often it had been delivered to the group before"),
        Column("context_code", "INT", "0 success, 1 time-out, 2 exception, 3 null, 4 failed; null where not sent"),
        Column("transaction_id", "STRING", "EndTransaction only"),
        Column("transaction_state", "STRING", "COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW"),
        Column("from_check", "BOOLEAN", "whether the decision answered a check of the broker"),
        Column(
            "client_host", "STRING", "who wrote the record: what it says, else the address its trace message came from"
        ),
        Column("trace_broker", "STRING", "where the trace message lies"),
        Column("trace_queue_id", "INT", ""),
        Column("trace_queue_offset", "BIGINT", ""),
        Column("record_index", "INT", "place of the record in its trace message, from 0"),
        Column("trace_stored_at", "TIMESTAMP", "when the broker stored the trace message: the broker's clock"),
    ),
    time="trace_stored_at",
    order=("message_id",),
)

TRACE_REJECTS = Table(
    "trace_rejects",
    "Records that could not be read, and why.",
    (
        Column("record", "STRING", "the text as it was"),
        Column("reason", "STRING", "what is wrong with it"),
        Column("trace_broker", "STRING", ""),
        Column("trace_queue_id", "INT", ""),
        Column("trace_queue_offset", "BIGINT", ""),
        Column("record_index", "INT", ""),
        Column("trace_stored_at", "TIMESTAMP", ""),
    ),
    time="trace_stored_at",
    order=("trace_stored_at",),
)

JOURNEYS = Table(
    "journeys",
    "One row per message and consumer group; one with a null group for a message that nobody is known to have consumed.",
    (
        Column("message_id", "STRING", "unique id of the message"),
        Column(
            "consumer_group",
            "STRING",
            "null: no consumption is known, or (attempts not null) the client's version does not trace its group",
        ),
        Column("topic", "STRING", "null when the send left no trace"),
        Column("keys", "STRING", "business keys, joined by blanks"),
        Column("tags", "STRING", ""),
        Column("producer_group", "STRING", ""),
        Column("producer_host", "STRING", "address that the trace of the send came from"),
        Column("store_host", "STRING", "address of the broker"),
        Column("offset_message_id", "STRING", "broker's id of the message"),
        Column("sent_at", "TIMESTAMP", "producer's clock, start of the send that succeeded"),
        Column("send_cost_ms", "BIGINT", "until the broker's answer"),
        Column("stored_at", "TIMESTAMP", "when that answer came: stored no later than this, by the producer's clock"),
        Column("sends", "BIGINT", "how many sends of this id left a trace"),
        Column("sent_ok", "BOOLEAN", "whether one of them succeeded; null when none left a trace"),
        Column(
            "delivered_at",
            "TIMESTAMP",
            "consumer's clock, first call of the listener: its own record, else its end less its cost",
        ),
        Column(
            "queueing_ms",
            "BIGINT",
            "from stored_at to delivered_at, 0 when the delivery overtook the answer; null when unknown",
        ),
        Column("consume_cost_ms", "BIGINT", "of the last attempt"),
        Column("consumed_at", "TIMESTAMP", "end of the last attempt"),
        Column("attempts", "BIGINT", "calls of the listener"),
        Column(
            "result",
            "STRING",
            "of the last attempt: success, timeout, exception, null, failed; unknown: no end is known",
        ),
        Column("consumer_host", "STRING", "address that the trace of the last attempt came from"),
        Column("clock_skew", "BOOLEAN", "delivered before it was sent: the two clocks differ, queueing_ms is null"),
    ),
    time="sent_at",
    order=("message_id", "consumer_group"),
)
