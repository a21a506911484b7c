"""trace_events, messages, clocks → journeys: the path of each message through each consumer group.

The result does not depend on the order, lateness or duplication of the input rows.

    Pub, EndTransaction, Recall   by message id                                ─┐
    SubBefore  ─┐ by message id and request id: one attempt                     │
    SubAfter   ─┘   → by message id and group: the attempts                     ├→ one row per message and group
    messages      by message id: stored, available; by group: dead-lettered    ─┘
    clocks        by bucket, host, client and minute: the offset to the broker's clock
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX
from ariane.pipeline.tables.clocks import (
    CUT_MS,
    client_of,
    estimate,
    host_of,
    minute_of,
    noted_ms,
    stored,
    stored_exactly,
)
from ariane.tables import JOURNEYS
from ariane.tables.declarations.trace_tables import BEFORE_SENT, CONTRADICTION, NO_CLOCK, NO_STORE_TIME, OUTLIER

RESULTS = {0: "success", 1: "timeout", 2: "exception", 3: "null", 4: "failed"}
SENT_TYPES = ("Pub", "EndTransaction", "Recall")
CONSUMED_TYPES = ("SubBefore", "SubAfter")
CORRECTED = ("started_corrected_at", "ended_corrected_at")
SKEWED = (OUTLIER, CONTRADICTION, BEFORE_SENT)
HELD_TYPES = (1, 3)  # half and delayed messages, which the broker holds back
# Of longer journeys the row has the first and the last half of the attempts: orderly groups may retry without limit.
ATTEMPTS_MAX = 64
FIRST_POP_TIME = "1ST_POP_TIME"  # property of retries after a pop of 5.x
MESSAGE = ["bucket", "message_id"]


def journeys(events: DataFrame, messages: DataFrame, clocks: DataFrame) -> DataFrame:
    """Return rows with the columns of JOURNEYS and `bucket`, from trace_events, messages and clocks with `bucket`."""
    sends = _timed(_sends(events), clocks, "producer_clock").withColumn("is_traced", F.lit(True))
    deliveries = _consumptions(events, messages, clocks)
    # A message without any trace has no journey. A group without a trace has one (dead letters) if the message has a traced send.
    traced = sends.join(deliveries, MESSAGE, "full_outer").where("is_traced OR attempts IS NOT NULL")
    joined = traced.join(stored(messages), MESSAGE, "left")
    rows = _durations(_storing(joined))
    return rows.select(
        *(F.col(column.name).cast(column.type).alias(column.name) for column in JOURNEYS.columns), "bucket"
    )


def _by_message(rows: DataFrame) -> DataFrame:
    """Return rows in partitions by message, so that steps by message and group need no further shuffle.

    With one partition (`staged_tables`) none needs a shuffle, and `repartition` would be one.
    """
    is_single = rows.sparkSession.conf.get("spark.sql.shuffle.partitions") == "1"
    return rows if is_single else rows.repartition(*MESSAGE)


# --- sending -----------------------------------------------------------------------------------------------------------


def _sends(events: DataFrame) -> DataFrame:
    """Return one row per message id: the first successful send, otherwise the first failed one; and transaction decisions."""
    is_pub, is_decision = F.col("type") == "Pub", F.col("type") == "EndTransaction"
    position = ("trace_broker", "trace_queue_id", "trace_queue_offset", "record_index")
    best = F.struct(~F.col("success"), "event_time", *position)
    send = F.struct(
        "topic", "keys", "tags", "message_type", "region", "client_group", "client_host", "store_host", "offset_message_id",
        "event_time", "cost_ms", "success", "trace_stored_at", _trace_upper_ms(is_pub).alias("trace_upper_ms"),
        "clock_lower_ms", "clock_upper_ms", client_of().alias("clock_client"),
    )  # fmt: skip
    # Equal records are one send that was traced or read twice; a retry differs in its time or offset id.
    entry = F.when(is_pub, F.struct("event_time", "offset_message_id", "success"))
    decision = F.struct(
        F.col("event_time").alias("decided_at"),
        F.col("transaction_state").alias("state"),
        "from_check",
        F.col("client_host").alias("host"),
        "transaction_id",
    )
    traced = (
        _by_message(events.where(F.col("type").isin(*SENT_TYPES)))
        .groupBy(*MESSAGE)
        .agg(
            F.min_by(F.when(is_pub, send), F.when(is_pub, best)).alias("send"),
            F.collect_set(entry).alias("all_sends"),
            F.bool_or(F.when(is_pub, F.col("success"))).alias("sent_ok"),
            F.sort_array(F.collect_set(F.when(is_decision, decision))).alias("decisions"),
            F.min(F.when((F.col("type") == "Recall") & F.col("success"), F.col("event_time"))).alias("recalled_at"),
            # Substitutes for messages without a Pub record.
            F.min("topic").alias("any_topic"),
            F.min("client_group").alias("any_group"),
        )
    )
    final = F.filter("decisions", lambda entry: entry["state"].isin("COMMIT_MESSAGE", "ROLLBACK_MESSAGE"))
    return traced.select(
        *MESSAGE,
        F.coalesce("send.topic", "any_topic").alias("topic"),
        F.col("send.keys").alias("sent_keys"),
        "send.tags",
        "send.message_type",
        F.col("send.region").alias("sent_region"),
        F.coalesce("send.client_group", "any_group").alias("producer_group"),
        F.col("send.client_host").alias("producer_host"),
        "send.store_host",
        "send.offset_message_id",
        F.col("send.event_time").alias("sent_at"),
        F.when(F.col("send.cost_ms") >= 0, F.col("send.cost_ms")).alias("send_cost_ms"),
        F.col("send.trace_stored_at").alias("traced_at"),
        F.col("send.trace_upper_ms").alias("sent_trace_upper_ms"),
        F.col("send.clock_lower_ms").alias("measured_lower_ms"),
        F.col("send.clock_upper_ms").alias("measured_upper_ms"),
        F.col("send.clock_client").alias("clock_client"),
        F.nullif(F.size("all_sends"), F.lit(0)).alias("sends"),
        "sent_ok",
        "recalled_at",
        F.when(F.size("decisions") > 0, F.col("decisions")).alias("transactions"),
        F.coalesce(F.get(F.reverse(final), F.lit(0))["state"], F.get(F.reverse("decisions"), F.lit(0))["state"]).alias(
            "transaction_state"
        ),
    ).withColumn("clock_host", host_of("producer_host"))


def _timed(rows: DataFrame, clocks: DataFrame, name: str) -> DataFrame:
    """Add the clock offset that the record carries (`measured_…`), otherwise that of `clock_client` (`clock_host`) at `traced_at`.

    Adds the bounds NAME_lower_ms and NAME_upper_ms, the estimate NAME_ms and NAME_error_ms, NAME_fault: no majority agrees, and
    NAME_measured: the record carries its offset.
    """
    key = ["bucket", "clock_host", "clock_client", "clock_minute"]
    clock_columns = clocks.select(
        "bucket",
        F.col("host").alias("clock_host"),
        F.coalesce("client", F.lit("")).alias("clock_client"),
        F.col("minute").alias("clock_minute"),
        "lower_ms",
        "upper_ms",
    )
    at_minute = rows.withColumns(
        {"clock_client": F.coalesce("clock_client", F.lit("")), "clock_minute": minute_of("traced_at")}
    )
    joined = at_minute.join(clock_columns, key, "left")
    is_measured = F.col("measured_lower_ms").isNotNull()
    lower_ms, upper_ms = F.coalesce("measured_lower_ms", "lower_ms"), F.coalesce("measured_upper_ms", "upper_ms")
    difference, error = estimate(lower_ms, upper_ms)
    return joined.withColumns(
        {
            f"{name}_lower_ms": lower_ms,
            f"{name}_upper_ms": upper_ms,
            f"{name}_ms": difference,
            f"{name}_error_ms": error,
            f"{name}_fault": lower_ms > upper_ms,
            f"{name}_measured": is_measured,
        }
    ).drop(*key[1:], "traced_at", "lower_ms", "upper_ms", "measured_lower_ms", "measured_upper_ms")


# --- consuming ---------------------------------------------------------------------------------------------------------


def _consumptions(events: DataFrame, messages: DataFrame, clocks: DataFrame) -> DataFrame:
    """Return one row per message id and consumer group; `attempts` is null for a group without a trace."""
    order = F.coalesce(_plus_ms("at", F.col("clock_ms")), F.col("at")).alias("order")
    call = F.struct(
        order, "request_id", "at", "started_at", "ended_at", "cost_ms", "result", "retry_times", "host", "region", "clock_ms",
        "clock_error_ms", "clock_fault", "clock_upper_ms", "is_outlier", "clock_measured",
    )  # fmt: skip
    # One aggregation of both is cheaper than a full outer join, whose result has lost its partitioning.
    calls = _attempts(events, clocks).withColumn("is_call", F.lit(True))
    attempts = (
        calls.unionByName(_by_group(messages), allowMissingColumns=True)
        .groupBy(*MESSAGE, "consumer_group")
        .agg(
            _first("keys").alias("consumed_keys"),
            F.max("retry_times").alias("retries"),
            F.count(F.when(F.col("result") == "success", F.lit(1))).alias("consumed_times"),
            F.sort_array(F.collect_list(F.when(F.col("is_call"), call))).alias("all"),
            F.min("dead_lettered_at").alias("dead_lettered_at"),
            F.min("first_pulled_at").alias("first_pulled_at"),
        )
        .withColumn("all", F.when(F.size("all") > 0, F.col("all")))
    )
    first, last = F.get("all", F.lit(0)), F.get("all", F.size("all") - 1)
    half = ATTEMPTS_MAX // 2
    shown = F.when(F.size("all") <= ATTEMPTS_MAX, F.col("all")).otherwise(
        F.concat(F.slice("all", 1, half), F.slice("all", -half, half))
    )
    return attempts.select(
        *MESSAGE,
        "consumer_group",
        "consumed_keys",
        "retries",
        F.when(F.col("all").isNotNull(), F.col("consumed_times")).alias("consumed_times"),
        F.size("all").alias("attempts"),
        "dead_lettered_at",
        "first_pulled_at",
        first["at"].alias("delivered_at"),
        first["clock_ms"].alias("delivered_clock_ms"),
        first["clock_error_ms"].alias("delivered_clock_error_ms"),
        first["clock_fault"].alias("delivered_fault"),
        first["clock_upper_ms"].alias("delivered_upper_ms"),
        first["is_outlier"].alias("delivered_outlier"),
        first["clock_measured"].alias("delivered_measured"),
        last["cost_ms"].alias("consume_cost_ms"),
        last["ended_at"].alias("consumed_at"),
        last["result"].alias("result"),
        last["host"].alias("consumer_host"),
        F.get(F.filter("all", lambda entry: entry["region"].isNotNull()), F.lit(0))["region"].alias("consumed_region"),
        F.transform(shown, _delivery).alias("deliveries"),
    )


def _attempts(events: DataFrame, clocks: DataFrame) -> DataFrame:
    """Return one row per listener call."""
    is_before, is_after = F.col("type") == "SubBefore", F.col("type") == "SubAfter"
    traced = (
        _by_message(events.where(F.col("type").isin(*CONSUMED_TYPES)))
        .groupBy(*MESSAGE, "request_id")
        .agg(
            _first("client_group").alias("consumer_group"),
            _first("keys").alias("keys"),
            _first("client_host").alias("host"),
            F.min(client_of()).alias("clock_client"),
            _first("region").alias("region"),
            F.min("trace_stored_at").alias("traced_at"),
            F.min(_trace_upper_ms(F.lit(False))).alias("trace_upper_ms"),
            F.max("retry_times").alias("retry_times"),
            F.min(F.when(is_before, F.col("event_time"))).alias("started_at"),
            F.max(F.when(is_after, F.col("event_time"))).alias("after_at"),
            F.max(F.when(is_after & (F.col("cost_ms") >= 0), F.col("cost_ms"))).alias("cost_ms"),
            F.max(F.when(is_after, _code())).alias("code"),
            # Bounds of both records of a call; one of them may have been written before the first measurement.
            F.min("clock_lower_ms").alias("measured_lower_ms"),
            F.max("clock_upper_ms").alias("measured_upper_ms"),
        )
    )
    # The cost of a message of a batch is its share. If a clock was set back, the end may precede the start.
    ended_at = F.greatest("after_at", _plus_ms("started_at", F.col("cost_ms")))
    started_at = F.coalesce("started_at", _plus_ms("after_at", -F.coalesce("cost_ms", F.lit(0))))
    attempts = traced.withColumns(
        {"ended_at": ended_at, "at": started_at, "result": _result(F.col("code")), "clock_host": host_of("host")}
    )
    timed = _timed(attempts, clocks, "clock")
    is_outlier = _is(~F.col("clock_fault") & (F.col("trace_upper_ms") < F.col("clock_lower_ms")))
    return _uncorrected(timed.withColumn("is_outlier", is_outlier), "is_outlier", "clock")


def _uncorrected(rows: DataFrame, is_outlier: str, clock: str) -> DataFrame:
    """Set the clock estimate to null in rows whose own record contradicts it."""
    names = (f"{clock}_ms", f"{clock}_error_ms")
    return rows.withColumns({name: F.when(~F.col(is_outlier), F.col(name)) for name in names})


def _trace_upper_ms(is_send: Column) -> Column:
    """Return the upper bound of the clock offset from one record: its trace was stored after it was written."""
    return F.unix_millis("trace_stored_at") - noted_ms(is_send) + CUT_MS


def _delivery(entry: Column) -> Column:
    """Return an attempt in the layout of `deliveries`."""

    def corrected(name: str) -> Column:
        return F.timestamp_millis(F.unix_millis(entry[name]) + entry["clock_ms"])

    names = ("request_id", "started_at", "ended_at", "cost_ms", "result", "retry_times", "host", "region", "clock_ms")
    return F.struct(
        *(entry[name].alias(name) for name in (*names, "clock_error_ms")),
        corrected("started_at").alias("started_corrected_at"),
        corrected("ended_at").alias("ended_corrected_at"),
    )


def _by_group(messages: DataFrame) -> DataFrame:
    """Return one row per message and group for which the broker stored it: dead letters, retries after a pop."""
    topic = F.col("topic")
    dead = topic.startswith(DLQ_PREFIX)
    popped = topic.startswith(RETRY_PREFIX) & F.col("properties").getItem(FIRST_POP_TIME).isNotNull()
    name = F.regexp_replace(topic, "^%(?:DLQ|RETRY)%", "")
    # Retry topics of a pop are `%RETRY%group_topic` or `%RETRY%group+topic`; RETRY_TOPIC shows where the group name ends.
    origin_topic = F.coalesce(F.col("properties").getItem("RETRY_TOPIC"), F.lit(""))
    is_joined = name.endswith(F.concat(F.lit("_"), origin_topic)) | name.endswith(F.concat(F.lit("+"), origin_topic))
    before_origin = F.substring(name, F.lit(1), F.char_length(name) - F.char_length(origin_topic) - F.lit(1))
    group = F.when(~dead & (origin_topic != "") & is_joined, before_origin).otherwise(name)
    popped_ms = F.col("properties").getItem(FIRST_POP_TIME).try_cast("bigint")
    stored_for_group = messages.where(dead | popped).select(
        *MESSAGE, group.alias("consumer_group"), dead.alias("dead"), "store_timestamp", popped_ms.alias("popped_ms")
    )
    return (
        _by_message(stored_for_group)
        .groupBy(*MESSAGE, "consumer_group")
        .agg(
            F.min(F.when(F.col("dead"), F.col("store_timestamp"))).alias("dead_lettered_at"),
            F.timestamp_millis(F.min("popped_ms")).alias("first_pulled_at"),
        )
    )


# --- both --------------------------------------------------------------------------------------------------------------


def _storing(joined: DataFrame) -> DataFrame:
    """Add stored_at and dependent columns: the broker's time if it is known, otherwise the producer's bound."""
    one_send = F.coalesce(F.col("sends"), F.lit(1)) == 1
    exact = F.coalesce(stored_exactly(F.col("offset_message_id")), F.when(one_send, F.col("first_stored_at")))
    rows = (
        joined.withColumn("exact_at", exact)
        .withColumns(_send_bounds())
        .withColumn("producer_outlier", _is_send_outlier())
    )
    # What a send proves about its own clock holds without the drift of a minute.
    of_send = estimate(
        F.greatest("producer_clock_lower_ms", "send_lower_ms"), F.least("producer_clock_upper_ms", "send_upper_ms")
    )
    rows = rows.withColumns(dict(zip(("producer_clock_ms", "producer_clock_error_ms"), of_send, strict=True)))
    rows = _uncorrected(rows, "producer_outlier", "producer_clock")
    clock_ms = F.col("producer_clock_ms")
    answered = _plus_ms("sent_at", F.col("send_cost_ms") + F.coalesce(clock_ms, F.lit(0)))
    sent = _plus_ms("sent_at", clock_ms)
    held_ms = F.unix_millis("available_at") - F.unix_millis("stored_at")
    # Not every client traces its recalls, and the broker's time becomes one of the producer's clock.
    recalled = _plus_ms("recall_stored_at", -F.coalesce(clock_ms, F.lit(0)))
    return rows.withColumn("stored_at", F.coalesce("exact_at", F.when(F.col("sent_ok"), answered))).withColumns(
        {
            "stored_exact": F.when(F.col("stored_at").isNotNull(), F.col("exact_at").isNotNull()),
            "sent_corrected_at": F.when(sent.isNotNull(), F.least(sent, F.col("exact_at"))),
            "producer_clock_measured": F.when(sent.isNotNull(), F.col("producer_clock_measured")),
            "delay_ms": F.when(F.col("exact_at").isNotNull() & held_ms.isNotNull(), F.greatest(F.lit(0), held_ms)),
            "recalled_at": F.coalesce("recalled_at", recalled),
            "dead_lettered": F.when(
                F.col("dead_lettered_at").isNotNull() | F.col("first_stored_at").isNotNull(),
                F.col("dead_lettered_at").isNotNull(),
            ),
            "keys": F.coalesce("sent_keys", "consumed_keys"),
            "region": F.coalesce("sent_region", "consumed_region"),
            "topic": F.coalesce("topic", "own_topic"),
        }
    )


def _send_bounds() -> dict[str, Column]:
    """Return the bounds of the clock offset that a send alone proves: by its store time, and by that of its trace."""
    sent_ms, exact_ms = F.unix_millis("sent_at"), F.unix_millis("exact_at")
    return {
        "send_lower_ms": exact_ms - (sent_ms + F.col("send_cost_ms")) - CUT_MS,
        "send_upper_ms": F.least(exact_ms - sent_ms + CUT_MS, F.col("sent_trace_upper_ms")),
    }


def _is_send_outlier() -> Column:
    """Return whether a send's record contradicts the bounds of its clock."""
    outside = _is(F.col("send_lower_ms") > F.col("producer_clock_upper_ms")) | _is(
        F.col("send_upper_ms") < F.col("producer_clock_lower_ms")
    )
    return outside & ~_is(F.col("producer_clock_fault"))


def _durations(rows: DataFrame) -> DataFrame:
    """Add durations between hosts: null if their clocks contradict each other, never negative."""
    is_held = F.coalesce(F.col("message_type").isin(*HELD_TYPES), F.lit(False))
    since = F.when(~is_held | F.col("available_at").isNotNull(), F.coalesce("available_at", "stored_at"))
    by_broker = F.coalesce(F.col("available_at").isNotNull() | F.col("stored_exact"), F.lit(False))
    # Delivered before it was stored, for every offset within the bounds.
    latest_ms = F.unix_millis("delivered_at") + F.col("delivered_upper_ms") + CUT_MS
    too_early = by_broker & ~F.coalesce("delivered_fault", F.lit(False)) & (latest_ms < F.unix_millis(since))
    rows = rows.withColumns(
        {
            "since": since,
            "by_broker": by_broker,
            "delivered_outlier": F.coalesce("delivered_outlier", F.lit(False)) | F.coalesce(too_early, F.lit(False)),
        }
    )
    rows = _uncorrected(rows, "delivered_outlier", "delivered_clock")
    delivered = _plus_ms("delivered_at", F.col("delivered_clock_ms"))
    told_by_clocks = delivered.isNotNull() & (F.col("by_broker") | F.col("producer_clock_ms").isNotNull())
    waited_ms = F.unix_millis(F.coalesce("delivered_corrected_at", "delivered_at")) - F.unix_millis("since")
    # A stored_at that is not the broker's own may be late by the duration of the send.
    by_producer_ms = F.col("producer_clock_error_ms") + F.col("send_cost_ms")
    since_error_ms = F.when(F.col("by_broker"), F.lit(0)).otherwise(by_producer_ms)
    missing = F.col("queueing_missing")
    return (
        rows.withColumn("is_corrected", F.coalesce(told_by_clocks, F.lit(False)))
        .withColumn("delivered_corrected_at", delivered)
        .withColumn("queueing_missing", _missing())
        .withColumn("clock_skew", _is_skewed())
        .withColumn("queueing_ms", F.when(missing.isNull(), F.greatest(F.lit(0), waited_ms)))
        .withColumn("queueing_ms", F.when(waited_ms.isNotNull(), F.col("queueing_ms")))
        .withColumn(
            "queueing_error_ms",
            F.when(
                F.col("is_corrected") & F.col("queueing_ms").isNotNull(),
                F.col("delivered_clock_error_ms") + since_error_ms,
            ),
        )
        .withColumn("delivered_error_ms", F.col("delivered_clock_error_ms"))
        .withColumn("delivered_clock_measured", F.when(delivered.isNotNull(), F.col("delivered_measured")))
        .withColumn(
            "deliveries", F.when(F.col("delivered_outlier"), _first_uncorrected()).otherwise(F.col("deliveries"))
        )
    )


def _first_uncorrected() -> Column:
    """Return `deliveries`, the first of them without corrected times if its record contradicts the clock."""

    def without(entry: Column, number: Column) -> Column:
        bare = entry
        for name, kind in (
            ("clock_ms", "bigint"),
            ("clock_error_ms", "bigint"),
            *((column, "timestamp") for column in CORRECTED),
        ):
            bare = bare.withField(name, F.lit(None).cast(kind))
        return F.when(number == 0, bare).otherwise(entry)

    return F.transform("deliveries", without)


def _is_skewed() -> Column:
    """Return whether clocks are the reason for a missing queueing time; null without a delivery or a comparison of clocks."""
    return (
        F.when(F.col("delivered_at").isNull(), F.lit(None).cast("boolean"))
        .when(_is(F.col("queueing_missing").isin(*SKEWED)), F.lit(True))
        .when(F.col("is_corrected"), F.lit(False))
        .otherwise(F.col("delivered_at") < F.col("sent_at"))
    )


def _missing() -> Column:
    """Return why the queueing time of a delivered message is missing; null if it is not."""
    of_producer = ~F.col("by_broker")
    is_outlier = F.col("delivered_outlier") | (of_producer & F.col("producer_outlier"))
    contradicts = _is(F.col("delivered_fault")) | (of_producer & _is(F.col("producer_clock_fault")))
    corrected = F.col("is_corrected")
    return (
        F.when(F.col("delivered_at").isNull(), F.lit(None).cast("string"))
        .when(is_outlier, F.lit(OUTLIER))
        .when(contradicts, F.lit(CONTRADICTION))
        .when(~corrected & _is(F.col("delivered_at") < F.col("sent_at")), F.lit(BEFORE_SENT))
        .when(F.col("since").isNull(), F.lit(NO_STORE_TIME))
        # Without offsets, a difference of times of two hosts is only meaningful if both are clients' times.
        .when(~corrected & F.col("by_broker"), F.lit(NO_CLOCK))
    )


def _is(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))


def _first(name: str) -> Column:
    """Return a value that is not null, the same one for every order of rows."""
    return F.min(name)


def _code() -> Column:
    """Return the context code, or its equivalent for clients that only send the success flag."""
    return F.coalesce("context_code", F.when(F.col("success"), F.lit(0)).otherwise(F.lit(4)))


def _result(code: Column) -> Column:
    names = F.create_map(*(F.lit(part) for pair in RESULTS.items() for part in pair))
    return F.coalesce(F.try_element_at(names, code), F.lit("unknown"))


def _plus_ms(time: str, cost_ms: Column) -> Column:
    return F.timestamp_millis(F.unix_millis(time) + cost_ms)
