"""trace_events, journeys → traffic; journeys → slow_messages: throughput, latencies, slowest messages.

    Pub of trace_events       ─ one row per send (not per record: traces may be duplicated) ─┐
    deliveries of journeys    ─ one row per listener call ───────────────────────────────────┴→ per minute, topic, group, host

The results do not depend on the order, lateness or duplication of the input rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ariane.pipeline.publishing import combining
from ariane.pipeline.tables.histogram_columns import added, aggregated
from ariane.tables import LATENCIES, SLOW_MESSAGES, TRAFFIC, TableSchema
from ariane.tables.declarations.traffic import (
    EXCLUSION_COUNTERS,
    EXCLUSION_REASONS,
    LATENCY_WINDOW_MINUTES,
    MEASURES,
    REDELIVERED,
    SLOWEST_PER_BUCKET,
)

KEYS = ("bucket", "minute", "direction", "topic", "client_group", "client_host")
# Results of a listener, as in journeys. "unknown" is neither success nor failure: the end was not traced.
FAILED = ("timeout", "exception", "null", "failed")


def _slowness(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the sort key of a slow message: `rank` in `slow_messages`, where null comes before other texts."""
    host = row["client_host"]
    return (-row["ms"], row["message_id"], host is not None, host or "")


# How the rows of a bucket change with those of few messages.
COMBINATION = combining.Combination(
    KEYS[1:],
    partial(
        combining.change_sums,
        count="messages",
        sums=("messages", "successes", "failures", "bytes", *EXCLUSION_COUNTERS),
        nullable_sums={"bytes"},
        measures=MEASURES,
    ),
)
SLOWEST = combining.Combination(
    ("measure", "topic", "client_group"),
    partial(combining.change_highest, order=_slowness, limit=SLOWEST_PER_BUCKET),
)


def traffic(events: DataFrame, journeys: DataFrame) -> DataFrame:
    """Return rows with the columns of TRAFFIC and `bucket`, from trace_events and journeys with `bucket`."""
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
    all_traffic = sent.unionByName(consumed, allowMissingColumns=True)
    return all_traffic.select(*_of(TRAFFIC), "bucket")


def slow_messages(journeys: DataFrame) -> DataFrame:
    """Return rows with the columns of SLOW_MESSAGES and `bucket`, from journeys with `bucket`."""
    # A message that several groups consumed has several journeys but one send.
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
    per_group = Window.partitionBy("bucket", "measure", "topic", "client_group")
    rank = F.row_number().over(per_group.orderBy(F.desc("ms"), "message_id", "client_host"))
    return (
        rows.withColumn("rank", rank).where(F.col("rank") <= SLOWEST_PER_BUCKET).select(*_of(SLOW_MESSAGES), "bucket")
    )


def latencies(traffic: DataFrame) -> DataFrame:
    """Return rows with the columns of LATENCIES and `bucket`, from traffic with `bucket`."""
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
    """Return one row per send attempt. Equal records are one attempt that was traced or read twice."""
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
    """Return one row per listener call; a retry is another call. Only the first call of a message has a queueing time."""
    calls = journeys.select(
        "bucket",
        "topic",
        "consumer_group",
        "queueing_ms",
        "queueing_missing",
        F.posexplode("deliveries").alias("attempt", "call"),
    )
    noted_at = _noted_at(F.col("call"))
    is_first = F.col("attempt") == 0
    return calls.where(noted_at.isNotNull()).select(
        "bucket",
        F.date_trunc("minute", noted_at).alias("minute"),
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
    """Return when a listener call ended, or started if its end was not traced."""
    return F.coalesce(call["ended_at"], call["started_at"])


def _measured(
    journeys: DataFrame, measure: str, ms: Column, time_column: Column, group: str, host: Column | str
) -> DataFrame:
    """Return the messages with a value of a measure."""
    return journeys.where(ms >= 0).select(
        "bucket",
        time_column.alias("measured_at"),
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
    """Return the address without its port and without the suffix of Go clients (address@process)."""
    return F.regexp_replace(F.regexp_replace(host, "@.*$", ""), r"^(\[.*\]|[^:]*):\d+$", "$1")


def _of(table: TableSchema) -> list[Column]:
    """Return the columns of a table, cast to its types."""
    return [F.col(column.name).cast(column.type).alias(column.name) for column in table.columns]
