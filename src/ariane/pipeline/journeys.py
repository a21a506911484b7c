"""trace_events → journeys: what became of each message in each group, from whatever records there are.

A fold: events in any order, late or twice, give the same rows.

    Pub        by message id                                       ─┐
    SubBefore  ─┐ by message id and request id: one attempt         ├→ one row per message and group
    SubAfter   ─┘   → by message id and group: the attempts        ─┘
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ariane.tables import JOURNEYS

RESULTS = {0: "success", 1: "timeout", 2: "exception", 3: "null", 4: "failed"}


def journeys(events: DataFrame) -> DataFrame:
    """Rows with the columns of JOURNEYS and `slot`, of trace_events with `slot`."""
    joined = _sends(events).join(_consumptions(events), ["slot", "message_id"], "full_outer")
    stored_at = _plus_ms("sent_at", F.col("send_cost_ms"))
    waited = F.unix_millis("delivered_at") - F.unix_millis("stored_at")
    return (
        joined.withColumn("keys", F.coalesce("sent_keys", "consumed_keys"))
        .withColumn("stored_at", F.when(F.col("sent_ok"), stored_at))
        .withColumn("clock_skew", F.col("delivered_at") < F.col("sent_at"))
        .withColumn("queueing_ms", F.when(~F.col("clock_skew"), F.greatest(F.lit(0), waited)))
        .select(*(F.col(column.name).cast(column.type).alias(column.name) for column in JOURNEYS.columns), "slot")
    )


def _sends(events: DataFrame) -> DataFrame:
    """One row per message id: the first send that succeeded, else the first that did not."""
    pubs = events.where("type = 'Pub'")
    # Equal records are one send that was traced or read twice; a retry has another time or another offset id.
    send = F.struct("event_time", "offset_message_id", "success")
    place = ("trace_broker", "trace_queue_id", "trace_queue_offset", "record_index")
    best = F.struct(~F.col("success"), "event_time", *place)

    def of_best(name: str) -> Column:
        return F.min_by(name, best)

    return pubs.groupBy("slot", "message_id").agg(
        of_best("topic").alias("topic"),
        of_best("keys").alias("sent_keys"),
        of_best("tags").alias("tags"),
        of_best("client_group").alias("producer_group"),
        of_best("client_host").alias("producer_host"),
        of_best("store_host").alias("store_host"),
        of_best("offset_message_id").alias("offset_message_id"),
        of_best("event_time").alias("sent_at"),
        of_best("cost_ms").alias("send_cost_ms"),
        F.count_distinct(send).alias("sends"),
        F.bool_or("success").alias("sent_ok"),
    )


def _consumptions(events: DataFrame) -> DataFrame:
    """One row per message id and consumer group."""
    attempts = (
        events.where("type IN ('SubBefore', 'SubAfter')")
        .groupBy("slot", "message_id", "request_id")
        .agg(
            _first("client_group").alias("consumer_group"),
            _first("keys").alias("keys"),
            _first("client_host").alias("consumer_host"),
            F.min(F.when(F.col("type") == "SubBefore", F.col("event_time"))).alias("began_at"),
            F.max(F.when(F.col("type") == "SubAfter", F.col("event_time"))).alias("ended_at"),
            F.max(F.when(F.col("type") == "SubAfter", F.col("cost_ms"))).alias("cost_ms"),
            F.max(F.when(F.col("type") == "SubAfter", _code())).alias("code"),
        )
        .withColumn("ended_at", F.coalesce("ended_at", _plus_ms("began_at", F.col("cost_ms"))))
        .withColumn("at", F.coalesce("began_at", _plus_ms("ended_at", -F.col("cost_ms"))))
    )
    order = F.struct(F.col("at"), F.col("request_id"))
    return attempts.groupBy("slot", "message_id", "consumer_group").agg(
        _first("keys").alias("consumed_keys"),
        F.min("at").alias("delivered_at"),
        F.max_by("cost_ms", order).alias("consume_cost_ms"),
        F.max_by("ended_at", order).alias("consumed_at"),
        F.count("*").alias("attempts"),
        F.max_by(_result(F.col("code")), order).alias("result"),
        F.max_by("consumer_host", order).alias("consumer_host"),
    )


def _first(name: str) -> Column:
    """The value that is known; the same one whatever the order of rows."""
    return F.min(name)


def _code() -> Column:
    """The context code, or what success means where a client did not send it."""
    return F.coalesce("context_code", F.when(F.col("success"), F.lit(0)).otherwise(F.lit(4)))


def _result(code: Column) -> Column:
    names = F.create_map(*(F.lit(part) for pair in RESULTS.items() for part in pair))
    return F.coalesce(F.try_element_at(names, code), F.lit("unknown"))


def _plus_ms(time: str, cost_ms: Column) -> Column:
    return F.timestamp_millis(F.unix_millis(time) + cost_ms)
