"""trace_events and messages → health: what is wrong with messages, counted by minute, with examples.

A fold: rows in any order, late or twice, give the same. Either input may be missing; then what follows from it is.

    messages  ─ records, each once ─┬→ known: one row per message ─────────┐
    trace_events ───────────────────┴→ attempts: one per consumption ──────┴→ findings and sums → counts, examples

Rules
  consumed twice   one group reported success for two different calls of its listener
  stored twice     two records in one topic, or two answers to sends with different ids; half and delayed sends left out
  out of order     the group's first delivery of a message (a SubBefore with no earlier delivery) began before that of another
                   one with the same key, that the broker had stored earlier in the same queue. Later deliveries do not count,
                   so a retry is no disorder. The key is __SHARDINGKEY, else the business keys. A message is compared with
                   those of its own slot and of the one before it.
  clock ahead      born later than stored: the least by which the producer's clock is ahead of the broker's
  unconsumed       stored, or sent with success, or committed; and no call of a listener of the group with it is known
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ariane.model.message import REAL_TOPIC, RETRY_TOPIC
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from ariane.model.trace import MessageType
from ariane.tables import HEALTH
from ariane.tables import health as kinds
from ariane.tables.slots import MINUTES

SHARDING_KEY = "__SHARDINGKEY"
REPLY_TOPIC = "_REPLY_TOPIC"  # end of its name: answers that brokers push, nobody consumes them
SLOT_FORMAT = "yyyy-MM-dd'T'HHmm"
TAGS_MAX = 64  # of a topic in a slot; with more, tags are not told apart
IDS_SHOWN = 5
RESULTS = {0: "success", 1: "timeout", 2: "exception", 3: "null", 4: "failed"}

ID = ("slot", "message_id")


def health(events: DataFrame, messages: DataFrame) -> DataFrame:
    """Rows with the columns of HEALTH and `slot`, of trace_events and messages with `slot`."""
    records = _records(messages)
    attempts = _attempts(events)
    known = _known(records, events)
    consumptions = _consumptions(attempts)
    found = [
        _consumed_twice(consumptions, known),
        _stored_twice(records, events, known),
        _out_of_order(records, attempts, known),
        _clock_ahead(records, known),
        _unconsumed(consumptions, known),
        _untraced(known),
        _dead_letters(records, consumptions, known),
    ]
    sums = [*_stored(consumptions, known), _sent(known), _retried(records), _traced(consumptions, known)]
    return _with_examples(_all(found)).unionByName(_counted(_all(sums)))


# --- what is known ---


def _records(messages: DataFrame) -> DataFrame:
    """Every stored record once; `place`: user, retry, dead or system."""
    topic = F.col("topic")
    is_system = topic.isin(*SYSTEM_TOPICS) | topic.startswith(SYSTEM_TOPIC_PREFIX) | topic.endswith(REPLY_TOPIC)
    place = (
        F.when(topic.startswith(RETRY_PREFIX), "retry")
        .when(topic.startswith(DLQ_PREFIX), "dead")
        .when(is_system, "system")
        .otherwise("user")
    )
    origin = F.when(place == "user", topic).otherwise(
        F.coalesce(F.col("properties")[RETRY_TOPIC], F.col("properties")[REAL_TOPIC])
    )
    once = messages.dropDuplicates([*ID, "topic", "broker", "commit_log_offset"])
    # A message that fails is delayed on its way to a retry topic: that is its real topic then, and not the application's.
    origin = F.when(~origin.startswith(RETRY_PREFIX), origin)
    return once.withColumns({"place": place, "origin": origin, "host": _without_port("born_host")})


def _known(records: DataFrame, events: DataFrame) -> DataFrame:
    """One row per message: `topic`, `tags`, `at` (see the table's `minute`), `host` of its producer where a record tells it,
    `is_recorded`, `is_published` (its send left a trace), `is_sent` (it can be consumed)."""
    is_user = F.col("place") == "user"
    decided = (F.col("type") == "EndTransaction") & (F.col("transaction_state") == "COMMIT_MESSAGE")
    notes = records.select(
        *ID,
        F.when(is_user, F.col("topic")).alias("topic"),
        F.col("origin").alias("told_topic"),
        F.when(is_user, F.col("tags")).alias("tags"),
        F.when(is_user, F.col("store_timestamp")).alias("stored_at"),
        F.col("store_timestamp").alias("told_at"),
        F.when(is_user, F.col("host")).alias("host"),
        is_user.alias("is_recorded"),
        F.lit(False).alias("is_published"),
        is_user.alias("is_sent"),
    ).unionByName(
        events.select(
            *ID,
            F.lit(None).cast("string").alias("topic"),
            F.col("topic").alias("told_topic"),
            F.col("tags"),
            F.lit(None).cast("timestamp").alias("stored_at"),
            F.col("trace_stored_at").alias("told_at"),
            F.lit(None).cast("string").alias("host"),
            F.lit(False).alias("is_recorded"),
            (F.col("type") == "Pub").alias("is_published"),
            F.coalesce(_is_plain_send() | decided, F.lit(False)).alias("is_sent"),
        )
    )
    first = F.struct("stored_at", "topic")
    return notes.groupBy(*ID).agg(
        F.coalesce(F.min_by("topic", F.when(F.col("is_recorded"), first)), F.min("told_topic")).alias("topic"),
        F.min("tags").alias("tags"),
        F.coalesce(F.min("stored_at"), F.min("told_at")).alias("at"),
        F.min_by("host", F.when(F.col("is_recorded"), first)).alias("host"),
        F.bool_or("is_recorded").alias("is_recorded"),
        F.bool_or("is_published").alias("is_published"),
        F.bool_or("is_sent").alias("is_sent"),
    )


def _attempts(events: DataFrame) -> DataFrame:
    """One row per call of a listener with a message."""
    is_begin, is_end = F.col("type") == "SubBefore", F.col("type") == "SubAfter"
    code = F.coalesce("context_code", F.when(F.col("success"), F.lit(0)).otherwise(F.lit(4)))
    host = F.struct(is_end.alias("is_end"), _without_port("client_host").alias("host"))
    return (
        events.where("type IN ('SubBefore', 'SubAfter')")
        .groupBy(*ID, "request_id")
        .agg(
            F.min("client_group").alias("consumer_group"),
            F.min(host)["host"].alias("host"),
            F.min(F.when(is_begin & (F.col("retry_times") == 0), F.col("event_time"))).alias("first_began_at"),
            F.coalesce(F.bool_or(F.when(is_end, F.col("success"))), F.lit(False)).alias("is_success"),
            F.max(F.when(is_end, code)).alias("code"),
            F.coalesce(F.max(F.when(is_end, F.col("event_time"))), F.max("event_time")).alias("last_at"),
            F.max("retry_times").alias("retry_times"),
        )
    )


def _consumptions(attempts: DataFrame) -> DataFrame:
    """One row per message and group that is known: `successes`, `hosts`, `last_at`, `result` of the last attempt."""
    names = F.create_map(*(F.lit(part) for pair in RESULTS.items() for part in pair))
    order = F.struct("retry_times", "last_at", "request_id")
    result = F.coalesce(F.try_element_at(names, F.max_by("code", order)), F.lit("unknown"))
    return (
        attempts.where("consumer_group IS NOT NULL")
        .groupBy(*ID, "consumer_group")
        .agg(
            F.count_if("is_success").alias("successes"),
            F.count_distinct("host").alias("hosts"),
            F.max_by("host", order).alias("consumer_host"),
            F.max("last_at").alias("last_at"),
            result.alias("result"),
        )
    )


# --- findings: one row per message ---


def _consumed_twice(consumptions: DataFrame, known: DataFrame) -> DataFrame:
    twice = consumptions.where("successes > 1").join(known, [*ID], "left")
    detail = F.format_string("%d successes at %d hosts", "successes", "hosts")
    return _row(
        twice, kinds.CONSUMED_TWICE, group=F.col("consumer_group"), host=F.col("consumer_host"), worst=F.col("successes"),
        detail=detail,
    )  # fmt: skip


def _stored_twice(records: DataFrame, events: DataFrame, known: DataFrame) -> DataFrame:
    copies = (
        records.where("place = 'user'")
        .select(*ID, "topic", "offset_message_id")
        .unionByName(events.where(_is_plain_send()).select(*ID, "topic", "offset_message_id"))
        .where("offset_message_id IS NOT NULL")
        .groupBy(*ID, "topic")
        .agg(F.sort_array(F.collect_set("offset_message_id")).alias("copies"))
        .where("size(copies) > 1")
    )
    twice = copies.join(known.drop("topic"), [*ID], "left")
    shown = F.array_join(F.slice("copies", 1, IDS_SHOWN), " ")
    return _row(twice, kinds.STORED_TWICE, host=F.col("host"), worst=F.size("copies"), detail=shown)


def _out_of_order(records: DataFrame, attempts: DataFrame, known: DataFrame) -> DataFrame:
    queue = ("topic", "broker", "queue_id", "order_key")
    placed = (
        records.where("place = 'user'")
        .withColumn("order_key", F.coalesce(F.col("properties")[SHARDING_KEY], F.col("keys")))
        .where("order_key != ''")
        .groupBy(*ID, *queue)
        .agg(F.min("queue_offset").alias("queue_offset"))
    )
    begun = (
        attempts.where("first_began_at IS NOT NULL AND consumer_group IS NOT NULL")
        .groupBy(*ID, "consumer_group")
        .agg(
            F.min("first_began_at").alias("began_at"),
            F.min_by("host", F.struct("first_began_at", "host")).alias("consumer_host"),
        )
    )
    # What is compared with a slot's messages must not depend on which other slots are folded with it.
    following = F.date_format(
        F.try_to_timestamp("slot", F.lit(SLOT_FORMAT)) + F.expr(f"INTERVAL {MINUTES} MINUTES"), SLOT_FORMAT
    )
    seen_by = F.explode(F.array_compact(F.array(F.col("slot"), following)))
    seen = placed.join(begun, [*ID]).withColumn("seen_by", seen_by)
    earlier = (
        Window.partitionBy("seen_by", "consumer_group", *queue)
        .orderBy("queue_offset", "message_id")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    latest = F.max(F.struct("began_at", "consumer_host", "message_id")).over(earlier)
    late = seen.withColumn("other", latest).where("slot = seen_by AND began_at < other.began_at")
    ahead_ms = F.unix_millis("other.began_at") - F.unix_millis("began_at")
    cause = F.when(F.col("consumer_host") == F.col("other.consumer_host"), "one client").otherwise("two clients")
    detail = F.format_string("key %s: began %d ms before %s", "order_key", ahead_ms, "other.message_id")
    return _row(
        late.join(known.drop("topic"), [*ID], "left"), kinds.OUT_OF_ORDER, group=F.col("consumer_group"),
        host=F.col("consumer_host"), cause=cause, worst=ahead_ms, detail=detail,
    )  # fmt: skip


def _clock_ahead(records: DataFrame, known: DataFrame) -> DataFrame:
    ahead_ms = F.unix_millis("born_timestamp") - F.unix_millis("store_timestamp")
    ahead = (
        records.withColumn("ahead_ms", ahead_ms)
        .where("ahead_ms > 0")
        .groupBy(*ID, F.col("host").alias("producer_host"))
        .agg(F.max("ahead_ms").alias("ahead_ms"))
        .join(known, [*ID], "left")
    )
    detail = F.format_string("born %d ms after it was stored", "ahead_ms")
    return _row(ahead, kinds.CLOCK_AHEAD, host=F.col("producer_host"), worst=F.col("ahead_ms"), detail=detail)


def _unconsumed(consumptions: DataFrame, known: DataFrame) -> DataFrame:
    """For each group that consumed of the topic and tag within the slot, and of nobody at all."""
    sent = _tagged(known).where("is_sent")
    done = consumptions.select(*ID, "consumer_group")
    takes = sent.join(done, [*ID]).select(
        F.col("slot").alias("its_slot"),
        F.col("topic").alias("its_topic"),
        F.col("tag").alias("its_tag"),
        "consumer_group",
    )
    same = F.expr("slot = its_slot AND topic = its_topic AND tag <=> its_tag")
    expected = sent.join(takes.distinct(), same).drop("its_slot", "its_topic", "its_tag")
    by_group = expected.join(done, [*ID, "consumer_group"], "left_anti")
    by_nobody = sent.join(done.select(*ID).distinct(), [*ID], "left_anti")
    by_nobody = by_nobody.withColumn("consumer_group", F.lit(None).cast("string"))
    return _row(
        by_group.unionByName(by_nobody), kinds.UNCONSUMED, group=F.col("consumer_group"), cause=F.col("tag"),
        detail=F.lit(""),
    )  # fmt: skip


def _untraced(known: DataFrame) -> DataFrame:
    return _row(known.where("is_recorded AND NOT is_published"), kinds.UNTRACED, host=F.col("host"), detail=F.lit(""))


def _dead_letters(records: DataFrame, consumptions: DataFrame, known: DataFrame) -> DataFrame:
    dead = (
        records.where("place = 'dead'")
        .groupBy(*ID, F.substring("topic", len(DLQ_PREFIX) + 1, 255).alias("consumer_group"))
        .agg(F.max("reconsume_times").alias("reconsume_times"))
        .join(consumptions, [*ID, "consumer_group"], "left")
        .join(known, [*ID], "left")
    )
    detail = F.format_string("given up after %d deliveries", "reconsume_times")
    return _row(
        dead, kinds.DEAD_LETTER, group=F.col("consumer_group"), host=F.col("consumer_host"),
        cause=F.coalesce("result", F.lit("no trace")), worst=F.col("reconsume_times"), detail=detail,
    )  # fmt: skip


# --- sums: one row per message, or record ---


def _stored(consumptions: DataFrame, known: DataFrame) -> Iterable[DataFrame]:
    sent = _tagged(known).where("is_sent")
    yield _row(sent, kinds.STORED, cause=F.col("tag"))
    done = sent.join(consumptions, [*ID])
    yield _row(done, kinds.CONSUMED, cause=F.col("tag"), group=F.col("consumer_group"))


def _sent(known: DataFrame) -> DataFrame:
    return _row(known.where("is_recorded"), kinds.SENT, host=F.col("host"))


def _retried(records: DataFrame) -> DataFrame:
    group = F.regexp_replace("topic", f"^({RETRY_PREFIX}|{DLQ_PREFIX})", "")
    given_up = records.where("place IN ('retry', 'dead')").withColumn("at", F.col("store_timestamp"))
    return _row(given_up.withColumn("topic", F.col("origin")), kinds.RETRIED, group=group)


def _traced(consumptions: DataFrame, known: DataFrame) -> DataFrame:
    return _row(consumptions.join(known, [*ID], "left"), kinds.TRACED, group=F.col("consumer_group"))


# --- counting ---


def _row(
    frame: DataFrame,
    kind: str,
    *,
    group: Column | None = None,
    host: Column | None = None,
    cause: Column | None = None,
    worst: Column | None = None,
    detail: Column | None = None,
) -> DataFrame:
    """A message of a kind; `frame` has slot, message_id, topic and at."""
    nothing = F.lit(None)
    return frame.select(
        "slot",
        F.lit(kind).alias("kind"),
        F.date_trunc("minute", "at").alias("minute"),
        "topic",
        (nothing if group is None else group).cast("string").alias("consumer_group"),
        (nothing if host is None else host).cast("string").alias("host"),
        (nothing if cause is None else cause).cast("string").alias("cause"),
        (nothing if worst is None else worst).cast("bigint").alias("worst"),
        "message_id",
        "at",
        (nothing if detail is None else detail).cast("string").alias("detail"),
    )


GROUPED = ("slot", "kind", "minute", "topic", "consumer_group", "host", "cause")


def _counted(rows: DataFrame) -> DataFrame:
    counts = rows.groupBy(*GROUPED).agg(F.count("*").alias("count"), F.max("worst").alias("worst"))
    kind = next(column.type for column in HEALTH.columns if column.name == "examples")
    return counts.withColumn("examples", F.lit(None).cast(kind)).select(*HEALTH.names, "slot")


def _with_examples(rows: DataFrame) -> DataFrame:
    """Counts, and the worst few. What a group has is sorted, on disk when it is much; only the few become an array."""
    group = Window.partitionBy(*GROUPED)
    order = group.orderBy(F.desc_nulls_last("worst"), "at", "message_id")
    ranked = rows.select("*", F.row_number().over(order).alias("rank"), F.count("*").over(group).alias("count"))
    example = F.struct("worst", "message_id", "at", "detail")
    few = ranked.where(F.col("rank") <= kinds.EXAMPLES_MAX).groupBy(*GROUPED)
    return few.agg(
        F.max("count").alias("count"),
        F.max("worst").alias("worst"),
        F.transform(F.sort_array(F.collect_list(F.struct("rank", example.alias("one")))), lambda x: x["one"]).alias(
            "examples"
        ),
    ).select(*HEALTH.names, "slot")


def _all(frames: Iterable[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


def _tagged(known: DataFrame) -> DataFrame:
    """With `tag`: what a group subscribes to. Null where there is none, or where a topic has too many to be told apart."""
    many = (
        known.where("topic IS NOT NULL").groupBy("slot", "topic").agg(F.count_distinct("tags").alias("kinds_of_tags"))
    )
    counted = known.join(many, ["slot", "topic"], "left")
    return counted.withColumn("tag", F.when(F.col("kinds_of_tags") <= TAGS_MAX, F.col("tags")))


def _is_plain_send() -> Column:
    """A send that succeeded and can be consumed at once: no half message, no delayed one."""
    later = F.col("message_type").isin(int(MessageType.HALF), int(MessageType.DELAY))
    return (F.col("type") == "Pub") & F.col("success") & ~F.coalesce(later, F.lit(False))


def _without_port(name: str) -> Column:
    return F.regexp_replace(name, ":[0-9]+$", "")
