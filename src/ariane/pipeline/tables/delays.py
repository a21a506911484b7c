"""messages, position_marks → delays: scheduled and actual delivery times, by delay level or until a time.

The result does not depend on the order, lateness or duplication of the input rows.

    pending     SCHEDULE_TOPIC_XXXX (queue = level - 1), rmq_sys_wheel_timer (queue 0)  ─┐ joined by message, broker, topic and
    delivered   the target topic, with the requested delay in the properties            ─┘ requested delay: first to first, …
    cancelled   a mark on a pending record, or a recall: a record of the message that deletes its timer at Apache's 5.x brokers

When the retained log no longer covers a timer, the Ariane broker stores the timer again, with the complement of the former offset
as prepared offset: it remains one delayed message. A message whose requested time had already passed was never pending and has no
row.
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
from ariane.pipeline.tables.messages import TIMERS
from ariane.store.types import DELAYS_MS
from ariane.tables import DELAYS
from ariane.tables.declarations.delays import CANCELLED, DELIVERED, LEVEL, PENDING, RETRY, TIME

ID = ("bucket", "message_id", "broker")
KEY = (*ID, "topic", "reconsume_times", "requested_for")
TIME_MAX_MS = 253_402_300_799_999  # last ms of the year 9999


def delays(messages: DataFrame, marks: DataFrame, levels_ms: Sequence[int] = DELAYS_MS) -> DataFrame:
    """Return rows with the columns of DELAYS and `bucket`.

    Args:
        levels_ms: the brokers' messageDelayLevel, in ms.
    """
    once = messages.dropDuplicates([*ID, "topic", "commit_log_offset"])
    waiting = _waiting(once, marks, levels_ms)
    joined = waiting.join(_delivered(once), [*KEY, "number"], "full_outer")
    scheduled_at = F.coalesce("scheduled_at", _time(F.when(F.col("is_timer"), F.col("requested_time"))))
    # A delivery without a pending record: one by level is recognized by its properties, one by time by its prepared offset.
    valid = joined.where(F.col("waits") | F.col("is_timer").isNull() | ~F.col("is_timer") | F.col("is_linked"))
    return (
        valid.withColumn("scheduled_at", scheduled_at)
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
        .select(*(F.col(name).cast(kind).alias(name) for name, kind, *_ in DELAYS.columns), "bucket")
    )


def _waiting(once: DataFrame, marks: DataFrame, levels_ms: Sequence[int]) -> DataFrame:
    """Return one row per delayed message; `number` counts those with equal keys, cancelled ones last."""
    properties, topic = F.col("properties"), F.col("topic")
    is_timer = topic == TIMER_TOPIC
    is_recall = is_timer & (F.col("queue_id") == TIMERS) & properties[TIMER_DEL_UNIQKEY].isNotNull()
    is_there = (topic == SCHEDULE_TOPIC) | (is_timer & (F.col("queue_id") == TIMERS) & ~is_recall)
    level = F.when(~is_timer, F.col("queue_id") + 1)
    durations = F.array(*map(F.lit, levels_ms))
    due_time = _time(F.unix_millis("store_timestamp") + F.get(durations, F.col("queue_id")).cast("bigint"))
    requested_time = F.coalesce(_ms(START_DELIVER_TIME), _ms(TIMER_DELIVER_MS), _ms(TIMER_OUT_MS))
    cancelled = (
        marks.where(F.col("topic") == TIMER_TOPIC)
        .groupBy(*ID, "topic", "queue_offset")
        .agg(F.min("marked_at").alias("mark_at"))
    )
    delayed = once.where(is_there).join(cancelled, [*ID, "topic", "queue_offset"], "left")
    records = delayed.select(
        "bucket",
        "message_id",
        "broker",
        properties[REAL_TOPIC].alias("topic"),
        "reconsume_times",
        _asked_for(is_timer, level).alias("requested_for"),
        _kind(is_timer, properties[REAL_TOPIC]).alias("kind"),
        level.alias("level"),
        F.when(is_timer, _time(requested_time)).otherwise(due_time).alias("scheduled_at"),
        "store_timestamp",
        "keys",
        "commit_log_offset",
        "mark_at",
        (is_timer & (F.coalesce("prepared_transaction_offset", F.lit(0)) < 0)).alias("is_moved"),
        F.lit(True).alias("waits"),
    )
    same_key = Window.partitionBy(*KEY)
    first = same_key.orderBy("is_moved", F.col("mark_at").isNotNull(), "commit_log_offset")
    numbered = records.withColumns(
        {
            "number": F.row_number().over(first),
            "originals": F.count_if(~F.col("is_moved")).over(same_key),
            "moved_mark_at": F.min(F.when(F.col("is_moved"), F.col("mark_at"))).over(same_key),
        }
    )
    # The recall at Apache's brokers deletes all timers of the message in its topic.
    recalled = (
        once.where(is_recall)
        .groupBy(*ID, properties[REAL_TOPIC].alias("topic"))
        .agg(F.min("store_timestamp").alias("recalled_at"))
    )
    # If the first record of a message is in no table (any more), a record that was stored again stands in for it.
    selected = numbered.where(~F.col("is_moved") | ((F.col("originals") == 0) & (F.col("number") == 1)))
    is_by_time = F.col("level").isNull()
    return selected.join(recalled, [*ID, "topic"], "left").select(
        *KEY,
        "number",
        "kind",
        "level",
        "scheduled_at",
        F.when(~F.col("is_moved"), F.col("store_timestamp")).alias("stored_at"),
        "keys",
        "commit_log_offset",
        F.coalesce("mark_at", "moved_mark_at", F.when(is_by_time, F.col("recalled_at"))).alias("cancelled_at"),
        "waits",
    )


def _delivered(once: DataFrame) -> DataFrame:
    """Return the records that may be deliveries; `number` counts those with equal keys, explicit deliveries first."""
    properties, topic = F.col("properties"), F.col("topic")
    is_elsewhere = ~topic.isin(SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)
    by_level = (F.coalesce(properties[DELAY], F.lit("0")) != "0") & (properties[REAL_TOPIC] == topic)
    is_timer = ~F.coalesce(by_level, F.lit(False))
    requested_time = F.coalesce(_ms(START_DELIVER_TIME), _ms(TIMER_DELIVER_MS))
    level = properties[DELAY].try_cast("int")
    requested_for = _asked_for(is_timer, level)
    deliveries = once.where(is_elsewhere & requested_for.isNotNull()).select(
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
    return deliveries.withColumn("number", F.row_number().over(order)).drop("commit_log_offset")


def _asked_for(is_timer: Column, level: Column) -> Column:
    """Return the requested delay in the form that the pending and the delivered record share; null if there was none."""
    properties = F.col("properties")
    time = F.coalesce(
        *(properties[name] for name in (START_DELIVER_TIME, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS))
    )
    return F.when(is_timer, F.concat(F.lit("time "), time)).otherwise(F.concat(F.lit("level "), level))


def _kind(is_timer: Column, topic: Column) -> Column:
    is_retry = F.coalesce(topic.startswith(RETRY_PREFIX) | topic.startswith(DLQ_PREFIX), F.lit(False))
    return F.when(is_timer, TIME).when(is_retry, RETRY).otherwise(LEVEL)


def _ms(name: str) -> Column:
    """Return a property that contains a time, in ms."""
    return F.col("properties")[name].try_cast("bigint")


def _time(ms: Column) -> Column:
    return F.timestamp_millis(F.when(ms.between(0, TIME_MAX_MS), ms))
