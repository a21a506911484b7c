"""Columns to messages: the same bytes as the encoder for one message, for any rows."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ariane.errors import MessageRefused
from ariane.model import dedup, ids
from ariane.protocol.records import batch, properties
from ariane.spark.write import message_encoder
from ariane.spark.write.sink_options import parse

NOW_MS = 1_760_000_000_123
NAMES = message_encoder.row_ids("run-1", 7, 3, NOW_MS)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("body", pa.binary()), ("tags", pa.string()), ("keys", pa.string()), ("properties", pa.map_(pa.string(), pa.string())),
        ("delay_level", pa.int32()), ("deliver_at", pa.timestamp("us", "UTC")), ("flag", pa.int32()),
    ]
)  # fmt: skip

words = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=8)
own = st.dictionaries(
    words.filter(lambda name: name and name not in message_encoder.RESERVED_PROPERTIES),
    words.filter(bool) | st.none(),
    max_size=3,
)
delays = st.one_of(
    st.just((None, None)), st.tuples(st.integers(0, 18), st.none()), st.tuples(st.none(), st.integers(10**13, 2**50))
)
row = st.tuples(
    st.binary(min_size=1, max_size=20), st.none() | words, st.none() | words, st.none() | own, delays,
    st.none() | st.integers(-(2**31), 2**31 - 1),
)  # fmt: skip


def options(**given: str) -> Any:
    return parse({"namesrv": "127.0.0.1:9876", "topic": "T", **given})


def frame(rows: list[Any]) -> pa.RecordBatch:
    table = [
        {
            "body": body, "tags": tags, "keys": keys, "properties": None if table is None else list(table.items()),
            "delay_level": level, "deliver_at": None if at is None else EPOCH + timedelta(microseconds=at), "flag": flag,
        }
        for body, tags, keys, table, (level, at), flag in rows
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(table, schema=SCHEMA)


def one(row: Any, sequence: int) -> batch.BatchEntry:
    """A row as a message, without Arrow."""
    body, tags, keys, table, (level, at), flag = row
    month_ms = ids.month_start_ms(NOW_MS - NOW_MS % 86_400_000)
    elapsed_ms = NOW_MS - NOW_MS % 86_400_000 - month_ms + (sequence >> 16)
    text = {
        "UNIQ_KEY": f"{NAMES.id_prefix}{elapsed_ms:08X}{sequence & 0xFFFF:04X}",
        "WAIT": "true",
        "ARIANE_DEDUP": dedup.text(dedup.Row("run-1", 7, 3, sequence)),
    }
    text |= {"TAGS": tags} if tags else {}
    text |= {"KEYS": keys} if keys else {}
    text |= {"DELAY": str(level)} if level else {}
    if at is not None:
        text |= {"__STARTDELIVERTIME": str(at // 1000), "TIMER_DELIVER_MS": str(at // 1000)}
    text |= {name: value for name, value in (table or {}).items() if value is not None}
    return batch.BatchEntry(flag or 0, body, properties.encode(text))


@settings(max_examples=150, deadline=None)
@given(st.lists(row, min_size=1, max_size=12), st.integers(0, 2**40), st.data())
def test_the_bytes_equal_those_of_the_encoder_for_one_message(rows: list[Any], first: int, data: Any) -> None:
    padding = data.draw(st.integers(0, 3))  # a slice begins within its buffers
    table = frame([*rows[:1] * padding, *rows]).slice(padding)
    result = message_encoder.encode(table, NAMES, first, options())
    order = np.array(data.draw(st.permutations(range(len(rows)))), np.int64)
    joined = b"".join(message_encoder.batch_entries(result, order).to_pylist())
    assert joined == batch.encode([one(rows[position], first + position) for position in order.tolist()])
    assert [bool(level) or position is not None for *_, (level, position), _ in rows] == result.single.tolist()
    assert result.sizes.sum() == len(joined)


def test_a_text_column_can_be_the_body_and_large_bodies_are_sent_separately() -> None:
    table = pa.RecordBatch.from_pydict({"body": ["ä", "x" * 10]})
    result = message_encoder.encode(table, NAMES, 0, options(compressionThreshold="10"))
    assert result.bodies.to_pylist() == ["ä".encode(), b"x" * 10]
    assert result.single.tolist() == [False, True]


def test_unique_ids_repeat_within_a_day_and_differ_between_partitions() -> None:
    assert message_encoder.row_ids("run-1", 7, 3, NOW_MS + 3_600_000) == NAMES
    others = [message_encoder.row_ids(*where, NOW_MS) for where in (("run-2", 7, 3), ("run-1", 8, 3), ("run-1", 7, 4))]
    assert len({item.id_prefix for item in [NAMES, *others]}) == 4


def refused(column: str, value: Any, **given: str) -> str:
    good: dict[str, Any] = {"body": b"x"}
    table = pa.RecordBatch.from_pylist(
        [good, good | {column: value}], schema=pa.schema([SCHEMA.field(name) for name in {"body": 0, column: 0}])
    )
    with pytest.raises(MessageRefused) as caught:
        message_encoder.encode(table, NAMES, 40, options(**given))
    return str(caught.value)


def test_rows_that_a_broker_would_reject_or_change_are_rejected() -> None:
    assert refused("body", None) == "row run-1/7/3/41: the body is null or empty, which brokers reject"
    assert "maxMessageSize, 9 bytes" in refused("body", b"x" * 10, maxMessageSize="9")
    assert "row run-1/7/3/41: tags contains U+0001" in refused("tags", "a\x01b")
    assert "keys contains U+0001" in refused("keys", "a\x02b")
    assert "the property UNIQ_KEY: reserved by the protocol" in refused("properties", [("UNIQ_KEY", "1")])
    assert "the property ARIANE_DEDUP" in refused("properties", [("a", "1"), ("ARIANE_DEDUP", "1")])
    assert "empty value" in refused("properties", [("a", "")])
    assert "the name of a property contains" in refused("properties", [("a\x01", "b")])
    assert "larger than 32767 bytes" in refused("properties", [("a", "b" * 40_000)])
    assert "delay_level is negative" in refused("delay_level", -1)
    assert "before 1970" in refused("deliver_at", EPOCH)


def test_reserved_properties_are_dropped_on_request() -> None:
    table = pa.RecordBatch.from_pylist(
        [{"body": b"x", "properties": [("WAIT", "false"), ("a", "1"), ("UNIQ_KEY", "2")]}],
        schema=pa.schema([SCHEMA.field("body"), SCHEMA.field("properties")]),
    )
    (text,) = message_encoder.encode(table, NAMES, 0, options(dropReservedProperties="true")).properties.to_pylist()
    result = properties.decode(text.decode())
    assert (result["WAIT"], result["a"], result["UNIQ_KEY"][:20]) == ("true", "1", NAMES.id_prefix)


def test_a_large_record_batch_is_split_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_encoder, "ENCODE_BYTES_MAX", 100)
    table = pa.RecordBatch.from_pydict({"body": [b"%d" % number * 20 for number in range(50)]})
    parts = list(message_encoder.split_batch(table))
    assert len(parts) > 10
    assert pa.Table.from_batches(parts).column("body").to_pylist() == table.column("body").to_pylist()
