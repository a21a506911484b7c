"""Trace messages → trace_events and trace_rejects, decoded by Spark expressions in the JVM.

The layouts are those of `protocol.trace`. Clients write more or fewer fields, so every field is read with `get` and every number
with `try_cast`: a record that lacks a required field becomes a reject with a reason and does not affect other records. No content
may end the query, because it would end it again after every restart: invalid UTF-8 (clients write in their platform's charset) is
replaced, and numbers and times out of range become rejects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ariane.model import clock_offset
from ariane.model.message import UNIQ_KEY
from ariane.pipeline.tables.bucket_columns import bucket_of_message, bucket_of_time, compute_once, counted_ms, id_months
from ariane.protocol.trace_codec import FIELD_END, RECORD_END
from ariane.tables import TRACE_EVENTS, TRACE_REJECTS

# Minimum number of fields per type, including the type's name.
FIELDS_MIN = {"Pub": 12, "SubBefore": 7, "SubAfter": 5, "EndTransaction": 13, "Recall": 7}
SUB_AFTER_TIMED = 9  # with fewer fields a SubAfter has neither time nor group

# Index of each field per record type. (`_columns` handles fields whose index depends on more than the type.)
TEXTS = {
    "region": {"Pub": 2, "SubBefore": 2, "EndTransaction": 2, "Recall": 2},
    "client_group": {"Pub": 3, "SubBefore": 3, "SubAfter": 8, "EndTransaction": 3, "Recall": 3},
    "topic": {"Pub": 4, "EndTransaction": 4, "Recall": 4},
    "message_id": {"Pub": 5, "SubBefore": 5, "SubAfter": 2, "EndTransaction": 5, "Recall": 5},
    "tags": {"Pub": 6, "EndTransaction": 6},
    "keys": {"Pub": 7, "SubBefore": 7, "SubAfter": 5, "EndTransaction": 7},
    "store_host": {"Pub": 8, "EndTransaction": 8},
    "request_id": {"SubBefore": 4, "SubAfter": 1},
    "transaction_id": {"EndTransaction": 10},
    "transaction_state": {"EndTransaction": 11},
}
# The same for numbers, which must be valid if present. Java's times are long, the others int.
NUMBERS = {
    "event_ms": ({"Pub": 1, "SubBefore": 1, "SubAfter": 7, "EndTransaction": 1, "Recall": 1}, "bigint"),
    "cost_ms": ({"Pub": 10, "SubAfter": 3}, "int"),
    "body_length": ({"Pub": 9}, "int"),
    "message_type": ({"Pub": 11, "EndTransaction": 9}, "int"),
    "retry_times": ({"SubBefore": 6}, "int"),
    "context_code": ({"SubAfter": 6}, "int"),
}

# A truncated SubAfter: the name of the next record's type follows in place of its time. (\\G: end of the last match.)
_TYPES = "|".join(FIELDS_MIN)
RUN_TOGETHER = (
    f"(?:\\G|(?<={RECORD_END}))(SubAfter(?:{FIELD_END}[^{FIELD_END}{RECORD_END}]*+){{6}})"
    f"{FIELD_END}(?=(?:{_TYPES}){FIELD_END})"
)

# Address (4 or 16 bytes), pid (2) and process constant (4), before time and counter (6), see `ariane.model.ids`.
PROCESS_OF_ID = "^((?:[0-9A-F]{24})?[0-9A-F]{20})[0-9A-F]{12}$"

TIME_MAX_MS = 253_402_300_799_999  # last ms of the year 9999: later times overflow the date types of readers
REASON_TYPE_MAX = 40  # characters of an unknown type's name in the reason; the row has the whole record


def records(messages: DataFrame) -> DataFrame:
    """Return one row per record of each trace message.

    Columns: the fields `f`, `type`, the number of fields `n`, `reason` (null: valid), and those of `messages` named below.
    """
    # Below the generator of records, so that it is computed once per message.
    carried = compute_once(
        messages,
        text=F.make_valid_utf8(F.col("body").cast("string")),
        clock_offsets=_clock_offsets(),
        client_process=_client_process(),
        id_months=id_months(F.col("store_timestamp")),
    )
    with_common = carried.withColumn("common_clock", _common_clock())
    split = with_common.select(
        F.posexplode(F.split(_taken_apart(F.col("text")), RECORD_END)).alias("record_index", "record"),
        F.col("broker").alias("trace_broker"),
        F.col("queue_id").alias("trace_queue_id"),
        F.col("queue_offset").alias("trace_queue_offset"),
        F.col("store_timestamp").alias("trace_stored_at"),
        "born_host",
        "client_process",
        "clock_offsets",
        "common_clock",
        "id_months",
    ).where("record != ''")
    fields = compute_once(split, f=F.split("record", FIELD_END))
    typed = compute_once(fields, type=F.get("f", F.lit(0)), n=F.size("f"))
    with_numbers = compute_once(
        typed,
        message_id=_text(TEXTS["message_id"]),
        clock=_clock(),
        **{name: _number(*spec) for name, spec in NUMBERS.items()},
    )
    return compute_once(with_numbers, reason=_reason())


def decode_records(messages: DataFrame) -> DataFrame:
    """Return one row per message of each valid record, and one per invalid record.

    Columns: those of TRACE_EVENTS, `bucket`, and `reason` and `record` of invalid records, which are null for valid ones.
    """
    columns = _columns()
    is_valid = F.col("reason").isNull()
    rows = records(messages).select(
        *(
            columns.get(column.name, F.col(column.name)).cast(column.type).alias(column.name)
            for column in TRACE_EVENTS.columns
        ),
        "reason",
        F.when(~is_valid, F.col("record")).alias("record"),
        "id_months",
    )
    # The record of a batch has the ids of its messages separated by commas, and the offset ids in the same order.
    ids = F.when(is_valid, F.split("message_id", ",")).otherwise(F.array(F.lit(None)))
    one_by_one = rows.select("*", F.posexplode(ids).alias("at", "one_id")).where("one_id != '' OR reason IS NOT NULL")
    offset_ids = F.split("offset_message_id", ",")
    as_many = F.size(offset_ids) == F.size(F.split("message_id", ","))
    per_message = one_by_one.withColumns(
        {
            "message_id": F.col("one_id"),
            "offset_message_id": F.when(as_many, F.get(offset_ids, F.col("at"))).otherwise(F.col("offset_message_id")),
        }
    )
    counted = compute_once(per_message, counted_ms=counted_ms(F.col("message_id")))
    of_message = bucket_of_message(F.col("message_id"), F.col("counted_ms"), F.col("id_months"))
    bucket = F.when(is_valid, of_message).otherwise(bucket_of_time(F.col("trace_stored_at")))
    return counted.select(*TRACE_EVENTS.column_names, "reason", "record", bucket.alias("bucket"))


def trace_events(rows: DataFrame) -> DataFrame:
    """Return the valid records with the columns of TRACE_EVENTS and `bucket`, from decoded records."""
    return rows.where("reason IS NULL").select(*TRACE_EVENTS.column_names, "bucket")


def trace_rejects(rows: DataFrame) -> DataFrame:
    """Return the invalid records with the columns of TRACE_REJECTS and `bucket`, from decoded records."""
    return rows.where("reason IS NOT NULL").select(*TRACE_REJECTS.column_names, "bucket")


def _client_process() -> Column:
    """Return the part of the trace message's unique id that all ids of a process share; null without such an id."""
    return F.nullif(F.regexp_extract(F.upper(F.col("properties").getItem(UNIQ_KEY)), PROCESS_OF_ID, 1), F.lit(""))


def _clock_offsets() -> Column:
    """Return the clock offsets that a trace message carries, as `clock_offset.of_text` reads them."""
    text = F.col("properties").getItem(clock_offset.PROPERTY)
    entries = F.when(F.length(text) <= clock_offset.TEXT_MAX, F.split(text, clock_offset.ENTRY_END))

    def offset(entry: Column) -> Column:
        fields = F.split(entry, clock_offset.FIELD_END)
        lower_ms, upper_ms = (F.get(fields, F.lit(number)).try_cast("bigint") for number in (1, 2))
        return F.struct(F.get(fields, F.lit(0)).alias("addr"), lower_ms.alias("lower_ms"), upper_ms.alias("upper_ms"))

    def is_valid(offset: Column) -> Column:
        lower_ms, upper_ms = offset["lower_ms"], offset["upper_ms"]
        greatest_ms = clock_offset.BOUND_MAX_MS
        return (lower_ms >= -greatest_ms) & (lower_ms <= upper_ms) & (upper_ms <= greatest_ms)

    return F.filter(F.transform(entries, offset), is_valid)


def _common_clock() -> Column:
    """Return the bounds on which the offsets to all brokers agree; null if they do not."""
    lower_ms = F.array_max(F.transform("clock_offsets", lambda offset: offset["lower_ms"]))
    upper_ms = F.array_min(F.transform("clock_offsets", lambda offset: offset["upper_ms"]))
    common = F.struct(F.lit(None).cast("string").alias("addr"), lower_ms.alias("lower_ms"), upper_ms.alias("upper_ms"))
    return F.when(lower_ms <= upper_ms, common)


def _clock() -> Column:
    """Return the bounds of the offset to the broker of a record, as `clock_offset.to_broker` chooses them."""
    store_host = _text(TEXTS["store_host"])
    of_broker = F.filter("clock_offsets", lambda offset: offset["addr"] == store_host)
    chosen = F.coalesce(F.get(of_broker, F.lit(0)), F.col("common_clock"))
    return F.when(F.col("clock_offsets").isNotNull(), chosen)


def _taken_apart(text: Column) -> Column:
    """Return the text with a terminator after each record: CLOUD clients from 4.9.5 to 5.3.0 omit it after a SubAfter."""
    # Check for a type's name after FIELD_END first, which is far cheaper than the regular expression.
    suspect = _any(F.contains(text, F.lit(f"{FIELD_END}{name}{FIELD_END}")) for name in FIELDS_MIN)
    return F.when(suspect, F.regexp_replace(text, RUN_TOGETHER, f"$1{RECORD_END}")).otherwise(text)


def _known(text: Column) -> Column:
    """Return null for a text that is absent, empty, or the word null that Java prints."""
    return F.when((text != "") & (text != "null"), text)


def _field(number: int) -> Column:
    return _known(F.get("f", F.lit(number)))


def _field_position(places: Mapping[str, int]) -> Column:
    """Return a field of a record; null for types without it."""
    return F.coalesce(*(F.when(F.col("type") == name, F.lit(position)) for name, position in places.items()))


def _text(places: Mapping[str, int]) -> Column:
    return _known(F.get("f", _field_position(places)))


def _number(places: Mapping[str, int], kind: str) -> Column:
    """Return a number; null if it is invalid. The field is selected before the cast, because failing casts are slow."""
    return _text(places).try_cast(kind)


def _reason() -> Column:
    """Return why a record is invalid; null if it is valid."""
    kind = F.col("type")
    minimum = F.coalesce(*(F.when(kind == name, F.lit(count)) for name, count in FIELDS_MIN.items()))
    timed = (kind != "SubAfter") | (F.col("n") >= SUB_AFTER_TIMED)
    bad_number = _any(
        F.col(name).isNull() & (F.col("n") > _field_position(places))
        for name, (places, _) in NUMBERS.items()
        if name != "event_ms"
    )
    no_time = ~F.coalesce(F.col("event_ms").between(0, TIME_MAX_MS), F.lit(False))
    no_id = F.coalesce(F.trim("message_id", F.lit(", ")), F.lit("")) == ""
    return (
        F.when(minimum.isNull(), F.concat(F.lit("unknown record type "), F.substring("type", 1, REASON_TYPE_MAX)))
        .when(F.col("n") < minimum, F.concat(kind, F.lit(" with "), F.col("n"), F.lit(" fields is too short")))
        .when(bad_number, F.concat(kind, F.lit(" with an invalid or out-of-range number")))
        .when(timed & no_time, F.concat(kind, F.lit(" with an invalid or out-of-range time")))
        .when(no_id, F.concat(kind, F.lit(" without a message id")))
    )


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(lambda condition, other: condition | other, conditions)


def _is_true(number: int) -> Column:
    return F.coalesce(_field(number) == "true", F.lit(False))


def _columns() -> dict[str, Column]:
    """Return the columns of TRACE_EVENTS that are computed from the fields; the others exist under their own name."""
    kind, n = F.col("type"), F.col("n")
    has_offset_id = (kind == "Pub") & (n >= 14)  # an offset id before the success flag
    is_timed = (kind != "SubAfter") | (n >= SUB_AFTER_TIMED)
    keys = _text(TEXTS["keys"])
    success = (
        F.when(has_offset_id, _is_true(13))
        .when((kind == "Pub") & (n >= 13), _is_true(12))
        .when(kind == "Pub", F.lit(True))
        .when(kind == "SubAfter", _is_true(4))
        .when(kind == "Recall", _is_true(6))
    )
    host = F.when((kind == "Pub") & (n >= 15), _field(14)).when((kind == "SubBefore") & (n >= 9), _field(8))
    texts = {name: _text(places) for name, places in TEXTS.items() if name != "message_id"}
    return texts | {
        "clock_lower_ms": F.col("clock.lower_ms"),
        "clock_upper_ms": F.col("clock.upper_ms"),
        "event_time": F.timestamp_millis(F.when(is_timed & F.col("reason").isNull(), F.col("event_ms"))),
        "client_group": F.when(is_timed, texts["client_group"]),
        # Consumers in C++ write `dKey` for no keys.
        "keys": F.when(~(kind.isin("SubBefore", "SubAfter") & (keys == "dKey")), keys),
        "offset_message_id": F.when(has_offset_id, _field(12)),
        "success": success,
        "from_check": F.when(kind == "EndTransaction", _is_true(12)),
        "client_host": F.coalesce(host, F.col("born_host")),
    }
