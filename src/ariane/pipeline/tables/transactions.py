"""messages, position_marks, trace_events → transactions: half messages, their checks and their outcome.

The result does not depend on the order, lateness or duplication of the input rows.

    half message and its copies   RMQ_SYS_TRANS_HALF_TOPIC        a copy counts a check (TRANSACTION_CHECK_TIMES)
    op message                    a mark on one of them           ended: committed, rolled back, or discarded
    commit                        the target topic, sysFlag 8
    discarded                     TRANS_CHECK_MAX_TIME_TOPIC      checked too often; an Ariane broker also marks it as ended
    EndTransaction                a trace of the producer         its decision, and whether it answered a check

A rollback is an end without a commit, visible only by its op message. Java brokers do not let op messages be pulled: there the
producer's trace is used, provided that no later copy exists. A discarded transaction can be resumed; then only its later copies
count as open or ended.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ariane.model.message import (
    CHECK_TIMES,
    PGROUP,
    PREPARED_QUEUE_OFFSET,
    REAL_TOPIC,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
)
from ariane.model.topic import CHECK_MAX_TIME_TOPIC, DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX
from ariane.tables import TRANSACTIONS
from ariane.tables.declarations.transactions import COMMIT, DISCARDED, OPEN, ROLLBACK, UNKNOWN

COMMITTED, ROLLED_BACK = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE"  # states in traces
ID = ("bucket", "message_id", "broker")


def transactions(messages: DataFrame, marks: DataFrame, events: DataFrame) -> DataFrame:
    """Return rows with the columns of TRANSACTIONS and `bucket`; `events` (trace_events) may be empty."""
    joined = (
        _records(messages).join(_ends(marks), [*ID], "left").join(_answers(events), ["bucket", "message_id"], "left")
    )
    # Ends of copies that were stored before the discard belong to the discard.
    relevant_ends = F.filter(
        "ends", lambda end: F.col("discarded_at").isNull() | (end.record_stored_at > F.col("discarded_at"))
    )
    ended_at = F.array_min(F.transform(relevant_ends, lambda end: end.marked_at))
    # A later copy means that the broker did not receive the decision.
    is_reported = (F.col("reported_state") == ROLLED_BACK) & (F.col("reported_at") >= F.col("last_copy_at"))
    is_discarded = F.col("discarded_at").isNotNull() & ~F.coalesce(
        F.col("last_copy_at") > F.col("discarded_at"), F.lit(False)
    )
    decision = (
        F.when(F.col("committed_at").isNotNull(), COMMIT)
        .when(F.col("ended_at").isNotNull() & F.coalesce(F.col("reported_state") == COMMITTED, F.lit(False)), UNKNOWN)
        .when(F.col("ended_at").isNotNull(), ROLLBACK)
        .when(is_discarded, DISCARDED)
        .when(F.coalesce(is_reported, F.lit(False)), ROLLBACK)
        .otherwise(OPEN)
    )
    is_decided = F.col("decision").isin(COMMIT, ROLLBACK, UNKNOWN)
    decided_ms = F.unix_millis("decided_at") - F.unix_millis("half_stored_at")
    return (
        joined.withColumn("ended_at", ended_at)
        .withColumn("decision", decision)
        .withColumn(
            "decided_at",
            F.when(F.col("decision") == COMMIT, F.col("committed_at"))
            .when(is_decided, F.col("ended_at"))
            .when(F.col("decision") == DISCARDED, F.col("discarded_at")),
        )
        .withColumn("decision_ms", F.when(decided_ms >= 0, decided_ms))
        .withColumn(
            "from_check",
            F.when(F.col("decision").isin(COMMIT, UNKNOWN), F.col("commit_from_check")).when(
                F.col("decision") == ROLLBACK, F.col("rollback_from_check")
            ),
        )
        .select(*(F.col(name).cast(kind).alias(name) for name, kind, *_ in TRANSACTIONS.columns), "bucket")
    )


def _records(messages: DataFrame) -> DataFrame:
    """Return one row per message and broker with the content of its records."""
    properties, topic, stored = F.col("properties"), F.col("topic"), F.col("store_timestamp")
    is_half, is_discarded = topic == HALF_TOPIC, topic == CHECK_MAX_TIME_TOPIC
    # Retries of a committed message have the same flag.
    is_commit = (
        (F.col("sys_flag").bitwiseAND(TRANSACTION_MASK) == TRANSACTION_COMMIT)
        & (properties[REAL_TOPIC] == topic)
        & ~topic.startswith(RETRY_PREFIX)
        & ~topic.startswith(DLQ_PREFIX)
    )
    role = F.when(is_half, "half").when(is_discarded, "discarded").when(is_commit, "commit")
    once = (
        messages.withColumn("role", role)
        .where("role IS NOT NULL")
        .dropDuplicates([*ID, "topic", "commit_log_offset"])
        .withColumn("count", F.coalesce(properties[CHECK_TIMES].try_cast("bigint"), F.lit(0)))
    )

    def of(kind: str, value: Column) -> Column:
        return F.when(F.col("role") == kind, value)

    is_first = (F.col("count") == 0) & properties[PREPARED_QUEUE_OFFSET].isNull()
    newest = F.struct(stored, F.col("commit_log_offset"))
    is_known = F.col("last_copy_at").isNotNull() | F.col("discarded_at").isNotNull()
    counted = F.collect_list(of("half", F.when(F.col("count") > 0, stored)))
    return (
        once.groupBy(*ID)
        .agg(
            F.max(properties[REAL_TOPIC]).alias("topic"),
            F.max(properties[PGROUP]).alias("producer_group"),
            F.max("keys").alias("keys"),
            F.min(of("half", F.when(F.col("count") == 0, stored))).alias("half_stored_at"),
            F.count_if(of("half", is_first)).alias("half_count"),
            F.max(of("half", stored)).alias("last_copy_at"),
            F.max(F.when(F.col("role") != "commit", F.col("count"))).alias("count"),
            F.array_sort(counted).alias("checked_at"),
            F.max_by(of("half", F.col("offset_message_id")), of("half", newest)).alias("offset_message_id"),
            F.max(of("discarded", stored)).alias("discarded_at"),
            F.min(of("commit", stored)).alias("committed_at"),
            F.count_if(F.col("role") == "commit").alias("commits"),
        )
        # The number of checks is unknown if the half message of a commit is in no table (any more).
        .withColumn("checks", F.when(is_known, F.greatest("count", F.size("checked_at").cast("bigint"))))
        .withColumn("checked_at", F.when(is_known, F.col("checked_at")))
        .withColumn("half_count", F.nullif("half_count", F.lit(0)))
    )


def _ends(marks: DataFrame) -> DataFrame:
    """Return all marks on the copies of a half message."""
    end = F.struct("record_stored_at", "marked_at")
    return marks.where(F.col("topic") == HALF_TOPIC).groupBy(*ID).agg(F.collect_set(end).alias("ends"))


def _answers(events: DataFrame) -> DataFrame:
    """Return the producer's last state of a message, and whether its first decision of each kind answered a check."""
    order = F.struct("event_time", "trace_broker", "trace_queue_id", "trace_queue_offset", "record_index")

    def first(state: str) -> Column:
        is_so = F.col("transaction_state") == state
        return F.min_by(F.when(is_so, F.col("from_check")), F.when(is_so, order))

    return (
        events.where("type = 'EndTransaction'")
        .groupBy("bucket", "message_id")
        .agg(
            F.max_by("transaction_state", order).alias("reported_state"),
            F.max_by("trace_stored_at", order).alias("reported_at"),
            first(COMMITTED).alias("commit_from_check"),
            first(ROLLED_BACK).alias("rollback_from_check"),
        )
    )
