"""trace_events and journeys → traffic, journeys → slow_messages: how much, how fast, and which were the slowest.

    Pub of trace_events       ─ one row per send (not per record: traces come twice) ─┐
    deliveries of journeys    ─ one row per call of a listener ───────────────────────┴→ per minute, topic, group, host

Folds: rows in any order, late or twice, give the same rows.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ariane.pipeline.histogram_columns import added, aggregated
from ariane.tables import LATENCIES, SLOW_MESSAGES, TRAFFIC, TableSchema
from ariane.tables.traffic import (
    EXCLUSION_COUNTERS,
    EXCLUSION_REASONS,
    LATENCY_WINDOW_MINUTES,
    MEASURES,
    REDELIVERED,
    SLOWEST_PER_BUCKET,
)

KEYS = ("bucket", "minute", "direction", "topic", "client_group", "client_host")
# What a listener returned, as journeys name it; of "unknown" no end is known, so it is neither success nor failure.
FAILED = ("timeout", "exception", "null", "failed")


def traffic(events: DataFrame, journeys: DataFrame) -> DataFrame:
    """Rows with the columns of TRAFFIC and `bucket`, of trace_events and journeys with `bucket`."""
    sent = aggregated(
        _sends(events),
        KEYS,
        {"send_cost_ms": "cost_ms"},
        {
            **_counts(F.col("success"), ~F.col("success")),
            "bytes": F.sum("body_length"),
            "send_cost_missing": F.count_if(~_is_duration("cost_ms")),
        },
    )
    consumed = aggregated(
        _consumptions(journeys),
        KEYS,
        {"queueing_ms": "queueing", "consume_cost_ms": "cost"},
        {
            **_counts(F.col("result") == "success", F.col("result").isin(*FAILED)),
            **{f"queueing_{reason}": F.count_if(F.col("missing") == reason) for reason in EXCLUSION_REASONS},
            "consume_cost_missing": F.count_if(~_is_duration("cost")),
        },
    )
    both = sent.unionByName(consumed, allowMissingColumns=True)
    return both.select(*_of(TRAFFIC), "bucket")


def slow_messages(journeys: DataFrame) -> DataFrame:
    """Rows with the columns of SLOW_MESSAGES and `bucket`, of journeys with `bucket`."""
    # A message that several groups consumed was sent once.
    sent = journeys.dropDuplicates(["bucket", "message_id"])
    sends = _measured(sent, "send_cost_ms", F.col("send_cost_ms"), F.col("sent_at"), "producer_group", "producer_host")
    first = F.get("deliveries", F.lit(0))
    slowest = F.array_max(
        F.transform(
            "deliveries",
            lambda call, number: F.struct(
                call["cost_ms"].alias("ms"),
                (-number).alias("earliest"),
                _noted_at(call).alias("at"),
                call["host"].alias("host"),
            ),
        )
    )
    calls = (
        _measured(journeys, "queueing_ms", F.col("queueing_ms"), _noted_at(first), "consumer_group", first["host"]),
        _measured(journeys, "consume_cost_ms", slowest["ms"], slowest["at"], "consumer_group", slowest["host"]),
    )
    rows = sends.unionByName(calls[0]).unionByName(calls[1])
    each = Window.partitionBy("bucket", "measure", "topic", "client_group")
    rank = F.row_number().over(each.orderBy(F.desc("ms"), "message_id", "client_host"))
    return (
        rows.withColumn("rank", rank).where(F.col("rank") <= SLOWEST_PER_BUCKET).select(*_of(SLOW_MESSAGES), "bucket")
    )


def latencies(traffic: DataFrame) -> DataFrame:
    """Rows with the columns of LATENCIES and `bucket`, of traffic with `bucket`."""
    step_ms = LATENCY_WINDOW_MINUTES * 60_000
    begin = F.timestamp_millis(F.floor(F.unix_millis("minute") / step_ms) * step_ms)
    rows = added(
        traffic.withColumn("window_start", begin),
        ("bucket", "window_start", "topic", "client_group"),
        MEASURES,
        [*EXCLUSION_COUNTERS],
    )
    return rows.select(*_of(LATENCIES), "bucket")


def _sends(events: DataFrame) -> DataFrame:
    """One row per send of a message; every attempt is one. Equal records are one send that was traced or read twice."""
    pubs = events.where("type = 'Pub'")
    sends = pubs.groupBy("bucket", "message_id", "event_time", "offset_message_id", "success").agg(
        *(F.min(name).alias(name) for name in ("topic", "client_group", "client_host", "cost_ms", "body_length"))
    )
    return sends.select(
        "bucket",
        F.date_trunc("minute", "event_time").alias("minute"),
        F.lit("out").alias("direction"),
        "topic",
        "client_group",
        _ip("client_host").alias("client_host"),
        "success",
        "cost_ms",
        "body_length",
    )


def _consumptions(journeys: DataFrame) -> DataFrame:
    """One row per call of a listener: a message that is tried again is another call. The first one tells of the queueing."""
    calls = journeys.select(
        "bucket",
        "topic",
        "consumer_group",
        "queueing_ms",
        "queueing_missing",
        F.posexplode("deliveries").alias("attempt", "call"),
    )
    at = _noted_at(F.col("call"))
    is_first = F.col("attempt") == 0
    return calls.where(at.isNotNull()).select(
        "bucket",
        F.date_trunc("minute", at).alias("minute"),
        F.lit("in").alias("direction"),
        "topic",
        F.col("consumer_group").alias("client_group"),
        _ip("call.host").alias("client_host"),
        F.col("call.result").alias("result"),
        F.when(is_first, F.col("queueing_ms")).alias("queueing"),
        F.when(is_first, F.col("queueing_missing")).otherwise(F.lit(REDELIVERED)).alias("missing"),
        F.col("call.cost_ms").alias("cost"),
    )


def _noted_at(call: Column) -> Column:
    """When a call of a listener ended, or began if that is all."""
    return F.coalesce(call["ended_at"], call["started_at"])


def _measured(journeys: DataFrame, measure: str, ms: Column, at: Column, group: str, host: Column | str) -> DataFrame:
    """The messages of which a measure is known."""
    return journeys.where(ms >= 0).select(
        "bucket",
        at.alias("measured_at"),
        F.lit(measure).alias("measure"),
        ms.alias("ms"),
        "topic",
        F.col(group).alias("client_group"),
        _ip(host).alias("client_host"),
        "message_id",
        "keys",
    )


def _counts(success: Column, failure: Column) -> dict[str, Column]:
    return {"messages": F.count("*"), "successes": F.count_if(success), "failures": F.count_if(failure)}


def _is_duration(ms: str) -> Column:
    return F.coalesce(F.col(ms) >= 0, F.lit(False))


def _ip(host: Column | str) -> Column:
    """The address without its port, and without what Go clients write behind it (address@process)."""
    return F.regexp_replace(F.regexp_replace(host, "@.*$", ""), r"^(\[.*\]|[^:]*):\d+$", "$1")


def _of(table: TableSchema) -> list[Column]:
    """The columns of a table, with its types."""
    return [F.col(one.name).cast(one.type).alias(one.name) for one in table.columns]
