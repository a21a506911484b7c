"""Written data is decoded unchanged, and decoding never crashes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ariane.errors import ProtocolError
from ariane.protocol import command, fastjson, java_properties
from ariane.protocol.frame import Frame, FrameReader
from ariane.protocol.records import batch, properties, record

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=20)
HOSTS = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)


@given(
    st.integers(0, 32767),
    INT32,
    st.integers(0, 3),
    st.dictionaries(WORDS, WORDS, max_size=8),
    TEXT,
    st.binary(max_size=200),
    st.sampled_from([0, 1]),
)
def test_commands_survive_a_round_trip(
    code: int, opaque: int, flag: int, fields: dict[str, str], remark: str, body: bytes, form: int
) -> None:
    data = b"".join(command.encode(code, opaque=opaque, flag=flag, fields=fields, remark=remark, body=body, form=form))
    (frame,) = FrameReader().feed(data)
    result = command.decode(frame)
    assert (result.code, result.opaque, result.flag, result.body, result.remark or "") == (
        code,
        opaque,
        flag,
        body,
        remark,
    )
    assert result.field_map() == fields


@given(st.binary(max_size=300), st.sampled_from([0, 1]))
def test_any_header_is_decoded_or_rejected(data: bytes, form: int) -> None:
    try:
        command.decode(Frame(form, data, b"")).field_map()
    except ProtocolError as error:
        assert str(error)


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_any_stream_is_split_into_frames_or_rejected(pieces: list[bytes]) -> None:
    reader = FrameReader(frame_max=1024)
    try:
        for piece in pieces:
            for frame in reader.feed(piece):
                assert len(frame.header) + len(frame.body) <= 1024
            assert reader.waiting <= 1024 + 60
    except ProtocolError as error:
        assert str(error)


JSON = st.recursive(
    st.none() | st.booleans() | INT64 | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def without_null_members(value: object) -> object:
    """Return a value without null members, which fastjson does not write."""
    if isinstance(value, dict):
        return {key: without_null_members(item) for key, item in value.items() if item is not None}
    return [without_null_members(item) for item in value] if isinstance(value, list) else value


@given(JSON)
def test_fastjson_values_survive_a_round_trip(value: object) -> None:
    assert fastjson.read(fastjson.write(value)) == without_null_members(value)
    assert fastjson.read(fastjson.write(value, pretty=True)) == without_null_members(value)


@given(st.text(max_size=60))
def test_any_fastjson_is_decoded_or_rejected(text: str) -> None:
    try:
        fastjson.read(text.encode("utf-8", "surrogatepass"))
    except ProtocolError as error:
        assert str(error)


@given(st.dictionaries(WORDS, WORDS, max_size=8))
def test_message_properties_survive_a_round_trip(values: dict[str, str]) -> None:
    assert properties.decode(properties.encode(values)) == values


PLAIN = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=10)


@given(st.dictionaries(PLAIN, PLAIN, max_size=8))
def test_properties_files_survive_a_round_trip(values: dict[str, str]) -> None:
    assert java_properties.parse(java_properties.write(values)) == values


@given(st.text(max_size=60))
def test_any_properties_file_is_parsed_or_rejected(text: str) -> None:
    try:
        java_properties.parse(text)
    except ProtocolError as error:
        assert str(error)


@given(st.lists(st.tuples(INT32, st.binary(max_size=50), TEXT), max_size=6))
def test_batches_survive_a_round_trip(entries: list[tuple[int, bytes, str]]) -> None:
    batch_entries = [batch.BatchEntry(*entry) for entry in entries]
    assert batch.decode(batch.encode(batch_entries)) == batch_entries


@given(
    st.binary(max_size=100),
    TEXT.filter(lambda t: len(t.encode()) <= 127),
    TEXT,
    HOSTS,
    HOSTS,
    INT32,
    INT64,
    INT64,
    st.integers(0, 15),
)
def test_records_survive_a_round_trip(
    body: bytes, topic: str, text: str, born: bytes, store: bytes, number: int, offset: int, time: int, flags: int
) -> None:
    data = record.encode(
        topic.encode(), body, text.encode(), queue_id=number, queue_offset=offset, offset=offset, born_ms=time,
        born_host=born, store_ms=time, store_host=store, flag=number, sys_flag=flags, reconsume_times=number,
        prepared_offset=offset,
    )  # fmt: skip
    result = record.decode(data)
    assert (result.size, result.body, result.topic, result.properties, result.crc_is_right()) == (
        len(data),
        body,
        topic,
        text,
        True,
    )
    assert (result.born_host, result.store_host, result.queue_id, result.offset, result.born_ms) == (
        born,
        store,
        number,
        offset,
        time,
    )
    assert result.sys_flag & 15 == flags


@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_as_a_record_or_rejected(data: bytes) -> None:
    try:
        record.decode(data)
    except ProtocolError as error:
        assert str(error)
