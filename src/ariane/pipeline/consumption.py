"""samples_* → consumption: minute by minute, what came in, what groups confirmed, who handed it out, what is left.

    samples_queues   two samples of a queue, one after the other → its rates   ─┐ summed over queues
                     the last of the minute → its lag                            ├→ one row per minute, broker, topic, group
    samples_counters the last of the minute → what each role handed out          │
    samples_brokers  who did not answer                                         ─┘

A fold: samples in any order, twice or late give the same rows. A pair of samples counts for the minute of its second one. A
pair that goes back (a reset, a broker that lost messages), or whose samples lie more than PAIR_MAX_S apart, tells no rate:
unknown is null, and `flags` says why.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ariane.pipeline import bucket_columns
from ariane.tables import CONSUMPTION
from ariane.tables.samples import WINDOW_MS

PAIR_MAX_S = 150.0  # an average of more would say nothing of a minute; groups that take turns are asked more often

QUEUE = ("broker", "topic", "consumer_group", "queue_id")
GROUP = ("window_start", "broker", "topic", "consumer_group")


def consumption(brokers: DataFrame, queues: DataFrame, counters: DataFrame) -> DataFrame:
    """Rows with the columns of CONSUMPTION and `bucket`."""
    known = queues.where("broker_id = 0")
    rows = _of_groups(_of_queues(_pairs(known))).unionByName(_unanswered(brokers, known), allowMissingColumns=True)
    # A topic's own rows, whose group is null, find no counters.
    joined = rows.join(_delivered(counters), list(GROUP), "left").join(
        _answers(brokers), ["window_start", "broker"], "left"
    )
    told = _judged(joined)
    columns = [F.col(one.name).cast(one.type).alias(one.name) for one in CONSUMPTION.columns]
    return told.select(*columns, bucket_columns.bucket_of_time(F.col("window_start")).alias("bucket"))


def _window(at: str) -> Column:
    """The minute of an instant."""
    return F.timestamp_millis(F.floor(F.unix_millis(F.col(at)) / WINDOW_MS) * WINDOW_MS)


def _seconds(one: Column, other: Column) -> Column:
    return (F.unix_millis(one) - F.unix_millis(other)) / F.lit(1000.0)


def _pairs(queues: DataFrame) -> DataFrame:
    """Samples of queues, once each, and what came between each and the one before."""
    once = queues.groupBy("collector", "sampled_at", *QUEUE).agg(
        *(
            F.max(name).alias(name)
            for name in ("ends_at", "min_offset", "max_offset", "committed_offset", "oldest_age_ms")
        )
    )
    order = Window.partitionBy("collector", *QUEUE).orderBy("sampled_at")

    def before(name: str) -> Column:
        return F.lag(name).over(order)

    paired = once.select(
        "*",
        _seconds(F.col("sampled_at"), before("sampled_at")).alias("at_s"),
        _seconds(F.col("ends_at"), before("ends_at")).alias("ends_s"),
        (F.col("committed_offset") - before("committed_offset")).alias("consumed"),
        (F.col("max_offset") - before("max_offset")).alias("produced"),
    )
    consumed_ok = (F.col("consumed") >= 0) & F.col("at_s").between(0.001, PAIR_MAX_S)
    produced_ok = (F.col("produced") >= 0) & F.col("ends_s").between(0.001, PAIR_MAX_S)
    return paired.select(
        "*",
        _window("sampled_at").alias("window_start"),
        F.when(consumed_ok, F.col("consumed")).alias("consumed_ok"),
        F.when(consumed_ok, F.col("at_s")).alias("consumed_s"),
        F.when(produced_ok, F.col("produced")).alias("produced_ok"),
        F.when(produced_ok, F.col("ends_s")).alias("produced_s"),
        # A negative lag: the offset was set beyond the end, or the broker has lost messages.
        F.when(F.col("max_offset") >= F.col("committed_offset"), F.col("max_offset") - F.col("committed_offset")).alias(
            "lag"
        ),
    )


def _of_queues(pairs: DataFrame) -> DataFrame:
    """One row per minute and queue."""
    last = F.struct("sampled_at", "collector")
    age_at = F.when(F.col("oldest_age_ms").isNotNull(), last)
    return pairs.groupBy("window_start", *QUEUE).agg(
        (F.sum("consumed_ok") / F.sum("consumed_s")).alias("consumed_tps"),
        (F.sum("produced_ok") / F.sum("produced_s")).alias("produced_tps"),
        F.coalesce(F.sum("consumed_s"), F.sum("produced_s")).alias("seconds"),
        F.max_by("lag", last).alias("lag"),
        F.min_by("lag", last).alias("first_lag"),
        F.max_by("oldest_age_ms", age_at).alias("age_ms"),
        F.max_by(F.greatest(F.lit(0), F.col("min_offset") - F.col("committed_offset")), last).alias("removed"),
        F.max(F.coalesce(F.col("consumed") < 0, F.lit(False))).alias("went_back"),
        F.max(F.coalesce(F.col("produced") < 0, F.lit(False))).alias("ends_went_back"),
        F.max(F.coalesce(F.col("at_s") > PAIR_MAX_S, F.lit(False))).alias("gap"),
        F.max_by(F.col("max_offset") < F.col("committed_offset"), last).alias("beyond"),
        F.max_by(F.col("max_offset").isNull(), last).alias("no_ends"),
    )


def _all(name: str) -> Column:
    """The sum over queues; null when one of them is not known."""
    return F.when(F.count(name) == F.count(F.lit(1)), F.sum(name))


def _any(name: str) -> Column:
    return F.max(F.coalesce(F.col(name), F.lit(False)))


def _of_groups(queues: DataFrame) -> DataFrame:
    """One row per minute, broker, topic and group (null: the topic itself)."""
    waits = F.col("lag") > 0
    return queues.groupBy(*GROUP).agg(
        F.count(F.lit(1)).alias("queues"),
        F.max("seconds").alias("seconds"),
        _all("produced_tps").alias("produced_tps"),
        _all("consumed_tps").alias("consumed_tps"),
        _all("lag").alias("lag"),
        (_all("lag") - _all("first_lag")).alias("lag_change"),
        F.max(F.when(waits, F.col("age_ms"))).alias("oldest_age_ms"),
        F.sum(F.when(waits & F.col("age_ms").isNull(), 1).otherwise(0)).alias("ageless"),
        _all("removed").alias("removed"),
        *(_any(name).alias(name) for name in ("went_back", "ends_went_back", "gap", "beyond", "no_ends")),
    )


def _unanswered(brokers: DataFrame, queues: DataFrame) -> DataFrame:
    """The minutes in which a master answered nothing: a row for each group that it is known to have."""
    minutes = (
        brokers.where("broker_id = 0")
        .groupBy(_window("sampled_at").alias("window_start"), "broker")
        .agg(F.min(F.col("error").isNotNull()).alias("all_failed"))
        .where("all_failed")
    )
    told = queues.select(_window("sampled_at").alias("seen_at"), "broker", "topic", "consumer_group").distinct()
    silent = minutes.join(told, "broker").where("seen_at < window_start").select(*GROUP).distinct()
    here = queues.select(_window("sampled_at").alias("window_start"), "broker").distinct()
    return silent.join(here, ["window_start", "broker"], "left_anti")


def _delivered(counters: DataFrame) -> DataFrame:
    """What each role handed to a group, as it last said in the minute: it speaks of its own last minute."""
    last = F.struct("sampled_at", "collector", "tps")
    by_broker = (
        counters.where("statistic = 'GROUP_GET_NUMS'")
        .groupBy(_window("sampled_at").alias("window_start"), "broker", "topic", "consumer_group", "broker_id")
        .agg(F.max_by("tps", last).alias("tps"))
    )
    is_slave = F.col("broker_id") > 0
    return by_broker.groupBy(*GROUP).agg(
        F.max(F.when(~is_slave, F.col("tps"))).alias("master_tps"),
        F.sum(F.when(is_slave, F.col("tps"))).alias("slaves_tps"),
        F.count(F.when(is_slave, 1)).alias("slaves_reported"),
    )


def _answers(brokers: DataFrame) -> DataFrame:
    """Per minute and broker name: how many slaves there are, and who was away for a part of it or all of it."""
    name = F.concat(F.when(F.col("broker_id") == 0, F.lit("master")).otherwise(F.concat(F.lit("slave "), "broker_id")))
    return brokers.groupBy(_window("sampled_at").alias("window_start"), "broker").agg(
        F.count_distinct(F.when(F.col("broker_id") > 0, F.col("broker_id"))).alias("slaves"),
        F.array_sort(F.collect_set(F.when(F.col("error").isNotNull(), F.concat(name, F.lit(" unreachable"))))).alias(
            "error"
        ),
    )


def _judged(rows: DataFrame) -> DataFrame:
    """The columns that follow from several, and why others are not known."""
    is_group = F.col("consumer_group").isNotNull()
    spare = F.col("consumed_tps") - F.col("produced_tps")
    slaves_known = F.coalesce("slaves_reported", F.lit(0)) >= F.coalesce("slaves", F.lit(0))
    flags = {
        "only one sample": F.col("queues").isNotNull() & F.col("seconds").isNull() & ~_is("gap"),
        "a queue has only one sample": (
            is_group & F.col("seconds").isNotNull() & F.col("consumed_tps").isNull() & ~_is("gap") & ~_is("went_back")
        ),
        "samples missing": _is("gap"),
        "committed offset moved back": _is("went_back"),
        "max offset moved back": _is("ends_went_back"),
        "committed offset beyond max offset": _is("beyond"),
        "queue bounds unknown": _is("no_ends"),
        "unconsumed messages removed": F.col("removed") > 0,
        "message age unknown for some queues": F.col("ageless") > 0,
        "master counters unknown": is_group & F.col("master_tps").isNull(),
        "slave counters unknown": is_group & ~slaves_known,
    }
    said = F.array_compact(F.array(*(F.when(condition, F.lit(text)) for text, condition in flags.items())))
    return (
        rows.withColumn("flags", F.concat(said, F.coalesce("error", F.array().cast("array<string>"))))
        .withColumn("delivered_master_tps", F.when(is_group, F.col("master_tps")))
        .withColumn("delivered_slaves_tps", F.when(is_group & slaves_known, F.coalesce("slaves_tps", F.lit(0.0))))
        .withColumn("drain_s", F.when(F.col("lag") == 0, F.lit(0.0)).when(spare > 0, F.col("lag") / spare))
    )


def _is(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(False))
