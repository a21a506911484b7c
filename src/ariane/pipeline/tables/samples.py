"""Samples of the metrics collector → samples_brokers, samples_queues, samples_counters, samples_rejects.

Decoded by Spark expressions in the JVM. An invalid sample becomes a reject with a reason; no content of a message can end the
query. Rows are stored in the bucket of the sample's own time.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ariane.metrics_collector.sample import SCHEMA
from ariane.pipeline.tables import bucket_columns
from ariane.tables import SAMPLES_BROKERS, SAMPLES_COUNTERS, SAMPLES_QUEUES, SAMPLES_REJECTS, TableSchema

MESSAGE = "body BINARY, broker STRING, queue_id INT, queue_offset BIGINT, store_timestamp TIMESTAMP"

_CORRUPT = "_corrupt"
_FIELDS = f"""schema INT, collector STRING, round BIGINT, part INT, at_ms BIGINT, interval_ms BIGINT, duration_ms BIGINT,
    requests BIGINT, cluster STRING, broker STRING, broker_id BIGINT, addr STRING, error STRING,
    runtime STRUCT<at_ms: BIGINT, boot_ms: BIGINT, put_total: BIGINT, get_total: BIGINT, log_min: BIGINT, log_max: BIGINT,
        dispatch_behind_bytes: BIGINT>,
    topics ARRAY<STRUCT<topic: STRING, at_ms: BIGINT, queues: ARRAY<ARRAY<BIGINT>>>>,
    groups ARRAY<STRUCT<group: STRING, topic: STRING, at_ms: BIGINT, bounds_at_ms: BIGINT, queues: ARRAY<ARRAY<BIGINT>>>>,
    counters ARRAY<STRUCT<name: STRING, topic: STRING, group: STRING, at_ms: BIGINT, sum: BIGINT, tps: DOUBLE>>,
    skipped STRUCT<topics: BIGINT, groups: BIGINT, counters: BIGINT, ages: BIGINT>,
    dropped_samples BIGINT, failed_requests ARRAY<STRING>, {_CORRUPT} STRING"""
_NEEDED = ("collector", "at_ms", "broker", "broker_id")

# Samples are stored immediately, or after a wait for a broker. A larger difference means a wrong clock.
CLOCK_MAX_MS = 86_400_000
ROUND_MAX_MS = 3_600_000  # from the start of a round to its last response
BODY_MAX = 1_000  # characters of a rejected body


def records(messages: DataFrame) -> DataFrame:
    """Return one row per message: the sample `s`, the `reason` for a reject (null: valid), and its position."""
    text = F.make_valid_utf8(F.col("body").cast("string"))
    # PERMISSIVE: a sample that cannot be read becomes a reject, while FAILFAST would end the query.
    read = F.from_json(text, _FIELDS, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    rows = messages.select(
        text.alias("text"),
        read.alias("s"),
        F.col("broker").alias("kept_by"),
        "queue_id",
        "queue_offset",
        F.col("store_timestamp").alias("stored_at"),
    )
    return rows.withColumn("reason", _reason())


def brokers(rows: DataFrame) -> DataFrame:
    """Return the columns of SAMPLES_BROKERS and `bucket`: one row per sample, even if it consists of several messages."""
    sampled_at = F.timestamp_millis("s.at_ms")
    first = _good(rows).where("coalesce(s.part, 0) = 0")
    columns = {
        "sampled_at": sampled_at,
        "booted_at": F.timestamp_millis("s.runtime.boot_ms"),
        **{
            name: F.col(f"s.runtime.{name}")
            for name in ("put_total", "get_total", "log_min", "log_max", "dispatch_behind_bytes")
        },
        **{f"skipped_{name}": F.col(f"s.skipped.{name}") for name in ("topics", "groups", "counters", "ages")},
    }
    return _shaped(first, SAMPLES_BROKERS, columns)


def queues(rows: DataFrame) -> DataFrame:
    """Return the columns of SAMPLES_QUEUES and `bucket`."""
    good = _good(rows)
    of_topics = good.select("s", "stored_at", F.explode("s.topics").alias("e")).select(
        "*", F.lit(None).cast("string").alias("g"), F.explode("e.queues").alias("q")
    )
    of_groups = good.select("s", "stored_at", F.explode("s.groups").alias("e")).select(
        "*", F.col("e.group").alias("g"), F.explode("e.queues").alias("q")
    )

    def part(number: int) -> Column:
        return F.get("q", F.lit(number))

    common = {
        "sampled_at": F.timestamp_millis("e.at_ms"),
        "topic": F.col("e.topic"),
        "consumer_group": F.col("g"),
        "queue_id": part(0),
    }
    null = F.lit(None)
    ends = _shaped(
        of_topics,
        SAMPLES_QUEUES,
        common
        | {"bounds_at": common["sampled_at"], "min_offset": part(1), "max_offset": part(2)}
        | {"committed_offset": null, "oldest_age_ms": null},
    )
    progress = _shaped(
        of_groups,
        SAMPLES_QUEUES,
        common
        | {"bounds_at": F.timestamp_millis("e.bounds_at_ms"), "committed_offset": part(1), "min_offset": part(2)}
        | {"max_offset": part(3), "oldest_age_ms": part(4)},
    )
    return ends.unionByName(progress)


def counters(rows: DataFrame) -> DataFrame:
    """Return the columns of SAMPLES_COUNTERS and `bucket`."""
    counted = _good(rows).select("s", "stored_at", F.explode("s.counters").alias("c"))
    columns = {
        "sampled_at": F.timestamp_millis("c.at_ms"),
        "statistic": F.col("c.name"),
        "topic": F.col("c.topic"),
        "consumer_group": F.col("c.group"),
        "total": F.col("c.sum"),
        "tps": F.col("c.tps"),
    }
    return _shaped(counted, SAMPLES_COUNTERS, columns)


def rejects(rows: DataFrame) -> DataFrame:
    """Return the columns of SAMPLES_REJECTS and `bucket`."""
    columns = {"body": F.substring("text", 1, BODY_MAX), "broker": F.col("kept_by")}
    bad = rows.where("reason IS NOT NULL")
    chosen = [columns.get(column.name, F.col(column.name)).alias(column.name) for column in SAMPLES_REJECTS.columns]
    return bad.select(*chosen, bucket_columns.bucket_of_time(F.col("stored_at")).alias("bucket"))


def _good(rows: DataFrame) -> DataFrame:
    return rows.where("reason IS NULL")


def _shaped(rows: DataFrame, table: TableSchema, columns: dict[str, Column]) -> DataFrame:
    """Return the table's columns: `columns`, otherwise the sample's member of the same name; and the bucket of `sampled_at`."""
    available = columns | {"stored_at": F.col("stored_at")}
    chosen = [
        available.get(column.name, F.col(f"s.{column.name}")).cast(column.type).alias(column.name)
        for column in table.columns
    ]
    return rows.select(*chosen, bucket_columns.bucket_of_time(columns["sampled_at"]).alias("bucket"))


def _reason() -> Column:
    """Return why a message is not a valid sample; null if it is valid."""
    missing = F.concat_ws(", ", *(F.when(F.col(f"s.{name}").isNull(), F.lit(name)) for name in _NEEDED))
    other = F.concat(F.lit("schema "), F.col("s.schema"), F.lit(f", this pipeline supports {SCHEMA}; upgrade it"))
    off_ms = F.col("s.at_ms") - F.unix_millis("stored_at")
    off = F.concat(F.lit("the collector's clock is "), F.abs(off_ms), F.lit(" ms off the broker's clock"))
    entries = F.lit(False)
    for name, member in (("topics", "topic"), ("groups", "group"), ("counters", "name")):
        entries |= F.coalesce(F.exists(f"s.{name}", partial(_is_odd, member)), F.lit(False))
    return (
        F.when(
            F.col("s").isNull() | F.col("s.schema").isNull() & F.col(f"s.{_CORRUPT}").isNotNull(),
            F.lit("not a JSON sample"),
        )
        .when(F.col("s.schema").isNull(), F.lit("schema is missing"))
        .when(F.col("s.schema") != SCHEMA, other)
        .when(F.col(f"s.{_CORRUPT}").isNotNull(), F.lit("a member has the wrong type"))
        .when(missing != "", F.concat(F.lit("lacks "), missing))
        .when(~off_ms.between(-CLOCK_MAX_MS, CLOCK_MAX_MS), off)
        .when(entries, F.lit("an entry has no name, no topic or no time within the round"))
    )


def _is_odd(member: str, entry: Column) -> Column:
    """Return whether an entry of a sample's list is invalid."""
    later_ms = entry["at_ms"] - F.col("s.at_ms")
    is_good = later_ms.between(0, ROUND_MAX_MS) & entry["topic"].isNotNull() & entry[member].isNotNull()
    return ~F.coalesce(is_good, F.lit(False))
