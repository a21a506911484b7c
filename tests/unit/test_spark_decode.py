"""Records to Arrow: the fast decoder equals the row-by-row decoder."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ariane.errors import ProtocolError
from ariane.model import host
from ariane.protocol.records import compression, properties, record
from ariane.spark.records import arrow_decoder, record_columns
from ariane.spark.records.property_texts import PropertyTexts

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=8)
V4, V6 = host.pack("10.0.0.1", 10911), host.pack("2001:db8::1", 10911)

NAMES = [
    "KEYS", "TAGS", "UNIQ_KEY", "x", "DELAY", "__STARTDELIVERTIME", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC",
    "TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "TRANSACTION_CHECK_TIMES", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID",
]  # fmt: skip
FLAGS = {"zlib": compression.ZLIB_FLAGS, "lz4": 0x101, "zstd": 0x201}

ROWS = st.builds(
    dict,
    body=st.binary(max_size=60),
    topic=st.sampled_from(["T", "a_long-topic%name", "RMQ_SYS_TRANS_HALF_TOPIC"]),
    own=st.dictionaries(st.sampled_from(NAMES), WORDS | st.integers(0, 2**40).map(str) | st.just("true"), max_size=6),
    number=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**62),
    ms=st.integers(-(2**62), 2**62),
    packed=st.sampled_from(["", "", "zlib", "lz4", "zstd"]),
    state=st.sampled_from([0, 0x4, 0x8, 0xC]),
    born=st.sampled_from([V4, host.pack("10.0.0.2", 80)]),
)


def encoded(row: dict, *, born: bytes | None = None, sys_flag: int = 0, body: bytes | None = None) -> bytes:  # type: ignore[type-arg]
    return record.encode(
        row["topic"].encode(), row["body"] if body is None else body, properties.encode(row["own"]).encode(),
        queue_id=row["number"], queue_offset=row["offset"], offset=row["offset"], born_ms=row["ms"],
        born_host=born or row["born"], store_ms=row["ms"], store_host=V4, flag=-row["number"],
        reconsume_times=row["number"], sys_flag=sys_flag | row.get("state", 0), prepared_offset=-row["offset"],
    )  # fmt: skip


@given(st.lists(ROWS, max_size=12))
def test_both_decoders_give_the_same_table(rows: list[dict]) -> None:  # type: ignore[type-arg]
    data = b"".join(map(as_asked, rows))
    columns = list(record_columns.COLUMNS)
    fast = arrow_decoder.decode(data, "broker-a", columns)
    slow = arrow_decoder._decode_rows(list(record.decode_all(data)), "broker-a", columns)
    fast.validate(full=True)
    assert fast.equals(slow)  # as Arrow: Python's own times end with the year 9999
    assert fast["body"].to_pylist() == [row["body"] for row in rows]
    assert arrow_decoder.scan(data).queue_offsets.tolist() == [row["offset"] for row in rows]


@given(st.lists(ROWS, max_size=6), st.lists(st.sampled_from(list(record_columns.COLUMNS)), min_size=1, unique=True))
def test_a_subset_of_columns_equals_those_of_a_full_decode(rows: list[dict], columns: list[str]) -> None:  # type: ignore[type-arg]
    data = b"".join(map(as_asked, rows))
    every = arrow_decoder.decode(data, "b", list(record_columns.COLUMNS))
    assert arrow_decoder.decode(data, "b", columns).equals(every.select(columns))
    assert arrow_decoder._decode_rows(list(record.decode_all(data)), "b", columns).equals(every.select(columns))


def as_asked(row: dict) -> bytes:  # type: ignore[type-arg]
    """The record of a generated row, its body compressed if it says so."""
    if not row["packed"]:
        return encoded(row)
    return encoded(row, sys_flag=FLAGS[row["packed"]], body=packed(row["packed"], row["body"]))


def packed(how: str, body: bytes) -> bytes:
    if how == "zlib":
        return compression.compress(body)[0]
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, how) as stream:
        stream.write(body)
    return sink.getvalue().to_pybytes()


def one(**more: object) -> dict:  # type: ignore[type-arg]
    return {"body": b"body", "topic": "T", "own": {}, "number": 1, "offset": 7, "ms": 5, "born": V4, **more}


def test_records_with_ipv6_hosts_are_decoded_row_by_row_in_order() -> None:
    packed = encoded(one(offset=8), sys_flag=compression.ZLIB_FLAGS, body=compression.compress(b"large" * 1000)[0])
    data = encoded(one(offset=7)) + packed + encoded(one(offset=9), born=V6)
    rows = arrow_decoder.decode(data, "b", ["queue_offset", "body", "born_host"]).to_pylist()
    assert [row["queue_offset"] for row in rows] == [7, 8, 9]
    assert rows[1]["body"] == b"large" * 1000
    assert rows[2]["born_host"] == "[2001:db8::1]:10911"


def test_ids_keys_and_absent_values_are_decoded() -> None:
    data = encoded(one(own={"UNIQ_KEY": "U", "KEYS": "a b"})) + encoded(one(offset=8))
    rows = arrow_decoder.decode(
        data, "b", ["message_id", "offset_message_id", "keys", "tags", "properties"]
    ).to_pylist()
    assert rows[0]["message_id"] == "U"
    assert (rows[0]["keys"], rows[0]["tags"]) == ("a b", None)
    assert rows[1]["message_id"] == rows[1]["offset_message_id"] == V4.hex().upper() + f"{8:016X}"
    assert rows[1]["properties"] == []


def test_records_at_the_end_offset_and_beyond_are_omitted() -> None:
    data = b"".join(encoded(one(offset=n)) for n in range(5))
    assert arrow_decoder.decode(data, "b", ["queue_offset"], end=3)["queue_offset"].to_pylist() == [0, 1, 2]
    assert arrow_decoder.decode(data, "b", ["queue_offset"], end=0).num_rows == 0
    assert arrow_decoder.decode(b"", "b", ["queue_offset"]).schema == pa.schema([("queue_offset", pa.int64())])


def test_corrupt_bytes_are_an_error_and_never_fewer_rows() -> None:
    data = encoded(one())
    for broken in (data[:-1], data + b"x", b"\0" * 100, data[:84] + b"\x7f" + data[85:]):
        with pytest.raises(ProtocolError):
            arrow_decoder.decode(broken, "b", list(record_columns.COLUMNS))
    compressed = encoded(one(), sys_flag=compression.ZLIB_FLAGS)
    for data in (compressed, compressed + encoded(one(offset=8), born=V6)):  # both ways
        with pytest.raises(ProtocolError, match="queue 1 offset 7"):
            arrow_decoder.decode(data, "b", ["body"])
        assert (
            arrow_decoder.decode(data, "b", ["queue_offset"]).num_rows >= 1
        )  # a body that is not requested causes no error


def test_invalid_utf8_is_reported_with_its_record() -> None:
    bad = encoded(one(topic="Txx")).replace(b"Txx", b"T\xff\xff")
    with pytest.raises(ProtocolError, match="queue 1 offset 7: .*UTF-8"):
        arrow_decoder.decode(encoded(one(offset=6)) + bad, "b", ["topic"])


def test_a_negative_properties_length_does_not_truncate_a_record() -> None:
    own = "x\x01" + "v" * 32765
    long = encoded(one(own={"x": own[2:]}))
    assert arrow_decoder.decode(long, "b", ["properties"])["properties"].to_pylist() == [[("x", own[2:])]]
    position = len(long) - len(own) - 2
    broken = (len(long) + 1).to_bytes(4, "big") + long[4:position] + b"\x80\x00" + long[position + 2 :] + b"v"
    with pytest.raises(ProtocolError):
        arrow_decoder.decode(broken, "b", ["queue_offset"])


def test_a_time_out_of_range_is_null() -> None:
    data = b"".join(encoded(one(ms=ms)) for ms in (5, 2**62, -(2**63), 2**63 - 1))
    times = arrow_decoder.decode(data, "b", ["born_timestamp"])["born_timestamp"]
    assert times.cast(pa.int64()).to_pylist() == [5000, None, None, None]


RAW = st.text(st.sampled_from("\x01\x01\x02\x02\0KäTAGS"), max_size=14)


@given(st.lists(RAW, max_size=8))
def test_properties_decoded_in_bulk_equal_those_decoded_individually(texts: list[str]) -> None:
    result = PropertyTexts(pa.array(texts, pa.string()))
    each = [properties.decode(text) for text in texts]
    maps = result.maps()
    maps.validate(full=True)
    assert [dict(pairs) for pairs in maps.to_pylist()] == each
    for name in ("K", "KK", "TAGS", "ä"):
        values = result.values(name)
        values.validate(full=True)
        assert values.to_pylist() == [own.get(name) for own in each]


def test_more_property_names_than_bits_and_duplicates_are_decoded() -> None:
    names = [f"n{n}\x01{n}" for n in range(60)]
    texts = ["\x02".join(names), "\x02".join([*names, "n7\x01again"])]
    assert PropertyTexts(pa.array(texts[:1])).maps().to_pylist() == [list(properties.decode(texts[0]).items())]
    assert dict(PropertyTexts(pa.array(texts)).maps().to_pylist()[1])["n7"] == "again"


@given(st.lists(st.tuples(ROWS, st.booleans()), max_size=6), st.integers(0, 200))
def test_records_are_found_although_a_body_contains_records(rows: list[tuple[dict, bool]], cut: int) -> None:  # type: ignore[type-arg]
    inner = encoded(one())
    complete = [encoded(row, body=row["body"] + inner if nested else None) for row, nested in rows]
    data = b"".join(complete)
    assert arrow_decoder.find_records(data).tolist() == [sum(map(len, complete[:n])) for n in range(len(complete))]
    if cut % max(len(data), 1) not in {sum(map(len, complete[:n])) for n in range(len(complete) + 1)}:
        with pytest.raises(ProtocolError):
            arrow_decoder.find_records(data[: cut % len(data)])


@pytest.mark.parametrize("how", ["zlib", "lz4", "zstd"])
def test_a_corrupt_compressed_body_is_an_error_or_null_with_the_reason(how: str) -> None:
    broken = encoded(one(), sys_flag=FLAGS[how], body=packed(how, bytes(range(256)) * 9)[:-9])
    data = encoded(one(offset=6)) + broken
    for more in (b"", encoded(one(offset=8), born=V6)):  # both ways
        with pytest.raises(ProtocolError, match="queue 1 offset 7: .*body_error"):
            arrow_decoder.decode(data + more, "b", ["body"])
        rows = arrow_decoder.decode(data + more, "b", ["body", "body_error"]).to_pylist()
        assert rows[0] == {"body": b"body", "body_error": None}
        assert rows[1]["body"] is None
        assert rows[1]["body_error"]
        lengths = arrow_decoder.decode(data + more, "b", ["body_length", "body_error"]).to_pylist()
        assert [row["body_length"] for row in lengths[:2]] == [4, None]
        assert lengths[1]["body_error"] == rows[1]["body_error"]
    assert "body_error" not in record_columns.DDL
    assert "body_length" not in record_columns.DDL


@pytest.mark.parametrize("how", ["", "zlib", "zstd"])
@pytest.mark.parametrize("born", [V4, V6])
def test_the_length_is_that_of_the_expanded_body(how: str, born: bytes) -> None:
    body = bytes(300)
    sizes = encoded(one(offset=8), body=b"") + encoded(
        one(), sys_flag=FLAGS.get(how, 0), body=packed(how, body) if how else body, born=born
    )
    assert arrow_decoder.decode(sizes, "b", ["body_length"]).to_pydict() == {"body_length": [0, 300]}
    assert arrow_decoder.decode(sizes, "b", ["body_length", "body"]).to_pydict() == {
        "body_length": [0, 300],
        "body": [b"", body],
    }


def test_delayed_and_transactional_records_fill_their_columns() -> None:
    def row(own: dict[str, str], topic: str = "T", sys_flag: int = 0) -> dict:  # type: ignore[type-arg]
        columns = [
            "delay_level", "deliver_at", "real_topic", "real_queue_id", "transaction_state", "transaction_id", "check_times",
            "producer_group", "unique_key",
        ]  # fmt: skip
        (result,) = arrow_decoder.decode(
            encoded(one(own=own, topic=topic, ms=1000), sys_flag=sys_flag), "b", columns
        ).to_pylist()
        return {name: value for name, value in result.items() if value is not None}

    kept = row({"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "2"}, "SCHEDULE_TOPIC_XXXX")
    assert kept == {"delay_level": 3, "real_topic": "T", "real_queue_id": 2, "transaction_state": "none"}
    assert row({"TIMER_DELIVER_MS": "7000", "TIMER_OUT_MS": "7001"})["deliver_at"].timestamp() == 7.001
    assert row({"TIMER_DELAY_SEC": "4"})["deliver_at"].timestamp() == 5  # counted from when it was stored
    assert "deliver_at" not in row({"TIMER_DELAY_SEC": "soon"})
    half = {"TRAN_MSG": "true", "UNIQ_KEY": "U", "PGROUP": "g", "TRANSACTION_CHECK_TIMES": "2"}
    reported = {"transaction_id": "U", "unique_key": "U", "producer_group": "g", "check_times": 2}
    assert row(half, "RMQ_SYS_TRANS_HALF_TOPIC") == {**reported, "transaction_state": "prepared"}
    assert row(half, sys_flag=0x8) == {**reported, "transaction_state": "commit"}
    assert row({"DELAY": "99999999999"}) == {"transaction_state": "none"}
