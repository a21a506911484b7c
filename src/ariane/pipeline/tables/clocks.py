"""trace_events, messages → clocks: bounds of the clock offset (broker's clock - client's clock) of each client host and minute.

    sent_at        client  ──┐ before        ┌──────────── stored, broker (exactly: table `messages`)
    answered       client  ──┼───────────────┘ before       stored - answered <= offset <= stored - sent_at
    delivered      client  ──┘ after it was stored          stored - delivered <= offset
    any event      client  ──→ its trace is stored, broker  offset <= trace stored - event

Records of clients that measure the offset themselves carry its bounds (`clock_lower_ms` in trace_events): `journeys` uses
those, and they take no part here, because other clients of their address may have other clocks (`client_of`).

Nothing is averaged. Each message yields an interval, widened by the drift of a minute; the estimate is the intersection of the
largest set of intervals that have a common point (`_agreed`, Marzullo's algorithm), if the set has more than half of the
messages. The other messages are discarded and counted. The bounds of the minutes before and after hold as well, widened by the
drift until then (`_with_neighbors`): if they contradict these, the clock was set. An offset is assumed only if the bounds require
one (`estimate`): 0 if it is between them, otherwise their middle. Limits: docs/journeys.md.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ariane.model.message import TIMER_DEL_UNIQKEY
from ariane.model.topic import DLQ_PREFIX, HALF_TOPIC, OP_HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from ariane.tables import CLOCKS

# Timestamps are truncated to whole ms: the true time is up to 1 ms later.
CUT_MS = 1
# Of one clock against the other: quartz differs by up to 100 ppm from the true time.
DRIFT_PPM = 200
PERIOD_DRIFT_MS = 12  # within a minute
# Topics in which a message is stored before it is visible to consumers of its target topic.
WAITING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)
PROCESS_DIGITS = 20  # of `client_process` with an IPv4 address
SHARED_CLOCK = ("bucket", "host", "client")
CLOCK = (*SHARED_CLOCK, "minute")
DISCARDED_IDS_MAX = 8
# Part of the bounds of a clock that is not used, from this number of messages on.
TRIMMED, TRIMMED_FROM = 0.01, 10
# Columns of the table that say nothing about the offset.
COUNTS = ("messages", "sends", "deliveries", "discarded", "discarded_ids")


def clocks(events: DataFrame, messages: DataFrame) -> DataFrame:
    """Return rows with the columns of CLOCKS and `bucket`, from trace_events and messages with `bucket`."""
    unmeasured = events.where("clock_lower_ms IS NULL")
    joined = unmeasured.join(stored(messages), ["bucket", "message_id"], "left")
    of_message = (
        joined.select(
            "bucket",
            host_of("client_host").alias("host"),
            client_of().alias("client"),
            minute_of("trace_stored_at").alias("minute"),
            "message_id",
            *_bounds(),
        )
        .where("host IS NOT NULL")
        .groupBy(*CLOCK, "message_id")
        .agg(
            F.max("within_lower_ms").alias("within_lower_ms"),
            F.max("after_ms").alias("after_ms"),
            F.min("upper_ms").alias("upper_ms"),
        )
        .withColumn("lower_ms", F.greatest("within_lower_ms", "after_ms"))
    )
    columns = (F.col(column.name).cast(column.type).alias(column.name) for column in CLOCKS.columns)
    return _with_neighbors(_agreed(_edges(of_message))).select(*columns, "bucket")


def _edges(of_message: DataFrame) -> DataFrame:
    """Return a row per clock and value: how many intervals of messages begin and end there, and what else is counted.

    Messages are counted, not records: a record that was read twice changes nothing. A message whose own records contradict
    each other has no interval; its edges are counted under a null value.
    """
    is_torn = F.coalesce(F.col("lower_ms") > F.col("upper_ms"), F.lit(False))
    is_bounded = F.col("lower_ms").isNotNull() | F.col("upper_ms").isNotNull()

    def edge(bound_ms: str, *, is_lower: bool) -> Column:
        return F.struct(
            F.when(~is_torn, F.col(bound_ms)).alias("value"),
            F.col(bound_ms).alias("bound_ms"),
            F.lit(is_lower).alias("is_lower"),
        )

    edges = of_message.select(
        "*",
        is_torn.alias("is_torn"),
        is_bounded.alias("is_bounded"),
        F.explode(F.array(edge("lower_ms", is_lower=True), edge("upper_ms", is_lower=False))).alias("edge"),
    )
    is_lower, has_value = F.col("edge.is_lower"), F.col("edge.value").isNotNull()
    # Counts per message are attached to its upper edge, so that each message is counted once.
    return edges.groupBy(*CLOCK, F.col("edge.value").alias("value")).agg(
        F.count_if(is_lower & has_value).alias("lowers"),
        F.count_if(~is_lower & has_value).alias("uppers"),
        F.count_if(~is_lower & F.col("is_bounded")).alias("bounded"),
        F.count_if(~is_lower & F.col("is_torn")).alias("torn"),
        F.count_if(~is_lower & F.col("upper_ms").isNotNull()).alias("messages"),
        F.count_if(~is_lower & F.col("within_lower_ms").isNotNull()).alias("sends"),
        F.count_if(~is_lower & F.col("after_ms").isNotNull()).alias("deliveries"),
        F.max(F.when(is_lower, F.col("edge.bound_ms"))).alias("greatest_lower_ms"),
        F.min(F.when(~is_lower, F.col("edge.bound_ms"))).alias("least_upper_ms"),
        F.min(F.when(is_lower & has_value, F.col("message_id"))).alias("lower_id"),
        F.min(F.when(~is_lower & has_value, F.col("message_id"))).alias("upper_id"),
        F.min(F.when(F.col("is_torn"), F.col("message_id"))).alias("torn_id"),
    )


def _agreed(edges: DataFrame) -> DataFrame:
    """Return a row per clock: the bounds that most messages agree on, and the messages that contradict them.

    The number of intervals that contain a value is the number of those that start at or before it, minus those that end before
    it. The values with the greatest number are the intersection of the largest consistent set. If several sets are equally large,
    the bounds enclose all of them. Of many messages the closest hundredth of the bounds is not used: a record that is wrong by
    little contradicts no other. Without a majority the bounds are those of all messages, and contradict each other.
    """
    clock = Window.partitionBy(*CLOCK)
    upto = clock.orderBy("value").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    value = F.col("value")
    sums = edges.withColumns(
        {
            "lowers_upto": F.sum("lowers").over(upto),
            "uppers_upto": F.sum("uppers").over(upto),
            "uppers_in_all": F.sum("uppers").over(clock),
            "messages_in_all": F.sum("bounded").over(clock),
            # Intervals without a lower edge have begun before all values.
            "open_below": F.sum(F.col("bounded") - F.col("torn") - F.col("lowers")).over(clock),
        }
    )
    containing = F.col("lowers_upto") - (F.col("uppers_upto") - F.col("uppers")) + F.col("open_below")
    counted = sums.withColumn("within", F.when(value.isNotNull(), containing))
    best = counted.withColumn("best", F.max("within").over(clock))
    is_best = F.col("within") == F.col("best")
    chosen = best.withColumn("first_best", F.min(F.when(is_best, value)).over(clock)).withColumn(
        "last_best", F.max(F.when(is_best, value)).over(clock)
    )
    extreme = F.when(F.col("messages_in_all") >= TRIMMED_FROM, F.ceil(F.col("messages_in_all") * TRIMMED)).otherwise(0)
    trimmed = chosen.withColumns(
        {
            "extreme": extreme,
            "lowers_in_all": F.sum(F.when(value <= F.col("first_best"), F.col("lowers"))).over(clock),
            "uppers_before": F.coalesce(
                F.sum(F.when(value < F.col("last_best"), F.col("uppers"))).over(clock), F.lit(0)
            ),
        }
    )
    is_lower = (
        (F.col("lowers") > 0)
        & (value <= F.col("first_best"))
        & (F.col("lowers_upto") - F.col("lowers") < F.greatest(F.col("lowers_in_all") - F.col("extreme"), F.lit(1)))
    )
    is_upper = (
        (F.col("uppers") > 0)
        & (value >= F.col("last_best"))
        & (F.col("uppers_upto") > F.least(F.col("uppers_before") + F.col("extreme"), F.col("uppers_in_all") - 1))
    )
    bounds = trimmed.withColumns(
        {
            "lower": F.max(F.when(is_lower, value)).over(clock),
            "upper": F.min(F.when(is_upper, value)).over(clock),
        }
    )
    is_low, is_high = value < F.col("lower"), value > F.col("upper")
    totals = bounds.groupBy(*CLOCK).agg(
        F.max("lower").alias("lower"),
        F.max("upper").alias("upper"),
        F.coalesce(F.max("best"), F.lit(0)).alias("best"),
        *(F.sum(name).alias(name) for name in ("bounded", "torn", "messages", "sends", "deliveries")),
        F.coalesce(F.sum(F.when(is_high, F.col("lowers"))), F.lit(0)).alias("too_high"),
        F.coalesce(F.sum(F.when(is_low, F.col("uppers"))), F.lit(0)).alias("too_low"),
        F.max("greatest_lower_ms").alias("greatest_lower_ms"),
        F.min("least_upper_ms").alias("least_upper_ms"),
        F.array_sort(
            F.array_union(
                F.collect_set(F.when(is_high, F.col("lower_id")).when(is_low, F.col("upper_id"))),
                F.collect_set("torn_id"),
            )
        ).alias("ids"),
    )
    is_majority = F.col("best") * 2 > F.col("bounded")
    return totals.withColumns(
        {
            "lower_ms": F.when(is_majority, F.col("lower")).otherwise(F.col("greatest_lower_ms")),
            "upper_ms": F.when(is_majority, F.col("upper")).otherwise(F.col("least_upper_ms")),
            "discarded": F.when(is_majority, F.col("torn") + F.col("too_high") + F.col("too_low")).otherwise(
                F.col("bounded")
            ),
            "discarded_ids": F.when(is_majority, F.slice("ids", 1, DISCARDED_IDS_MAX)).otherwise(
                F.array().cast("array<string>")
            ),
        }
    )


def _with_neighbors(clocks: DataFrame) -> DataFrame:
    """Intersect the bounds of each minute with those of the minutes with records before and after it, widened by drift.

    If the clock was set in one of them, the result is a contradiction: the records of these minutes are not corrected, because
    records of the minute in which the clock was set may have been written before or after.
    """
    in_order = Window.partitionBy(*SHARED_CLOCK).orderBy("minute")
    is_agreed = F.coalesce(F.col("lower_ms") <= F.col("upper_ms"), F.lit(True))
    lowers, uppers = [F.col("lower_ms")], [F.col("upper_ms")]
    for neighbor in (F.lag, F.lead):
        distance_ms = F.abs(F.unix_millis("minute") - F.unix_millis(neighbor("minute").over(in_order)))
        drift_ms = F.ceil(distance_ms * DRIFT_PPM / 1_000_000)
        lowers.append(neighbor(F.when(is_agreed, F.col("lower_ms"))).over(in_order) - drift_ms)
        uppers.append(neighbor(F.when(is_agreed, F.col("upper_ms"))).over(in_order) + drift_ms)
    return clocks.withColumns({"lower_ms": F.greatest(*lowers), "upper_ms": F.least(*uppers)})


def estimate(lower_ms: Column, upper_ms: Column) -> tuple[Column, Column]:
    """Return the assumed offset and its maximum error; both null if a bound is missing or the bounds contradict each other."""
    is_consistent = lower_ms <= upper_ms
    none = is_consistent & (lower_ms <= 0) & (upper_ms >= 0)
    middle = F.round((lower_ms + upper_ms) / 2).cast("bigint")
    difference = F.when(none, F.lit(0)).when(is_consistent, middle)
    return difference, F.greatest(upper_ms - difference, difference - lower_ms)


def stored(messages: DataFrame) -> DataFrame:
    """Return one row per message: when and where the broker stored it.

    Columns: `records` (offset ids with their store times), `first_stored_at`, `available_at` and `own_topic`: when and where it was
    stored in its target topic, and `recall_stored_at`: when its recall was.
    """
    topic = F.col("topic")
    is_included = ~topic.startswith(DLQ_PREFIX) & ~topic.startswith(RETRY_PREFIX) & (topic != OP_HALF_TOPIC)
    is_target_topic = ~topic.isin(*WAITING_TOPICS)
    is_recall = (topic == TIMER_TOPIC) & F.col("properties")[TIMER_DEL_UNIQKEY].isNotNull()
    stored_at = F.col("store_timestamp")
    return (
        messages.where(is_included)
        .groupBy("bucket", "message_id")
        .agg(
            F.collect_set(F.struct("offset_message_id", "store_timestamp")).alias("records"),
            F.min(F.when(~is_recall, stored_at)).alias("first_stored_at"),
            F.min(F.when(is_recall, stored_at)).alias("recall_stored_at"),
            F.min(F.when(is_target_topic, stored_at)).alias("available_at"),
            F.min(F.when(is_target_topic, topic)).alias("own_topic"),
        )
    )


def stored_exactly(offset_message_id: Column) -> Column:
    """Return the store time of the record with this offset id, for the rows of `stored`; null if it is unknown."""
    same_records = F.filter("records", lambda record: record["offset_message_id"] == offset_message_id)
    return F.array_min(F.transform(same_records, lambda record: record["store_timestamp"]))


def host_of(client_host: str) -> Column:
    """Return the address in `10.0.0.9:5000`, `[fe80::1]:5000`, `10.0.0.9@4711#…` or `10.0.0.9`: one host has one clock."""
    address = F.regexp_replace(client_host, "@.*$", "")
    host = F.regexp_replace(address, r"^\[(.*)\](?::\d+)?$|^([^:]*):\d+$", "$1$2")
    return F.when(host != "", host)


def client_of() -> Column:
    """Return the client whose clock wrote a record; null: the clients of its address share a clock.

    Unique ids begin with the address that the process itself has. Behind NAT, and in most containers, that is not the address
    of its connection, which then does not identify the machine: each process is judged by its own records. So is each client
    whose records contain its client id (4.8.0, Go).
    """
    process, host = F.col("client_process"), host_of("client_host")
    digits = (F.conv(F.substring(process, first, 2), 16, 10) for first in (1, 3, 5, 7))
    is_other = (F.length(process) != PROCESS_DIGITS) | (F.concat_ws(".", *digits) != host)
    return F.when(F.col("client_host").contains("@"), F.col("client_host")).when(is_other, process)


def minute_of(time: str) -> Column:
    return F.date_trunc("minute", time)


def noted_ms(is_send: Column) -> Column:
    """Return when the client wrote a record, by its clock: a send after the response, other events when they happened."""
    cost_ms = F.when(is_send, F.greatest(F.lit(0), F.coalesce("cost_ms", F.lit(0)))).otherwise(F.lit(0))
    return F.unix_millis("event_time") + cost_ms


def _bounds() -> tuple[Column, ...]:
    """Return the bounds that one event yields for its minute: `within_lower_ms` (from a send), `after_ms`, `upper_ms`.

    `after_ms` is from a delivery.
    """
    widening_ms = CUT_MS + PERIOD_DRIFT_MS
    is_send, is_delivery = F.col("type") == "Pub", F.col("type") == "SubBefore"
    said_ms = F.unix_millis("event_time")
    cost_ms = F.when(F.col("cost_ms") >= 0, F.col("cost_ms"))
    stored_ms = F.when(is_send, F.unix_millis(stored_exactly(F.col("offset_message_id"))))
    by_send_ms = F.when(stored_ms.isNotNull(), stored_ms - said_ms + widening_ms)
    by_trace_ms = F.unix_millis("trace_stored_at") - noted_ms(is_send) + widening_ms
    there_ms = F.unix_millis(F.coalesce("available_at", "first_stored_at"))
    return (
        F.when(is_send, stored_ms - (said_ms + cost_ms) - widening_ms).alias("within_lower_ms"),
        F.when(is_delivery, there_ms - said_ms - widening_ms).alias("after_ms"),
        F.least(by_send_ms, by_trace_ms).alias("upper_ms"),
    )
