"""messages and marks → delays: asked against real delivery times, by level and to any time.

A fold: records in any order, late or twice, give the same rows.

    waits       SCHEDULE_TOPIC_XXXX (queue = level - 1), rmq_sys_wheel_timer (queue 0)  ─┐ same message, broker, topic, what was
    delivered   the topic that it was for, with what was asked for in its properties    ─┘ asked for: the first to the first, …
    cancelled   a mark on a record that waits

A timer that the log had to be cut behind is stored once more by our broker (its prepared offset is the complement of the former
record's): it stays one delayed message. What was asked for a time that was over already never waited, and has no row.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ariane.model.message import (
    DELAY,
    REAL_TOPIC,
    START_DELIVER_TIME,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
)
from ariane.model.topic import DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from ariane.pipeline.messages import TIMERS
from ariane.store.types import DELAYS_MS
from ariane.tables import DELAYS
from ariane.tables.delays import CANCELLED, DELIVERED, LEVEL, PENDING, RETRY, TIME

ID = ("bucket", "message_id", "broker")
KEY = (*ID, "topic", "reconsume_times", "requested_for")
TIME_MAX_MS = 253_402_300_799_999  # the last ms of the year 9999


def delays(messages: DataFrame, marks: DataFrame, levels_ms: Sequence[int] = DELAYS_MS) -> DataFrame:
    """Rows with the columns of DELAYS and `bucket`; `levels_ms`: the brokers' messageDelayLevel."""
    once = messages.dropDuplicates([*ID, "topic", "commit_log_offset"])
    waiting = _waiting(once, marks, levels_ms)
    joined = waiting.join(_delivered(once), [*KEY, "number"], "full_outer")
    scheduled_at = F.coalesce("scheduled_at", _time(F.when(F.col("is_timer"), F.col("requested_time"))))
    # A delivery that no record waited for: one by level is known by its properties, one to a time by its prepared offset.
    known = joined.where(F.col("waits") | F.col("is_timer").isNull() | ~F.col("is_timer") | F.col("is_linked"))
    return (
        known.withColumn("scheduled_at", scheduled_at)
        .withColumn("lateness_ms", F.unix_millis("delivered_at") - F.unix_millis("scheduled_at"))
        .withColumn("level", F.coalesce("level", F.when(~F.col("is_timer"), F.col("delivered_level"))))
        .withColumn("keys", F.coalesce("keys", "delivered_keys"))
        .withColumn("kind", F.coalesce("kind", _kind(F.col("is_timer"), F.col("topic"))))
        .withColumn(
            "state",
            F.when(F.col("delivered_at").isNotNull(), DELIVERED)
            .when(F.col("cancelled_at").isNotNull(), CANCELLED)
            .otherwise(PENDING),
        )
        .select(*(F.col(name).cast(kind).alias(name) for name, kind, _ in DELAYS.columns), "bucket")
    )


def _waiting(once: DataFrame, marks: DataFrame, levels_ms: Sequence[int]) -> DataFrame:
    """One row per delayed message; `number` counts those that look alike, cancelled ones last."""
    own, topic = F.col("properties"), F.col("topic")
    is_timer = topic == TIMER_TOPIC
    is_there = (topic == SCHEDULE_TOPIC) | (is_timer & (F.col("queue_id") == TIMERS) & own[TIMER_DEL_UNIQKEY].isNull())
    level = F.when(~is_timer, F.col("queue_id") + 1)
    durations = F.array(*map(F.lit, levels_ms))
    due = _time(F.unix_millis("store_timestamp") + F.get(durations, F.col("queue_id")).cast("bigint"))
    requested_time = F.coalesce(_ms(START_DELIVER_TIME), _ms(TIMER_DELIVER_MS), _ms(TIMER_OUT_MS))
    cancelled = (
        marks.where(F.col("topic") == TIMER_TOPIC)
        .groupBy(*ID, "topic", "queue_offset")
        .agg(F.min("marked_at").alias("mark_at"))
    )
    found = once.where(is_there).join(cancelled, [*ID, "topic", "queue_offset"], "left")
    records = found.select(
        "bucket",
        "message_id",
        "broker",
        own[REAL_TOPIC].alias("topic"),
        "reconsume_times",
        _asked_for(is_timer, level).alias("requested_for"),
        _kind(is_timer, own[REAL_TOPIC]).alias("kind"),
        level.alias("level"),
        F.when(is_timer, _time(requested_time)).otherwise(due).alias("scheduled_at"),
        "store_timestamp",
        "keys",
        "commit_log_offset",
        "mark_at",
        (is_timer & (F.coalesce("prepared_transaction_offset", F.lit(0)) < 0)).alias("is_moved"),
        F.lit(True).alias("waits"),
    )
    same = Window.partitionBy(*KEY)
    first = same.orderBy("is_moved", F.col("mark_at").isNotNull(), "commit_log_offset")
    numbered = records.withColumns(
        {
            "number": F.row_number().over(first),
            "originals": F.count_if(~F.col("is_moved")).over(same),
            "moved_mark_at": F.min(F.when(F.col("is_moved"), F.col("mark_at"))).over(same),
        }
    )
    # Of a message whose first record is in no table (any more), a moved one stands for it.
    kept = numbered.where(~F.col("is_moved") | ((F.col("originals") == 0) & (F.col("number") == 1)))
    return kept.select(
        *KEY,
        "number",
        "kind",
        "level",
        "scheduled_at",
        F.when(~F.col("is_moved"), F.col("store_timestamp")).alias("stored_at"),
        "keys",
        "commit_log_offset",
        F.coalesce("mark_at", "moved_mark_at").alias("cancelled_at"),
        "waits",
    )


def _delivered(once: DataFrame) -> DataFrame:
    """Records that may be deliveries; `number` counts those that look alike, those first that say so themselves."""
    own, topic = F.col("properties"), F.col("topic")
    is_elsewhere = ~topic.isin(SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)
    by_level = (F.coalesce(own[DELAY], F.lit("0")) != "0") & (own[REAL_TOPIC] == topic)
    is_timer = ~F.coalesce(by_level, F.lit(False))
    requested_time = F.coalesce(_ms(START_DELIVER_TIME), _ms(TIMER_DELIVER_MS))
    level = own[DELAY].try_cast("int")
    requested_for = _asked_for(is_timer, level)
    found = once.where(is_elsewhere & requested_for.isNotNull()).select(
        *ID,
        "topic",
        "reconsume_times",
        requested_for.alias("requested_for"),
        is_timer.alias("is_timer"),
        F.when(is_timer, requested_time).alias("requested_time"),
        level.alias("delivered_level"),
        (F.coalesce("prepared_transaction_offset", F.lit(0)) < 0).alias("is_linked"),
        F.col("store_timestamp").alias("delivered_at"),
        F.col("keys").alias("delivered_keys"),
        "commit_log_offset",
    )
    order = Window.partitionBy(*KEY).orderBy(~F.col("is_linked"), "commit_log_offset")
    return found.withColumn("number", F.row_number().over(order)).drop("commit_log_offset")


def _asked_for(is_timer: Column, level: Column) -> Column:
    """What was asked for, as the waiting record and the delivered one say it alike; null where nothing was."""
    own = F.col("properties")
    time = F.coalesce(*(own[name] for name in (START_DELIVER_TIME, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS)))
    return F.when(is_timer, F.concat(F.lit("time "), time)).otherwise(F.concat(F.lit("level "), level))


def _kind(is_timer: Column, topic: Column) -> Column:
    is_retry = F.coalesce(topic.startswith(RETRY_PREFIX) | topic.startswith(DLQ_PREFIX), F.lit(False))
    return F.when(is_timer, TIME).when(is_retry, RETRY).otherwise(LEVEL)


def _ms(name: str) -> Column:
    """A property that says a time, in ms."""
    return F.col("properties")[name].try_cast("bigint")


def _time(ms: Column) -> Column:
    return F.timestamp_millis(F.when(ms.between(0, TIME_MAX_MS), ms))
