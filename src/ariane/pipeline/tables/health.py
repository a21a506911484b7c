"""trace_events, messages → health: anomalies of messages, counted by minute, with examples.

The result does not depend on the order, lateness or duplication of the input rows. If an input is missing, its findings are.

    messages      records ──────────────────────────────────┐
    trace_events  Pub, EndTransaction: sends ───────────────┼→ one row per message, with three lists ─→ its findings ─┐
                  SubBefore, SubAfter: calls → consumptions ┘      └→ first deliveries by ordering key → disorder ────┴→ counts

Rules
  consumed twice   a group reported success for two different calls of its listener
  stored twice     two records in one topic, or two responses to sends with different ids; except half and delayed messages
  out of order     the group's first delivery of a message (a SubBefore with no earlier delivery) started before that of another
                   message with the same key which the broker had stored earlier in the same queue. Later deliveries do not
                   count, so retries are not disorder. The key is __SHARDINGKEY, otherwise the business keys. A message is compared
                   with those of its own bucket and of the preceding one.
  clock ahead      born later than stored: a lower bound of how much the producer's clock is ahead of the broker's
  stored           a record, a successful send that is consumable immediately, a commit, or a consumption
"""

from __future__ import annotations

from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ariane.model.message import REAL_TOPIC, RETRY_TOPIC
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from ariane.model.trace_event import MessageType
from ariane.pipeline.publishing import combining
from ariane.tables import HEALTH
from ariane.tables.declarations import health as kinds
from ariane.tables.time_buckets import BUCKET_MINUTES

SHARDING_KEY = "__SHARDINGKEY"
REPLY_TOPIC = "_REPLY_TOPIC"  # suffix of topics with replies that brokers push; they have no consumers
BUCKET_FORMAT = "yyyy-MM-dd'T'HHmm"
IDS_SHOWN = 5
RESULTS = {0: "success", 1: "timeout", 2: "exception", 3: "null", 4: "failed"}

ID = ("bucket", "message_id")
GROUPED = ("bucket", "kind", "minute", "topic", "consumer_group", "host", "cause")
# How the rows of a bucket change with those of few messages.
COMBINATION = combining.Combination(
    GROUPED[1:],
    partial(combining.change_examples, limit=kinds.MAX_EXAMPLES),
    # Not disorder: a message is compared with those of all minutes.
    (
        kinds.CONSUMED_TWICE,
        kinds.STORED_TWICE,
        kinds.CLOCK_AHEAD,
        kinds.DEAD_LETTER,
        kinds.STORED,
        kinds.SENT,
        kinds.RETRIED,
    ),
)


def order_keys(messages: pa.Table) -> pa.ChunkedArray:
    """Return the ordering key of each record, for rows with `properties` and `keys`."""
    return pc.coalesce(pc.map_lookup(messages["properties"], SHARDING_KEY, "first"), messages["keys"])


def health(events: DataFrame, messages: DataFrame) -> DataFrame:
    """Return rows with the columns of HEALTH and `bucket`, from trace_events and messages with `bucket`."""
    facts = _facts(events, messages)
    single = facts.select("bucket", "message_id", "at", F.explode(_findings()).alias("found"))
    findings = single.select("bucket", "message_id", "at", "found.*").unionByName(_out_of_order(facts))
    return _counted(findings.withColumn("minute", F.date_trunc("minute", "at")))


# --- facts: one row per message ---


def _facts(events: DataFrame, messages: DataFrame) -> DataFrame:
    """Return one row per message with its `records`, `sends` and `consumptions`.

    Derived columns: `at` (see `minute` in the table), `topic`, `tags`, and `first`, its first record in a topic of the application.
    """
    lists = [_records(messages), _sends(events), _consumptions(events)]
    names = ("record", "send", "consumption")
    notes = reduce(lambda entry, other: entry.unionByName(other, allowMissingColumns=True), lists)
    gathered = notes.groupBy(*ID).agg(*(F.array_sort(F.collect_set(name)).alias(f"{name}s") for name in names))
    # Structs are compared field by field, and the first field of a record is its time.
    first = F.array_min(F.filter("records", lambda entry: entry["place"] == "user"))
    earliest = [F.array_min(F.col(name)["traced_at"]) for name in ("sends", "consumptions")]
    return gathered.withColumn("first", first).withColumns(
        {
            "topic": F.coalesce("first.topic", F.array_min("records.origin"), F.array_min("sends.topic")),
            "tags": F.coalesce("first.tags", F.array_min("sends.tags")),
            "at": F.coalesce("first.stored_at", F.array_min("records.stored_at"), F.least(*earliest)),
        }
    )


def _records(messages: DataFrame) -> DataFrame:
    """Return the records that brokers stored; `place` is user, retry, dead or system."""
    topic, properties = F.col("topic"), F.col("properties")
    is_system = topic.isin(*SYSTEM_TOPICS) | topic.startswith(SYSTEM_TOPIC_PREFIX) | topic.endswith(REPLY_TOPIC)
    kind = (
        F.when(topic.startswith(RETRY_PREFIX), "retry")
        .when(topic.startswith(DLQ_PREFIX), "dead")
        .when(is_system, "system")
        .otherwise("user")
    )
    origin = F.when(kind == "user", topic).otherwise(F.coalesce(properties[RETRY_TOPIC], properties[REAL_TOPIC]))
    ahead_ms = F.unix_millis("born_timestamp") - F.unix_millis("store_timestamp")
    record = F.struct(
        F.col("store_timestamp").alias("stored_at"),
        topic,
        F.col("broker"),
        F.col("queue_id"),
        F.col("queue_offset"),
        F.col("commit_log_offset"),
        F.col("offset_message_id"),
        kind.alias("place"),
        # A failed message is delayed on its way to a retry topic: REAL_TOPIC is that topic then, not the application's.
        F.when(~origin.startswith(RETRY_PREFIX), origin).alias("origin"),
        F.col("tags"),
        F.coalesce(properties[SHARDING_KEY], F.col("keys")).alias("order_key"),
        _without_port("born_host").alias("host"),
        ahead_ms.alias("ahead_ms"),
        F.col("reconsume_times"),
    )
    return messages.select(*ID, record.alias("record"))


def _sends(events: DataFrame) -> DataFrame:
    """Return sends and decisions. `is_published`: a send; `is_plain`: it succeeded and the message is consumable immediately."""
    later = F.coalesce(F.col("message_type").isin(int(MessageType.HALF), int(MessageType.DELAY)), F.lit(False))
    is_published = F.col("type") == "Pub"
    is_committed = (F.col("type") == "EndTransaction") & (F.col("transaction_state") == "COMMIT_MESSAGE")
    send = F.struct(
        F.col("trace_stored_at").alias("traced_at"),
        F.col("topic"),
        F.col("tags"),
        F.col("offset_message_id"),
        is_published.alias("is_published"),
        (is_published & F.coalesce("success", F.lit(False)) & ~later).alias("is_plain"),
        F.coalesce(is_committed, F.lit(False)).alias("is_committed"),
    )
    return events.where("type IN ('Pub', 'EndTransaction')").select(*ID, send.alias("send"))


def _consumptions(events: DataFrame) -> DataFrame:
    """Return the consumption of a message by each group: number of successes, first delivery, result of the last one."""
    is_begin, is_end = F.col("type") == "SubBefore", F.col("type") == "SubAfter"
    code = F.coalesce("context_code", F.when(F.col("success"), F.lit(0)).otherwise(F.lit(4)))
    calls = (
        events.where("type IN ('SubBefore', 'SubAfter')")
        .groupBy(*ID, "request_id")
        .agg(
            F.min("client_group").alias("consumer_group"),
            F.min(_without_port("client_host")).alias("host"),
            F.min(F.when(is_begin & (F.col("retry_times") == 0), F.col("event_time"))).alias("started_at"),
            F.coalesce(F.bool_or(F.when(is_end, F.col("success"))), F.lit(False)).alias("is_success"),
            F.max(F.when(is_end, code)).alias("code"),
            F.max("event_time").alias("last_at"),
            F.max("retry_times").alias("retry_times"),
            F.min("trace_stored_at").alias("traced_at"),
        )
    )
    names = F.create_map(*(F.lit(part) for pair in RESULTS.items() for part in pair))
    order = F.struct("retry_times", "last_at", "request_id")
    by_group = calls.groupBy(*ID, "consumer_group").agg(
        F.min("traced_at").alias("traced_at"),
        F.count_if("is_success").alias("successes"),
        F.count_distinct("host").alias("hosts"),
        F.max_by("host", order).alias("host"),
        F.max_by("code", order).alias("code"),
        F.min("started_at").alias("started_at"),
        F.min_by("host", F.struct("started_at", "host")).alias("first_host"),
    )
    result = F.coalesce(F.try_element_at(names, F.col("code")), F.lit("unknown")).alias("result")
    columns = ("traced_at", "consumer_group", "successes", "hosts", "host", "started_at", "first_host")
    return by_group.select(*ID, F.struct(*columns, result).alias("consumption"))


# --- findings per message ---


def _findings() -> Column:
    """Return all findings as an array of structs."""
    return F.flatten(
        F.array(_consumed_twice(), _stored_twice(), _clock_ahead(), _stored(), _sent(), _retried(), _dead_letters())
    )


def _finding(
    kind: str,
    *,
    topic: Column | None = None,
    group: Column | None = None,
    host: Column | None = None,
    cause: Column | None = None,
    worst: Column | None = None,
    detail: Column | None = None,
) -> Column:
    null = F.lit(None)
    return F.struct(
        F.lit(kind).alias("kind"),
        (F.col("topic") if topic is None else topic).alias("topic"),
        (null if group is None else group).cast("string").alias("consumer_group"),
        (null if host is None else host).cast("string").alias("host"),
        (null if cause is None else cause).cast("string").alias("cause"),
        (null if worst is None else worst).cast("bigint").alias("worst"),
        (null if detail is None else detail).cast("string").alias("detail"),
    )


def _consumed_twice() -> Column:
    twice = F.filter("consumptions", lambda entry: (entry["successes"] > 1) & entry["consumer_group"].isNotNull())

    def finding(entry: Column) -> Column:
        detail = F.format_string("%d successes at %d hosts", entry["successes"], entry["hosts"])
        return _finding(
            kinds.CONSUMED_TWICE,
            group=entry["consumer_group"],
            host=entry["host"],
            worst=entry["successes"],
            detail=detail,
        )

    return F.transform(twice, finding)


def _stored_twice() -> Column:
    stored = F.filter("records", lambda entry: entry["place"] == "user")
    sent = F.filter("sends", lambda entry: entry["is_plain"] & entry["offset_message_id"].isNotNull())

    def places(of: Column) -> Column:
        return F.transform(
            of, lambda entry: F.struct(entry["topic"].alias("topic"), entry["offset_message_id"].alias("id"))
        )

    by_both = F.array_distinct(F.concat(places(stored), places(sent)))
    topics = F.array_distinct(F.transform(by_both, lambda entry: entry["topic"]))

    def copies(topic: Column) -> Column:
        properties = F.filter(by_both, lambda entry: entry["topic"] == topic)
        return F.struct(
            topic.alias("topic"), F.array_sort(F.transform(properties, lambda entry: entry["id"])).alias("ids")
        )

    def finding(entry: Column) -> Column:
        shown = F.array_join(F.slice(entry["ids"], 1, IDS_SHOWN), " ")
        return _finding(
            kinds.STORED_TWICE, topic=entry["topic"], host=F.col("first.host"), worst=F.size(entry["ids"]), detail=shown
        )

    twice = F.filter(F.transform(topics, copies), lambda entry: F.size(entry["ids"]) > 1)
    return F.transform(twice, finding)


def _clock_ahead() -> Column:
    ahead_records = F.filter("records", lambda entry: entry["ahead_ms"] > 0)
    largest = F.array_max(
        F.transform(ahead_records, lambda entry: F.struct(entry["ahead_ms"].alias("ms"), entry["host"].alias("host")))
    )
    detail = F.format_string("born %d ms after it was stored", largest["ms"])
    return _if(
        F.size(ahead_records) > 0, _finding(kinds.CLOCK_AHEAD, host=largest["host"], worst=largest["ms"], detail=detail)
    )


def _stored() -> Column:
    can_be_consumed = (
        F.col("first").isNotNull()
        | F.exists("sends", lambda entry: entry["is_plain"] | entry["is_committed"])
        | (F.size("consumptions") > 0)
    )
    # Clients that do not trace their group yield null: the message was consumed by an unknown group.
    groups = F.transform("consumptions", lambda entry: F.coalesce(entry["consumer_group"], F.lit(kinds.UNKNOWN_GROUP)))
    by = F.array_join(F.array_sort(groups), " ")
    return _if(can_be_consumed, _finding(kinds.STORED, group=F.when(by != "", by), cause=F.col("tags")))


def _sent() -> Column:
    is_traced = F.exists("sends", lambda entry: entry["is_published"])
    cause = F.when(is_traced, kinds.TRACED).otherwise(kinds.UNTRACED)
    return _if(F.col("first").isNotNull(), _finding(kinds.SENT, host=F.col("first.host"), cause=cause))


def _retried() -> Column:
    given_back = F.filter("records", lambda entry: entry["place"].isin("retry", "dead"))
    return F.transform(given_back, lambda entry: _finding(kinds.RETRIED, group=_group_of(entry["topic"])))


def _dead_letters() -> Column:
    dead = F.filter("records", lambda entry: entry["place"] == "dead")
    topics = F.array_distinct(F.transform(dead, lambda entry: entry["topic"]))

    def finding(topic: Column) -> Column:
        group = _group_of(topic)
        times = F.array_max(
            F.transform(F.filter(dead, lambda entry: entry["topic"] == topic), lambda entry: entry["reconsume_times"])
        )
        last = F.get(F.filter("consumptions", lambda entry: entry["consumer_group"] == group), F.lit(0))
        return _finding(
            kinds.DEAD_LETTER, group=group, host=last["host"], cause=F.coalesce(last["result"], F.lit("no trace")),
            worst=times, detail=F.format_string("dead-lettered after %d deliveries", times),
        )  # fmt: skip

    return F.transform(topics, finding)


def _out_of_order(facts: DataFrame) -> DataFrame:
    queue = ("topic", "broker", "queue_id", "order_key")
    started_calls = F.filter(
        "consumptions", lambda entry: entry["started_at"].isNotNull() & entry["consumer_group"].isNotNull()
    )
    started = (
        facts.where("first.order_key != ''")
        .select(*ID, "at", "first", F.explode(started_calls).alias("consumption"))
        .select(*ID, "at", *(f"first.{name}" for name in (*queue, "queue_offset")), "consumption.*")
    )
    # The result for a bucket must not depend on which other buckets are computed in the same run.
    begin = F.try_to_timestamp("bucket", F.lit(BUCKET_FORMAT))
    following = F.date_format(begin + F.expr(f"INTERVAL {BUCKET_MINUTES} MINUTES"), BUCKET_FORMAT)
    compared = started.withColumn("seen_by", F.explode(F.array_compact(F.array(F.col("bucket"), following))))
    earlier = (
        Window.partitionBy("seen_by", "consumer_group", *queue)
        .orderBy("queue_offset", "message_id")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    latest = F.max(F.struct("started_at", "first_host", "message_id")).over(earlier)
    out_of_order = compared.withColumn("other", latest).where("bucket = seen_by AND started_at < other.started_at")
    ahead_ms = F.unix_millis("other.started_at") - F.unix_millis("started_at")
    cause = F.when(F.col("first_host") == F.col("other.first_host"), "one client").otherwise("two clients")
    finding = _finding(
        kinds.OUT_OF_ORDER, group=F.col("consumer_group"), host=F.col("first_host"), cause=cause, worst=ahead_ms,
        detail=F.format_string("key %s: began %d ms before %s", "order_key", ahead_ms, "other.message_id"),
    )  # fmt: skip
    return out_of_order.select(*ID, "at", finding.alias("found")).select(*ID, "at", "found.*")


# --- aggregation ---


def _counted(rows: DataFrame) -> DataFrame:
    """Return counts and the worst examples. Ranking by a window can spill to disk; only the top rows become an array."""
    group = Window.partitionBy(*GROUPED)
    order = group.orderBy(F.desc_nulls_last("worst"), "at", "message_id")
    ranked = rows.select("*", F.row_number().over(order).alias("rank"), F.count("*").over(group).alias("count"))
    example = F.struct("rank", F.struct("worst", "message_id", "at", "detail").alias("one"))
    examples = F.transform(F.sort_array(F.collect_list(example)), lambda ranked: ranked["one"])
    few = ranked.where(F.col("rank") <= kinds.MAX_EXAMPLES).groupBy(*GROUPED)
    counts = few.agg(F.max("count").alias("count"), F.max("worst").alias("worst"), examples.alias("examples"))
    return counts.select(*HEALTH.column_names, "bucket")


def _if(condition: Column, finding: Column) -> Column:
    """Return an array with the finding, empty if the condition is false."""
    return F.filter(F.array(finding), lambda _: condition)


def _group_of(topic: Column) -> Column:
    return F.regexp_replace(topic, f"^({RETRY_PREFIX}|{DLQ_PREFIX})", "")


def _without_port(name: str) -> Column:
    return F.regexp_replace(name, ":[0-9]+$", "")
