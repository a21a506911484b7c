"""Whose clock is how far off: bounds of (broker's clock - client's clock), from what cannot be otherwise.

    sent_at        client  ──┐ before        ┌──────────── stored, broker (exactly: table `messages`)
    answered       client  ──┼───────────────┘ before       stored - answered <= difference <= stored - sent_at
    delivered      client  ──┘ after it was stored          stored - delivered <= difference
    any event      client  ──→ its trace is stored, broker  difference <= trace stored - event

Nothing is averaged: the greatest lower and the least upper bound of a host and an hour hold. A difference is only claimed where
the bounds demand one (`estimate`): 0 when it lies between them, else their middle. Limits: docs/journeys.md.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ariane.model.topic import DLQ_PREFIX, HALF_TOPIC, OP_HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from ariane.tables import CLOCKS

# Clocks are written in whole ms, cut off: the true time is up to 1 ms later.
CUT_MS = 1
# Where a message lies before consumers of its own topic can see it.
WAITING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)


def clocks(events: DataFrame, messages: DataFrame) -> DataFrame:
    """Rows with the columns of CLOCKS and `slot`, of trace_events and messages with `slot`."""
    known = events.join(stored(messages), ["slot", "message_id"], "left")
    of_message = (
        known.select(
            "slot",
            host_of("client_host").alias("host"),
            hour_of("trace_stored_at").alias("hour"),
            "message_id",
            *_bounds(),
        )
        .groupBy("slot", "host", "hour", "message_id")
        .agg(
            F.max("within_lower_ms").alias("within_lower_ms"),
            F.max("after_ms").alias("after_ms"),
            F.min("upper_ms").alias("upper_ms"),
        )
    )
    # Messages are counted, not records: a record that was read twice changes nothing.
    bounded = of_message.groupBy("slot", "host", "hour").agg(
        F.max(F.greatest("within_lower_ms", "after_ms")).alias("lower_ms"),
        F.min("upper_ms").alias("upper_ms"),
        F.count("upper_ms").alias("messages"),
        F.count("within_lower_ms").alias("sends"),
        F.count("after_ms").alias("deliveries"),
    )
    columns = (F.col(column.name).cast(column.type).alias(column.name) for column in CLOCKS.columns)
    return bounded.where("host IS NOT NULL").select(*columns, "slot")


def estimate(lower_ms: Column, upper_ms: Column) -> tuple[Column, Column]:
    """The difference that is taken, and how far it can be off; both null when nothing bounds it on both sides, or when the
    bounds contradict each other."""
    within = lower_ms <= upper_ms
    none = within & (lower_ms <= 0) & (upper_ms >= 0)
    middle = F.round((lower_ms + upper_ms) / 2).cast("bigint")
    difference = F.when(none, F.lit(0)).when(within, middle)
    return difference, F.greatest(upper_ms - difference, difference - lower_ms)


def stored(messages: DataFrame) -> DataFrame:
    """One row per message: when and where the broker stored it.

    `records`: its broker's ids with their times; `first_stored_at`; `available_at` and `own_topic`: in the topic of its own.
    """
    topic = F.col("topic")
    ours = ~topic.startswith(DLQ_PREFIX) & ~topic.startswith(RETRY_PREFIX) & (topic != OP_HALF_TOPIC)
    own = ~topic.isin(*WAITING_TOPICS)
    return (
        messages.where(ours)
        .groupBy("slot", "message_id")
        .agg(
            F.collect_set(F.struct("offset_message_id", "store_timestamp")).alias("records"),
            F.min("store_timestamp").alias("first_stored_at"),
            F.min(F.when(own, F.col("store_timestamp"))).alias("available_at"),
            F.min(F.when(own, topic)).alias("own_topic"),
        )
    )


def stored_exactly(offset_message_id: Column) -> Column:
    """When the record with this id was stored, of the rows of `stored`; null when it is not known."""
    same = F.filter("records", lambda record: record["offset_message_id"] == offset_message_id)
    return F.array_min(F.transform(same, lambda record: record["store_timestamp"]))


def host_of(client_host: str) -> Column:
    """The address in `10.0.0.9:5000`, `[fe80::1]:5000`, `10.0.0.9@4711#…` or `10.0.0.9`: those of one host have one clock."""
    address = F.regexp_replace(client_host, "@.*$", "")
    host = F.regexp_replace(address, r"^\[(.*)\](?::\d+)?$|^([^:]*):\d+$", "$1$2")
    return F.when(host != "", host)


def hour_of(time: str) -> Column:
    return F.date_trunc("hour", time)


def _bounds() -> tuple[Column, ...]:
    """What one event says: `within_lower_ms` (a send), `after_ms` (a delivery), `upper_ms`."""
    is_send, is_delivery = F.col("type") == "Pub", F.col("type") == "SubBefore"
    said_ms = F.unix_millis("event_time")
    cost_ms = F.when(F.col("cost_ms") >= 0, F.col("cost_ms"))
    # A send is told of when it was answered, all else when it began or ended.
    told_ms = F.when(is_send, said_ms + F.coalesce(cost_ms, F.lit(0))).otherwise(said_ms)
    stored_ms = F.when(is_send, F.unix_millis(stored_exactly(F.col("offset_message_id"))))
    by_send_ms = F.when(stored_ms.isNotNull(), stored_ms - said_ms + CUT_MS)
    by_trace_ms = F.unix_millis("trace_stored_at") - told_ms + CUT_MS
    there_ms = F.unix_millis(F.coalesce("available_at", "first_stored_at"))
    return (
        F.when(is_send, stored_ms - (said_ms + cost_ms) - CUT_MS).alias("within_lower_ms"),
        F.when(is_delivery, there_ms - said_ms - CUT_MS).alias("after_ms"),
        F.least(by_send_ms, by_trace_ms).alias("upper_ms"),
    )
