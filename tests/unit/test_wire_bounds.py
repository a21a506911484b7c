"""Costs of small or hostile frames, and what is reported about them."""

from __future__ import annotations

import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ariane.errors import ConfigError, ProtocolError
from ariane.nameserver import registration
from ariane.nameserver.config import NAME_SERVER_SETTINGS, NameServerConfig
from ariane.protocol import command, fastjson, java_properties, trace_codec
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.frame import Frame, FrameReader, OversizedFrame, prefix
from ariane.protocol.records import properties
from ariane.protocol.requests import JSON_BODY_MAX, LIBERAL_BODY_MAX, decode_header, decode_json_body
from ariane.protocol.requests.clients import HeartbeatData, LockBatch
from ariane.protocol.requests.routing import RegisterBroker, RouteRequest


def nested_keys(depth: int) -> bytes:
    return b"{" * depth + b'"a":1}' + b":1}" * (depth - 1)


class CountedTokens:
    """The tokens of the liberal reader, counted."""

    def __init__(self, token: object) -> None:
        self.count = 0
        self._token = token

    def match(self, text: str, at: int) -> object:
        self.count += 1
        return self._token.match(text, at)  # type: ignore[attr-defined]


@pytest.mark.parametrize("depth", [3, 25, 60])
def test_keys_nested_in_keys_are_rejected_after_a_few_tokens(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = CountedTokens(fastjson._TOKEN)
    monkeypatch.setattr(fastjson, "_TOKEN", tokens)
    with pytest.raises(ProtocolError, match="object as a key within"):
        command.decode(Frame(0, nested_keys(depth), b""))
    assert tokens.count < 10


def test_a_queue_as_a_key_is_accepted_unless_it_is_too_large() -> None:
    assert fastjson.read(b'{{"brokerName":"b","queueId":0,"topic":"t"}:5}') == {
        '{"brokerName":"b","queueId":0,"topic":"t"}': 5
    }
    with pytest.raises(ProtocolError, match="a key has"):
        fastjson.read(b'{{"a":"' + b"x" * fastjson.KEY_MAX + b'"}:5}')


@pytest.mark.parametrize("piece", [b"a:1,", b"[],", b"'\\n',", b"{},", b"1,", b'{{"a":1}:1},'])
def test_each_character_is_read_once(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = CountedTokens(fastjson._TOKEN)
    monkeypatch.setattr(fastjson, "_TOKEN", tokens)
    counts = []
    for times in (100, 1000):
        tokens.count = 0
        fastjson.read(b"{" + piece * times + b"a:1}" if piece == b"a:1," else b"[" + piece * times + b"1]")
        counts.append(tokens.count)
    assert counts[1] <= 10 * counts[0]


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"code":' + b"9" * 5000 + b"}",
        b'{"code":10,"opaque":"' + b"9" * 5000 + b'"}',
        b'{"code":10,"remark":"\xff"}',
        b"{code:" + b"9" * 5000 + b"}",
    ],
)
def test_headers_that_msgspec_cannot_decode_are_rejected(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        command.decode(Frame(0, header, b""))


@pytest.mark.parametrize("fields", [b'{"topic":"\xff"}', b'{"topic":' + b"[" * 2000 + b"]" * 2000 + b"}"])
def test_lazily_decoded_fields_are_rejected_when_they_are_typed(fields: bytes) -> None:
    request = Command(105, fields=msgspec.Raw(fields))
    with pytest.raises(ProtocolError):
        decode_header(request, RouteRequest)
    with pytest.raises(ProtocolError):
        request.field_map()


def test_a_large_header_is_parsed_as_strict_json_only() -> None:
    strict = b'{"code":10,"extFields":{"a":"' + b"x" * 200_000 + b'"}}'
    assert len(command.decode(Frame(0, strict, b"")).field_map()["a"]) == 200_000
    liberal = b"{code:10,extFields:{a:'" + b"x" * 200_000 + b"'}}"
    with pytest.raises(ProtocolError, match=f"at most {command.LIBERAL_HEADER_MAX}"):
        command.decode(Frame(0, liberal, b""))


def test_the_largest_valid_properties_fit_into_a_header_of_either_format() -> None:
    text = properties.join({"\x7f" * 3: "\x1f" * (properties.SIZE_MAX - 4)})
    assert len(text.encode()) == properties.SIZE_MAX
    for form in (0, 1):
        fields = {"i": text, "b": "t" * 127, "a": "g" * 255}
        (data,) = command.encode(310, opaque=1, flag=0, fields=fields, form=form)
        header = data[8:]
        assert len(header) < command.HEADER_MAX
        assert command.decode(Frame(form, header, b"")).field_map()["i"] == text


@pytest.mark.parametrize("form", [0, 1])
def test_the_request_number_of_an_oversized_header_is_decoded(form: int) -> None:
    (data,) = command.encode(310, opaque=77, flag=0, fields={"i": "x" * 300_000}, form=form)
    outline = command.outline(oversized(data))
    assert (outline.code, outline.opaque, outline.form, outline.field_map()) == (310, 77, form, {})


@pytest.mark.parametrize("header", [
    b'{"code":310,"extFields":{"a":%b},"flag":0,"language":"JAVA","opaque":77,"version":401}',  # Java
    b'{"code":310,"language":"GO","version":401,"opaque":77,"flag":0,"remark":"","extFields":{"a":%b}}',
])  # fmt: skip
def test_an_oversized_header_is_not_parsed(header: bytes) -> None:
    """A header of 15 MiB cost 0.1 s: all of it was buffered and parsed to read its request number."""
    header %= b'"opaque":1' * 200_000  # which no parser accepts
    outline = command.outline(oversized(prefix(0, len(header), 0) + header))
    assert (outline.code, outline.opaque, outline.version, outline.flag) == (310, 77, 401, 0)


def test_an_oversized_header_is_discarded_as_it_arrives() -> None:
    (data,) = command.encode(310, opaque=77, flag=0, fields={"i": "x" * 3_000_000})
    (small,) = command.encode(11, opaque=78, flag=0)
    reader = FrameReader()
    for start in range(0, len(data), 64 * 1024):
        assert reader.next_request(command.HEADER_MAX) is None
        reader.append((data + small)[start : start + 64 * 1024])
        frame = reader.next_request(command.HEADER_MAX)
        assert reader.waiting + len(reader.data) <= len(small)
    assert isinstance(frame, OversizedFrame) and command.outline(frame).opaque == 77
    request = reader.next_request(command.HEADER_MAX)
    assert isinstance(request, Frame) and command.decode(request).opaque == 78


@given(sizes=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 50)), max_size=6), step=st.integers(1, 3000))
def test_frames_between_oversized_ones_are_read_in_any_fragments(sizes: list[tuple[int, int]], step: int) -> None:
    headers = [(bytes(number % 251 for number in range(size)), b"b" * body) for size, body in sizes]
    data = b"".join(prefix(0, len(header), len(body)) + header + body for header, body in headers)
    reader, read = FrameReader(), []
    for start in range(0, len(data), step):
        reader.append(data[start : start + step])
        while (frame := reader.next_request(2000)) is not None:
            read.append(frame)
    assert len(read) == len(headers) and reader.release() and not reader.waiting
    for frame, (header, body) in zip(read, headers, strict=True):
        if len(header) <= 2000:
            assert frame == Frame(0, header, body)
        else:
            assert isinstance(frame, OversizedFrame)
            assert (frame.head, frame.tail, frame.header_size) == (header[:1024], header[-1024:], len(header))


def oversized(data: bytes) -> OversizedFrame:
    reader = FrameReader()
    reader.append(data)
    frame = reader.next_request(command.HEADER_MAX)
    assert isinstance(frame, OversizedFrame)
    return frame


def test_bodies_are_bounded_by_request_code_and_errors_name_the_request() -> None:
    with pytest.raises(ProtocolError, match=f"HEART_BEAT: body of {JSON_BODY_MAX + 1} bytes"):
        decode_json_body(RequestCode.HEART_BEAT, b" " * (JSON_BODY_MAX + 1), HeartbeatData)
    heartbeat = (
        b'{"clientID":"c","consumerDataSet":[],"producerDataSet":['
        + b'{"groupName":"g"},' * 20_000
        + b'{"groupName":"g"}]}'
    )
    assert len(heartbeat) > LIBERAL_BODY_MAX
    assert len(decode_json_body(RequestCode.HEART_BEAT, heartbeat, HeartbeatData).producers) == 20_001
    liberal = b"{clientId:'" + b"x" * LIBERAL_BODY_MAX + b"'}"
    with pytest.raises(ProtocolError, match="LOCK_BATCH_MQ.*only up to 65536"):
        decode_json_body(RequestCode.LOCK_BATCH_MQ, liberal, LockBatch)


def test_properties_bodies_are_bounded() -> None:
    assert java_properties.parse_body(b"a=1") == {"a": "1"}
    for body in (b"\xff", b"a=1\n" * 20_000, b"a=\\u12"):
        with pytest.raises(ProtocolError):
            java_properties.parse_body(body)


def test_trace_records_without_separators_are_split_in_linear_time() -> None:
    record = "\x01".join(("SubAfter", "req", "m", "1", "true", "k", "0")) + "\x01"
    events, rejects = trace_codec.decode((record * 50_000 + "SubAfter\x01\x02").encode())
    assert (len(events), len(rejects)) == (50_000, 1)


# --- registrations ---


def piece(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def register(data: bytes, *, is_compressed: bool) -> registration.RegisterBrokerBody:
    return registration.decode(RegisterBroker("a", "h:1", "C", "h:2", 0, is_compressed, 0), data, 401)


def compressed(topic: bytes, count: int = 1) -> bytes:
    return zlib.compress(piece(b"{}") + count.to_bytes(4, "big") + piece(topic) * min(count, 10) + piece(b"[]"))


@pytest.mark.parametrize(
    "topic",
    [
        "T ² 4 6 X",
        "T 4 4 \u0663 X",
        "T " + "9" * 5000 + " 4 6 X",
        "T 99999999 4 6 X",
        "T 4 4 16 X",
        "T 4 4 6 " + "X" * 65,
        "T",
    ],
)
def test_a_compressed_registration_with_invalid_numbers_is_rejected(topic: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        register(compressed(topic.encode()), is_compressed=True)
    assert len(str(refused.value)) < 400


def test_a_compressed_registration_with_too_many_topics_is_rejected_before_decoding() -> None:
    with pytest.raises(ProtocolError, match="2000000 topics"):
        register(compressed(b"T 4 4 6 X", 2_000_000), is_compressed=True)


def test_a_registration_that_expands_beyond_its_limit_is_rejected() -> None:
    with pytest.raises(ProtocolError, match=str(registration.EXPANDED_MAX)):
        register(zlib.compress(bytes(registration.EXPANDED_MAX + 1)), is_compressed=True)


@pytest.mark.parametrize("member", ["readQueueNums", "writeQueueNums", "perm", "topicSysFlag"])
@pytest.mark.parametrize("number", [10**30, -1, 2**31])
def test_queue_counts_of_a_plain_registration_are_bounded(member: str, number: int) -> None:
    body = f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{{"T":{{"topicName":"T","{member}":{number}}}}}}}}}'
    with pytest.raises(ProtocolError):
        register(body.encode(), is_compressed=False)


# --- settings of the name server ---


def test_unknown_settings_and_those_without_effect_are_rejected() -> None:
    config = NameServerConfig()
    for key, text in (
        ("noSuchKey", "1"),
        ("serverWorkerThreads", "8"),
        ("kvConfigPath", "/tmp/x"),
        ("orderMessageEnable", "yes"),
    ):
        with pytest.raises(ConfigError, match=key):
            NAME_SERVER_SETTINGS.change(config, {"orderMessageEnable": "true", key: text})
    assert NAME_SERVER_SETTINGS.change(config, {**NAME_SERVER_SETTINGS.texts(config), "orderMessageEnable": "true"})[
        0
    ].order_message_enable
