"""samples_* → consumption: per minute, messages stored, confirmed by groups, delivered by each role, and pending.

    samples_queues   consecutive samples of a queue → its messages  ─┐ summed over queues
                     the last sample of the minute → its lag         ├→ one row per minute, broker, topic, group
    samples_counters the last sample of the minute → deliveries      │
    samples_brokers  brokers that did not respond                   ─┘

Duplicate, late or reordered samples give the same rows. A pair of samples counts for the minute of its second sample. A pair whose
offsets decrease (reset, loss of messages), or whose samples are more than MAX_PAIR_S apart, has no rate: the value is null, and
`flags` has the reason.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ariane.pipeline.tables import bucket_columns
from ariane.tables import CONSUMPTION
from ariane.tables.declarations.samples import WINDOW_MS

MAX_PAIR_S = (
    150.0  # an average over more time says nothing about a minute; groups that take turns are polled more often
)

QUEUE = ("broker", "topic", "consumer_group", "queue_id")
GROUP = ("window_start", "broker", "topic", "consumer_group")


def consumption(brokers: DataFrame, queues: DataFrame, counters: DataFrame) -> DataFrame:
    """Return rows with the columns of CONSUMPTION and `bucket`, from samples_brokers, samples_queues and samples_counters."""
    of_masters = queues.where("broker_id = 0")
    rows = _of_groups(_of_queues(_pairs(of_masters))).unionByName(
        _unpolled_groups(brokers, of_masters), allowMissingColumns=True
    )
    # Rows of a topic have a null group and therefore match no counters.
    joined = rows.join(_delivered(counters), list(GROUP), "left").join(
        _roles(brokers), ["window_start", "broker"], "left"
    )
    flagged = _flagged(joined)
    columns = [F.col(column.name).cast(column.type).alias(column.name) for column in CONSUMPTION.columns]
    return flagged.select(*columns, bucket_columns.time_bucket(F.col("window_start")).alias("bucket"))


def _window(time_column: str) -> Column:
    """Return the start of an instant's minute."""
    return F.timestamp_millis(F.floor(F.unix_millis(F.col(time_column)) / WINDOW_MS) * WINDOW_MS)


def _seconds_between(later: Column, earlier: Column) -> Column:
    return (F.unix_millis(later) - F.unix_millis(earlier)) / F.lit(1000.0)


def _pairs(queues: DataFrame) -> DataFrame:
    """Return each sample of a queue once, with its differences to the sample before."""
    # A sample that was sent twice, because its response was lost, must count once.
    once = queues.groupBy("collector", "sampled_at", *QUEUE).agg(
        *(
            F.max(name).alias(name)
            for name in ("bounds_at", "min_offset", "max_offset", "committed_offset", "oldest_age_ms")
        )
    )
    order = Window.partitionBy("collector", *QUEUE).orderBy("sampled_at")

    def before(name: str) -> Column:
        return F.lag(name).over(order)

    is_uncommitted = F.col("consumer_group").isNotNull() & F.col("committed_offset").isNull()
    paired = once.select(
        "*",
        _seconds_between(F.col("sampled_at"), before("sampled_at")).alias("at_s"),
        _seconds_between(F.col("bounds_at"), before("bounds_at")).alias("bounds_s"),
        F.coalesce(
            F.col("committed_offset") - before("committed_offset"),
            # Without an offset in both samples, the group has consumed nothing.
            F.when(is_uncommitted & before("committed_offset").isNull() & before("sampled_at").isNotNull(), F.lit(0)),
        ).alias("consumed"),
        (F.col("max_offset") - before("max_offset")).alias("produced"),
    )
    consumed_ok = (F.col("consumed") >= 0) & F.col("at_s").between(0.001, MAX_PAIR_S)
    produced_ok = (F.col("produced") >= 0) & F.col("bounds_s").between(0.001, MAX_PAIR_S)
    return paired.select(
        "*",
        _window("sampled_at").alias("window_start"),
        F.when(consumed_ok, F.col("consumed")).alias("consumed_ok"),
        F.when(consumed_ok, F.col("at_s")).alias("consumed_s"),
        F.when(produced_ok, F.col("produced")).alias("produced_ok"),
        F.when(produced_ok, F.col("bounds_s")).alias("produced_s"),
        queue_lag(F.col("committed_offset"), F.col("max_offset")).alias("lag"),
    )


def queue_lag(committed: Column, end: Column) -> Column:
    """Return the lag of a queue as `ariane.cluster.lag.queue_lag` does; null if an offset is unknown."""
    # `greatest` ignores nulls.
    return F.when(committed.isNotNull() & end.isNotNull(), F.greatest(F.lit(0).cast("bigint"), end - committed))


def _of_queues(pairs: DataFrame) -> DataFrame:
    """Return one row per minute and queue."""
    last = F.struct("sampled_at", "collector")
    age_at = F.when(F.col("oldest_age_ms").isNotNull(), last)
    return pairs.groupBy("window_start", *QUEUE).agg(
        *(F.sum(name).alias(name) for name in ("consumed_ok", "consumed_s", "produced_ok", "produced_s")),
        F.max_by("lag", last).alias("lag"),
        F.min_by("lag", last).alias("first_lag"),
        F.max_by("oldest_age_ms", age_at).alias("age_ms"),
        F.max_by(F.greatest(F.lit(0), F.col("min_offset") - F.col("committed_offset")), last).alias("removed"),
        F.max(F.coalesce(F.col("consumed") < 0, F.lit(False))).alias("went_back"),
        F.max(F.coalesce(F.col("produced") < 0, F.lit(False))).alias("max_went_back"),
        F.max(F.coalesce(F.col("at_s") > MAX_PAIR_S, F.lit(False))).alias("gap"),
        F.max_by(F.col("max_offset") < F.col("committed_offset"), last).alias("beyond"),
        F.max_by(F.col("max_offset").isNull(), last).alias("no_bounds"),
        F.max_by(F.col("consumer_group").isNotNull() & F.col("committed_offset").isNull(), last).alias("no_offset"),
    )


def _sum_or_null(name: str) -> Column:
    """Return the sum over queues; null if one of them is unknown."""
    return F.when(F.count(name) == F.count(F.lit(1)), F.sum(name))


def _any(name: str) -> Column:
    return F.max(F.coalesce(F.col(name), F.lit(False)))


def _of_groups(queues: DataFrame) -> DataFrame:
    """Return one row per minute, broker, topic and group (null: the topic itself)."""
    has_lag = F.col("lag") > 0
    return queues.groupBy(*GROUP).agg(
        F.count(F.lit(1)).alias("queues"),
        F.coalesce(F.max("consumed_s"), F.max("produced_s")).alias("seconds"),
        # Queues with a shorter time (first committed offset, reset) add the messages known of them: their rates, each of
        # another time, would add up to more messages than there were.
        (_sum_or_null("produced_ok") / F.max("produced_s")).alias("produced_tps"),
        (_sum_or_null("consumed_ok") / F.max("consumed_s")).alias("consumed_tps"),
        _sum_or_null("lag").alias("lag"),
        (_sum_or_null("lag") - _sum_or_null("first_lag")).alias("lag_change"),
        F.max(F.when(has_lag, F.col("age_ms"))).alias("oldest_age_ms"),
        F.sum(F.when(has_lag & F.col("age_ms").isNull(), 1).otherwise(0)).alias("queues_without_age"),
        _sum_or_null("removed").alias("removed"),
        *(_any(name).alias(name) for name in ("went_back", "max_went_back", "gap", "beyond", "no_bounds", "no_offset")),
    )


def _unpolled_groups(brokers: DataFrame, queues: DataFrame) -> DataFrame:
    """Return a row per minute in which a master did not respond and per group that it had in an earlier sample."""
    minutes = (
        brokers.where("broker_id = 0")
        .groupBy(_window("sampled_at").alias("window_start"), "broker")
        .agg(F.min(F.col("error").isNotNull()).alias("all_failed"))
        .where("all_failed")
    )
    groups = queues.select(_window("sampled_at").alias("seen_at"), "broker", "topic", "consumer_group").distinct()
    expected = minutes.join(groups, "broker").where("seen_at < window_start").select(*GROUP).distinct()
    polled = queues.select(_window("sampled_at").alias("window_start"), "broker").distinct()
    return expected.join(polled, ["window_start", "broker"], "left_anti")


def _delivered(counters: DataFrame) -> DataFrame:
    """Return the delivery rate of each role per group: its last report in the minute, which covers its own last minute."""
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


def _roles(brokers: DataFrame) -> DataFrame:
    """Return, per minute and broker name, the number of slaves and the roles that were unreachable at least once."""
    name = F.concat(F.when(F.col("broker_id") == 0, F.lit("master")).otherwise(F.concat(F.lit("slave "), "broker_id")))
    return brokers.groupBy(_window("sampled_at").alias("window_start"), "broker").agg(
        F.count_distinct(F.when(F.col("broker_id") > 0, F.col("broker_id"))).alias("slaves"),
        F.array_sort(F.collect_set(F.when(F.col("error").isNotNull(), F.concat(name, F.lit(" unreachable"))))).alias(
            "error"
        ),
    )


def _flagged(rows: DataFrame) -> DataFrame:
    """Add the columns computed from several others, and the reasons for unknown values."""
    is_group = F.col("consumer_group").isNotNull()
    # How much faster the group consumes than messages arrive: only then does the lag shrink.
    spare_tps = F.col("consumed_tps") - F.col("produced_tps")
    slaves_known = F.coalesce("slaves_reported", F.lit(0)) >= F.coalesce("slaves", F.lit(0))
    flags = {
        "only one sample": F.col("queues").isNotNull() & F.col("seconds").isNull() & ~_is("gap"),
        "a queue has only one sample": (
            is_group & F.col("seconds").isNotNull() & F.col("consumed_tps").isNull() & ~_is("gap") & ~_is("went_back")
        ),
        "queue without committed offset": _is("no_offset"),
        "samples missing": _is("gap"),
        "committed offset moved back": _is("went_back"),
        "max offset moved back": _is("max_went_back"),
        "committed offset beyond max offset": _is("beyond"),
        "queue bounds unknown": _is("no_bounds"),
        "unconsumed messages removed": F.col("removed") > 0,
        "message age unknown for some queues": F.col("queues_without_age") > 0,
        "master counters unknown": is_group & F.col("master_tps").isNull(),
        "slave counters unknown": is_group & ~slaves_known,
    }
    flag_list = F.array_compact(F.array(*(F.when(condition, F.lit(text)) for text, condition in flags.items())))
    return (
        rows.withColumn("flags", F.concat(flag_list, F.coalesce("error", F.array().cast("array<string>"))))
        .withColumn("delivered_master_tps", F.when(is_group, F.col("master_tps")))
        .withColumn("delivered_slaves_tps", F.when(is_group & slaves_known, F.coalesce("slaves_tps", F.lit(0.0))))
        .withColumn("drain_s", F.when(F.col("lag") == 0, F.lit(0.0)).when(spare_tps > 0, F.col("lag") / spare_tps))
    )


def _is(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(False))
