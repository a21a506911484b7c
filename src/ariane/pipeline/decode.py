"""Trace messages → trace_events and trace_rejects, in Spark's own functions: no row goes through Python.

The layouts are those of `protocol.trace`; clients write more or fewer fields, so every field is read with `get`, every number
with `try_cast`: a record that lacks what its type needs is a reject with a reason, and hides no other record. Nothing that
a client can write may end the query, for it would end it again after every restart: bytes that are no UTF-8 (clients write
in their platform's charset) are replaced, numbers and times that no column can hold are rejects.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ariane.pipeline import slots
from ariane.protocol.trace import FIELD_END, RECORD_END
from ariane.tables import TRACE_EVENTS, TRACE_REJECTS

# Least number of fields, the type's name included.
FIELDS_MIN = {"Pub": 12, "SubBefore": 7, "SubAfter": 5, "EndTransaction": 13, "Recall": 7}

# Fields that have to be numbers, in records that are long enough to have them. Java's times are long, the others int.
TIMES = {"Pub": (1,), "SubBefore": (1,), "SubAfter": (7,), "EndTransaction": (1,), "Recall": (1,)}
NUMBERS = {"Pub": (9, 10, 11), "SubBefore": (6,), "SubAfter": (3, 6), "EndTransaction": (9,)}
SUB_AFTER_TIMED = 9  # with fewer fields a SubAfter has neither time nor group
TIME_MAX_MS = 253_402_300_799_999  # the last ms of the year 9999: later ones overflow readers' dates

# A SubAfter that lost its end: the name of the next record's type stands in place of its time. (\\G: where the last one ended.)
_TYPES = "|".join(FIELDS_MIN)
RUN_TOGETHER = (
    f"(?:\\G|(?<={RECORD_END}))(SubAfter(?:{FIELD_END}[^{FIELD_END}{RECORD_END}]*+){{6}})"
    f"{FIELD_END}(?=(?:{_TYPES}){FIELD_END})"
)

REASON_TYPE_MAX = 40  # of an unknown type's name in the reason; the record stands beside it in full


def records(messages: DataFrame) -> DataFrame:
    """One row per record of each trace message: `f` its fields, and `type`, `n` (how many fields), `reason` (null: it can
    be read). `messages` has the columns of the source that are named below."""
    text = F.make_valid_utf8(F.col("body").cast("string"))
    split = messages.select(
        F.posexplode(F.split(_taken_apart(text), RECORD_END)).alias("record_index", "record"),
        F.col("broker").alias("trace_broker"),
        F.col("queue_id").alias("trace_queue_id"),
        F.col("queue_offset").alias("trace_queue_offset"),
        F.col("store_timestamp").alias("trace_stored_at"),
        "born_host",
    ).where("record != ''")
    fields = _once(split, f=F.split("record", FIELD_END))
    typed = _once(fields, type=F.get("f", F.lit(0)), n=F.size("f"))
    return _once(typed, reason=_reason())


def _once(frame: DataFrame, **columns: Column) -> DataFrame:
    """The frame with more columns, worked out once per row. A plain column would be put into every expression that uses it, and
    the fields of a record are used some sixty times; what a generator gives stays as it is."""
    return frame.select("*", F.inline(F.array(F.struct(*(column.alias(name) for name, column in columns.items())))))


def trace_events(rows: DataFrame) -> DataFrame:
    """The records that can be read, with the columns of TRACE_EVENTS and `slot`."""
    columns = _columns()
    good = rows.where("reason IS NULL")
    events = good.select(
        *(columns[column.name].cast(column.type).alias(column.name) for column in TRACE_EVENTS.columns)
    )
    # The record of a batch has the ids of its messages joined by commas, and those of the broker in the same order.
    one_by_one = events.select("*", F.posexplode(F.split("message_id", ",")).alias("at", "one_id")).where(
        "one_id != ''"
    )
    offset_ids = F.split("offset_message_id", ",")
    as_many = F.size(offset_ids) == F.size(F.split("message_id", ","))
    told = one_by_one.withColumns(
        {
            "message_id": F.col("one_id"),
            "offset_message_id": F.when(as_many, F.get(offset_ids, F.col("at"))).otherwise(F.col("offset_message_id")),
        }
    )
    slot = slots.of_message(F.col("message_id"), F.col("trace_stored_at"))
    return told.select(*TRACE_EVENTS.names, slot.alias("slot"))


def trace_rejects(rows: DataFrame) -> DataFrame:
    """The records that cannot, with the columns of TRACE_REJECTS and `slot`."""
    bad = rows.where("reason IS NOT NULL").select(*TRACE_REJECTS.names)
    return bad.withColumn("slot", slots.of_time(F.col("trace_stored_at")))


def _taken_apart(text: Column) -> Column:
    """The text with an end after each record: CLOUD clients from 4.9.5 to 5.3.0 write none after a SubAfter."""
    # A type's name after FIELD_END is looked for first, which is far cheaper than the expression.
    suspect = _any(F.contains(text, F.lit(f"{FIELD_END}{name}{FIELD_END}")) for name in FIELDS_MIN)
    return F.when(suspect, F.regexp_replace(text, RUN_TOGETHER, f"$1{RECORD_END}")).otherwise(text)


def _field(number: int) -> Column:
    """A field's text; null when absent, empty, or the four letters that Java prints for null."""
    text = F.get("f", F.lit(number))
    return F.when((text != "") & (text != "null"), text)


def _number(number: int) -> Column:
    return _field(number).try_cast("int")


def _time_ms(number: int) -> Column:
    ms = _field(number).try_cast("bigint")
    return F.when(ms.between(0, TIME_MAX_MS), ms)


def _is(*types: str) -> Column:
    return F.col("type").isin(*types)


def _by_type(**values: Column) -> Column:
    """A value that depends on the record's type; null for the types that are not named."""
    cases = [F.when(_is(name), value) for name, value in values.items()]
    return F.coalesce(*cases) if len(cases) > 1 else cases[0]


def _reason() -> Column:
    """Why a record cannot be read; null when it can."""
    short = _any(_is(name) & (F.col("n") < least) for name, least in FIELDS_MIN.items())
    bad_number = _any(
        _is(name) & (F.col("n") > at) & _number(at).isNull() for name, places in NUMBERS.items() for at in places
    )
    timed = ~_is("SubAfter") | (F.col("n") >= SUB_AFTER_TIMED)
    bad_time = _any(_is(name) & timed & _time_ms(at).isNull() for name, places in TIMES.items() for at in places)
    message_id = _by_type(
        Pub=_field(5), SubBefore=_field(5), SubAfter=_field(2), EndTransaction=_field(5), Recall=_field(5)
    )
    unknown = F.concat(F.lit("unknown record type "), F.substring("type", 1, REASON_TYPE_MAX))
    too_short = F.concat(F.col("type"), F.lit(" with "), F.col("n"), F.lit(" fields is too short"))
    return (
        F.when(~_is(*FIELDS_MIN), unknown)
        .when(short, too_short)
        .when(bad_number, F.concat(F.col("type"), F.lit(" with a number that is none, or out of range")))
        .when(bad_time, F.concat(F.col("type"), F.lit(" with a time that is none, or out of range")))
        .when(
            F.coalesce(F.trim(F.translate(message_id, ",", "")), F.lit("")) == "",
            F.concat(F.col("type"), F.lit(" without a message id")),
        )
    )


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(lambda one, other: one | other, conditions)


def _consumed_keys(number: int) -> Column:
    """The keys of a consumption; clients in C++ write `dKey` for none."""
    return F.when(_field(number) != "dKey", _field(number))


def _is_true(number: int) -> Column:
    return F.coalesce(_field(number) == "true", F.lit(False))


def _columns() -> dict[str, Column]:
    """Every column of TRACE_EVENTS, from the fields of its record."""
    many = F.col("n") >= 14  # a Pub with an offset id before its success flag
    late = F.col("n") >= SUB_AFTER_TIMED  # a SubAfter with time and group
    ms = _by_type(
        Pub=_time_ms(1), SubBefore=_time_ms(1), SubAfter=F.when(late, _time_ms(7)), EndTransaction=_time_ms(1),
        Recall=_time_ms(1),
    )  # fmt: skip
    pub_success = F.when(many, _is_true(13)).when(F.col("n") >= 13, _is_true(12)).otherwise(F.lit(True))
    pub_host = F.when(F.col("n") >= 15, _field(14))
    before_host = F.when(F.col("n") >= 9, _field(8))
    return {
        "type": F.col("type"),
        "event_time": F.timestamp_millis(ms),
        "region": _by_type(Pub=_field(2), SubBefore=_field(2), EndTransaction=_field(2), Recall=_field(2)),
        "client_group": _by_type(
            Pub=_field(3),
            SubBefore=_field(3),
            SubAfter=F.when(late, _field(8)),
            EndTransaction=_field(3),
            Recall=_field(3),
        ),
        "topic": _by_type(Pub=_field(4), EndTransaction=_field(4), Recall=_field(4)),
        "message_id": _by_type(
            Pub=_field(5), SubBefore=_field(5), SubAfter=_field(2), EndTransaction=_field(5), Recall=_field(5)
        ),
        "tags": _by_type(Pub=_field(6), EndTransaction=_field(6)),
        "keys": _by_type(
            Pub=_field(7), SubBefore=_consumed_keys(7), SubAfter=_consumed_keys(5), EndTransaction=_field(7)
        ),
        "store_host": _by_type(Pub=_field(8), EndTransaction=_field(8)),
        "body_length": _by_type(Pub=_number(9)),
        "cost_ms": _by_type(Pub=_number(10), SubAfter=_number(3)),
        "message_type": _by_type(Pub=_number(11), EndTransaction=_number(9)),
        "offset_message_id": _by_type(Pub=F.when(many, _field(12))),
        "success": _by_type(Pub=pub_success, SubAfter=_is_true(4), Recall=_is_true(6)),
        "request_id": _by_type(SubBefore=_field(4), SubAfter=_field(1)),
        "retry_times": _by_type(SubBefore=_number(6)),
        "context_code": _by_type(SubAfter=F.when(F.col("n") >= 7, _number(6))),
        "transaction_id": _by_type(EndTransaction=_field(10)),
        "transaction_state": _by_type(EndTransaction=_field(11)),
        "from_check": _by_type(EndTransaction=_is_true(12)),
        "client_host": F.coalesce(_by_type(Pub=pub_host, SubBefore=before_host), F.col("born_host")),
        "trace_broker": F.col("trace_broker"),
        "trace_queue_id": F.col("trace_queue_id"),
        "trace_queue_offset": F.col("trace_queue_offset"),
        "record_index": F.col("record_index"),
        "trace_stored_at": F.col("trace_stored_at"),
    }
