"""Stored records to rows of `messages` and `record_positions`, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ariane.model.message import (
    DELAY,
    TAGS,
    TIMER_CANCELS,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_SEC,
    UNIQ_KEY,
)
from ariane.model.topic import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from ariane.pipeline.tables import messages
from ariane.spark.records.record_columns import COLUMNS
from ariane.tables import MESSAGES, RECORD_POSITIONS, time_buckets
from ariane.tables.arrow_types import arrow_schema
from ariane.tables.declarations import record_positions

STORED = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
STORED_MS = int(STORED.timestamp() * 1000)
STORED_BUCKET = "2023-11-14T2210"
ID = "7F0000010001AABBCCDD000927C00001"  # ten minutes after the beginning of a month
ID_BUCKET = "2023-11-01T0010"
NAMES = (*MESSAGES.column_names, "body", "body_error")
Row = dict[str, Any]


def record(topic: str = "T", own: Mapping[str, str | None] | None = None, **more: Any) -> Row:
    """Return a record with the properties `own`."""
    return {
        "topic": topic, "broker": "broker-a", "queue_id": 0, "queue_offset": 5, "commit_log_offset": 1000,
        "message_id": (own or {}).get(UNIQ_KEY) or "OFF", "offset_message_id": "OFF", "store_timestamp": STORED,
        "born_timestamp": STORED, "properties": None if own is None else list(own.items()), **more,
    }  # fmt: skip


def table(rows: list[Row], names: tuple[str, ...] = NAMES) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema([(name, COLUMNS[name][0]) for name in names]))


def headers(*rows: Row) -> list[Row]:
    """Return the rows of `messages`."""
    result: list[Row] = messages.decode(table([*rows]))[MESSAGES.name].to_pylist()
    return result


def positions(*rows: Row) -> list[Row]:
    """Return the rows of `record_positions`."""
    result: list[Row] = messages.decode(table([*rows]))[RECORD_POSITIONS.name].to_pylist()
    return result


def bucket(row: Row) -> str:
    (header,) = headers(row)
    text: str = header["bucket"]
    return text


def op(body: bytes | None, tag: str = "d", **more: Any) -> Row:
    return record(OP_HALF_TOPIC, {TAGS: tag}, body=body, **more)


def cancel(offset: str | None, message_id: str | None = ID, **own: str) -> Row:
    texts = {TIMER_CANCELS: offset, TIMER_DEL_UNIQKEY: message_id, **own}
    return record(TIMER_TOPIC, {name: text for name, text in texts.items() if text is not None}, queue_id=1)


def marked(*rows: Row) -> list[int]:
    """Return the offsets that marks refer to."""
    return [row["queue_offset"] for row in positions(*rows) if row["kind"] == "mark"]


def check_types(decoded: dict[str, pa.Table]) -> None:
    for declared in (MESSAGES, RECORD_POSITIONS):
        decoded[declared.name].validate(full=True)
        assert decoded[declared.name].schema == arrow_schema(declared).append(pa.field("bucket", pa.string()))


# --- shapes ---


def test_columns_are_those_of_the_tables() -> None:
    check_types(messages.decode(table([record(HALF_TOPIC, {UNIQ_KEY: ID}), op(b"1")])))


@pytest.mark.parametrize("names", [NAMES, (), ("topic", "properties")])
def test_a_batch_without_rows_has_empty_tables(names: tuple[str, ...]) -> None:
    decoded = messages.decode(table([], names))
    check_types(decoded)
    assert [len(rows) for rows in decoded.values()] == [0, 0]


def test_columns_that_the_source_does_not_have_are_null() -> None:
    names = tuple(name for name in NAMES if name not in ("sys_flag", "prepared_transaction_offset", "body"))
    decoded = messages.decode(table([op(b"1") | {"sys_flag": 8}], names))
    check_types(decoded)
    (row,) = decoded[MESSAGES.name].to_pylist()
    assert (row["topic"], row["sys_flag"], row["prepared_transaction_offset"]) == (OP_HALF_TOPIC, None, None)
    assert len(decoded[RECORD_POSITIONS.name]) == 0


def test_null_columns_decode() -> None:
    decoded = messages.decode(table([dict.fromkeys(NAMES)]))
    check_types(decoded)
    assert [len(rows) for rows in decoded.values()] == [1, 0]


def test_chunks_do_not_change_the_result() -> None:
    rows = [
        record("T", {UNIQ_KEY: ID}), op(b"1,2"), cancel("7"), record(HALF_TOPIC, {UNIQ_KEY: ID}), op(b"3"), op(None),
        record("T"), record(TIMER_TOPIC, {UNIQ_KEY: "x"}),
    ]  # fmt: skip
    whole = table(rows)
    parts = pa.concat_tables([whole.slice(0, 2), whole.slice(2, 0), whole.slice(2, 1), whole.slice(3)])
    assert messages.decode(parts) == messages.decode(whole)
    assert messages.decode(whole.slice(3))[RECORD_POSITIONS.name].to_pylist() == positions(*rows[3:])


# --- buckets and ids ---


def test_a_record_belongs_to_the_bucket_of_its_unique_id() -> None:
    assert bucket(record("T", {UNIQ_KEY: ID})) == ID_BUCKET
    assert bucket(record("T", {UNIQ_KEY: "no time"})) == time_buckets.untimed_bucket("no time")


@pytest.mark.parametrize("own", [None, {}, {"KEYS": "k"}])
def test_a_record_without_a_unique_id_belongs_to_the_bucket_of_its_store_time(
    own: Mapping[str, str | None] | None,
) -> None:
    assert bucket(record("T", own, message_id=ID)) == STORED_BUCKET


def test_only_a_long_requested_delay_determines_the_month_by_the_born_time() -> None:
    def month(days: int, own: Mapping[str, str | None], **more: Any) -> str:
        born = STORED - timedelta(days=days)
        return bucket(record("T", {UNIQ_KEY: ID, **own}, **({"born_timestamp": born} | more)))[:7]

    assert month(40, {TIMER_DELAY_SEC: "1"}) == "2023-10"
    for name in messages.DELAYS:
        assert month(100, {name: ""}) == "2023-08"
    assert month(40, {DELAY: "3"}) == month(40, {DELAY: ""}) == "2023-10"
    assert month(40, {DELAY: "0"}) == month(40, {}) == "2023-11", "no delay: the producer's clock is wrong"
    assert month(40, {TIMER_DELAY_SEC: "1"}, born_timestamp=None) == "2023-11"


def test_a_delay_of_exactly_three_days_is_not_long() -> None:
    month = datetime(2023, 11, 2, tzinfo=UTC)
    first = {UNIQ_KEY: "7F0000010001AABBCCDD000000000001", DELAY: "3"}
    longest = month - timedelta(milliseconds=messages.LONG_MS)
    assert bucket(record("T", first, store_timestamp=month, born_timestamp=longest)) == "2023-11-01T0000"
    longer = longest - timedelta(microseconds=1)
    assert bucket(record("T", first, store_timestamp=month, born_timestamp=longer)) == "2023-10-01T0000"


def test_a_cancellation_is_a_record_of_the_cancelled_message() -> None:
    by_ariane, by_apache, without = headers(cancel("7"), cancel("7", "T+" + ID) | {"queue_id": 0}, cancel("7", None))
    assert (by_ariane["message_id"], by_ariane["bucket"]) == (ID, ID_BUCKET)
    assert (by_apache["message_id"], by_apache["bucket"]) == ("OFF", STORED_BUCKET), "a timer of its own"
    assert (without["message_id"], without["bucket"]) == ("OFF", STORED_BUCKET)


# --- positions ---


def test_half_messages_and_timers_have_positions() -> None:
    half, timer = positions(
        record(HALF_TOPIC, {UNIQ_KEY: ID}, queue_offset=40_000, queue_id=3),
        record(TIMER_TOPIC, {}, queue_offset=16_383),
        record(TIMER_TOPIC, {}, queue_id=2),
        record(SCHEDULE_TOPIC, {UNIQ_KEY: ID}),
        record("T", {UNIQ_KEY: ID}),
    )
    assert half == {
        "broker": "broker-a", "topic": HALF_TOPIC, "queue_offset": 40_000, "kind": "record", "message_id": ID,
        "message_bucket": ID_BUCKET, "stored_at": STORED,
        "bucket": record_positions.position_bucket("half", "broker-a", 40_000),
    }  # fmt: skip
    assert timer == {
        "broker": "broker-a", "topic": TIMER_TOPIC, "queue_offset": 16_383, "kind": "record", "message_id": "OFF",
        "message_bucket": STORED_BUCKET, "stored_at": STORED,
        "bucket": record_positions.position_bucket("timer", "broker-a", 16_383),
    }  # fmt: skip


def test_marks_refer_to_the_topic_of_their_record() -> None:
    end, cancelled = positions(op(b"40000", broker="broker-é"), cancel("7"))
    assert end == {
        "broker": "broker-é", "topic": HALF_TOPIC, "queue_offset": 40_000, "kind": "mark", "message_id": None,
        "message_bucket": None, "stored_at": STORED,
        "bucket": record_positions.position_bucket("half", "broker-é", 40_000),
    }  # fmt: skip
    assert cancelled == {
        "broker": "broker-a", "topic": TIMER_TOPIC, "queue_offset": 7, "kind": "mark", "message_id": None,
        "message_bucket": None, "stored_at": STORED,
        "bucket": record_positions.position_bucket("timer", "broker-a", 7),
    }  # fmt: skip


def test_an_op_message_ends_several_half_messages() -> None:
    first, second = STORED, STORED + timedelta(seconds=1)
    rows = positions(op(b"1,2"), op(None), op(b""), op(b"3,", store_timestamp=second))
    assert [(row["queue_offset"], row["stored_at"]) for row in rows] == [(1, first), (2, first), (3, second)]


def test_other_tags_and_topics_contain_no_marks() -> None:
    assert (
        positions(
            op(b"1", "D"), op(b"1", ""), record(OP_HALF_TOPIC, {}, body=b"1"), record("T", {TAGS: "d"}, body=b"1")
        )
        == []
    )
    assert marked(cancel("7") | {"queue_id": 0}) == []


def test_a_cancellation_refers_to_one_timer() -> None:
    assert marked(cancel("7"), cancel(None), cancel("8,9"), cancel(" 10 ")) == [7, 10]


VALID = {
    b"5": 5, b" 5 ": 5, b"+5": 5, b"\t5\n": 5, b"\x005\x7f": 5, b"0005": 5, b"-0": 0, b"0" * 5000 + b"9": 9,
    b"9223372036854775807": 2**63 - 1,
}  # fmt: skip
INVALID = (
    b"", b"-5", b"+", b"+-5", b"5.", b"1.5", b"1e3", b"0x10", b"5 5", b"5L", b"1_000", b"\xc2\xa05", b"\xd9\xa3", b"\xff",
    b"9223372036854775808", b"-9223372036854775809", b"9" * 20, b"-" + b"9" * 19,
)  # fmt: skip


@pytest.mark.parametrize("text", VALID)
def test_offsets_are_integers(text: bytes) -> None:
    assert marked(op(text)) == marked(cancel(text.decode())) == [VALID[text]]


@pytest.mark.parametrize("text", INVALID)
def test_other_texts_are_not_offsets(text: bytes) -> None:
    assert marked(op(b"1," + text + b",2")) == [1, 2]
    assert marked(cancel(text.decode(errors="replace"))) == []


def test_invalid_text_does_not_hide_the_next_offset() -> None:
    assert marked(op(b"\xe4,6,\xf0\x9f,7\xff,8")) == [6, 8]


@given(
    st.sampled_from([0, 1, 16_383, 16_384, 10**10 * 16_384, 2**53 + 1, 2**63 - 1]) | st.integers(0, 2**63 - 1),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)
def test_position_buckets_equal_the_declared_function(offset: int, broker: str) -> None:
    half, timer = positions(
        record(HALF_TOPIC, {}, queue_offset=offset, broker=broker), cancel(str(offset)) | {"broker": broker}
    )
    assert half["bucket"] == record_positions.position_bucket("half", broker, offset)
    assert timer["bucket"] == record_positions.position_bucket("timer", broker, offset)


def test_negative_offsets_have_no_position() -> None:
    assert positions(record(HALF_TOPIC, {}, queue_offset=-1), record(TIMER_TOPIC, {}, queue_offset=None)) == []


# --- hostile records ---

TEXTS = st.sampled_from(["", "d", "0", "5", "-1", ID, ID.lower(), ID + "\n", "é" * 32, "\0"]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=40
)
TIMES = st.none() | st.sampled_from([-(2**63), -1, 0, 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1)
PROPERTY_NAMES = (UNIQ_KEY, TAGS, DELAY, TIMER_CANCELS, TIMER_DEL_UNIQKEY, *messages.DELAYS, "KEYS")
PROPERTIES = st.lists(st.tuples(st.sampled_from(PROPERTY_NAMES), st.none() | TEXTS), max_size=6)
RECORDS = st.fixed_dictionaries(
    {
        "topic": st.none() | st.sampled_from([HALF_TOPIC, OP_HALF_TOPIC, TIMER_TOPIC, "T"]),
        "broker": st.none() | TEXTS,
        "queue_id": st.none() | st.sampled_from([0, 1, -1, 2**31 - 1]),
        "queue_offset": st.none() | st.integers(-(2**63), 2**63 - 1),
        "message_id": st.none() | TEXTS,
        "body": st.none() | st.binary() | st.lists(st.sampled_from([*VALID, *INVALID])).map(b",".join),
        "properties": st.none() | PROPERTIES,
        "born_timestamp": TIMES,
        "store_timestamp": TIMES,
    }
)


@given(st.lists(RECORDS, max_size=5))
def test_no_record_fails_a_batch(rows: list[Row]) -> None:
    decoded = messages.decode(table(rows))
    check_types(decoded)
    assert len(decoded[MESSAGES.name]) == len(rows)
    assert decoded[MESSAGES.name]["bucket"].null_count == decoded[RECORD_POSITIONS.name]["bucket"].null_count == 0
