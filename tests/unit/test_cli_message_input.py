"""Input of `ariane cat -P`: splitting into records, and messages of bodies and of JSON objects."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ariane.cli.messages.message_input import (
    MessageTemplate,
    RecordSplitter,
    parse_delimiter,
    parse_duration_ms,
    parse_escapes,
)
from ariane.errors import MessageRefused, UsageError
from ariane.model.message import Message

NOW_MS = 1_763_800_000_000
TEMPLATE = MessageTemplate(topic="T")


def split(chunks: list[bytes], delimiter: bytes = b"\n", size_max: int = 100) -> list[bytes]:
    splitter = RecordSplitter(delimiter, size_max=size_max)
    records = [record for chunk in chunks for record in splitter.feed(chunk)]
    rest = splitter.finish()
    return records if rest is None else [*records, rest]


def from_json(template: MessageTemplate = TEMPLATE, **fields: object) -> Message:
    return template.from_json(json.dumps(fields).encode(), NOW_MS)


@given(st.binary(max_size=60), st.sampled_from([b"\n", b"\0", b"--", b"aba"]), st.integers(1, 9))
def test_records_do_not_depend_on_the_chunks(data: bytes, delimiter: bytes, size: int) -> None:
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    expected = data.split(delimiter)
    if not expected[-1]:
        expected.pop()
    assert split(chunks, delimiter) == expected


def test_only_the_last_record_may_lack_the_delimiter() -> None:
    assert split([b"a\n\nb"]) == [b"a", b"", b"b"]
    assert split([b"a\n"]) == [b"a"]
    assert split([]) == []
    assert split([b"\xff\0\r\n\xfe"]) == [b"\xff\0\r", b"\xfe"]


@pytest.mark.parametrize("chunks", [[b"x" * 11 + b"\n"], [b"x" * 6, b"x" * 6], [b"x" * 11]])
def test_a_record_that_is_too_large_is_refused(chunks: list[bytes]) -> None:
    assert split([b"x" * 10 + b"\n"], size_max=10) == [b"x" * 10]
    with pytest.raises(MessageRefused, match="more than 10 bytes without a delimiter"):
        split(chunks, size_max=10)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\n", b"\n"), (r"\t\0\r", b"\t\0\r"), (r"\x1f\xFf", b"\x1f\xff"), (r"\\n", b"\\n"), ("é", "é".encode()), ("", b""),
    ],
)  # fmt: skip
def test_escapes(text: str, expected: bytes) -> None:
    assert parse_escapes(text, "-D") == expected


@pytest.mark.parametrize(
    ("text", "reason"), [(r"\q", r"unknown escape \\q"), (r"\x1", r"unknown escape \\x"), ("a\\", "single backslash")]
)
def test_unknown_escapes_are_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_escapes(text, "-D")


def test_an_empty_delimiter_is_refused() -> None:
    with pytest.raises(UsageError, match="empty delimiter"):
        parse_delimiter("", "--delimiter")


@pytest.mark.parametrize(("text", "ms"), [("10s", 10_000), ("1.5m", 90_000), ("2h", 7_200_000), ("1d", 86_400_000)])
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text, "--delay") == ms


@pytest.mark.parametrize("text", ["", "5", "5x", "-5s", "0s", "1e3s", "9999999999s"])
def test_invalid_durations(text: str) -> None:
    with pytest.raises(UsageError, match="followed by s, m, h or d"):
        parse_duration_ms(text, "--delay")


def test_a_key_delimiter_separates_keys_and_body() -> None:
    template = MessageTemplate(topic="T", keys=("all",), key_delimiter=b":", tags="t", properties={"p": "1"})
    message = template.from_body(b"k1 k2:a:b", NOW_MS)
    assert (list(message.keys), message.body, message.tags, message.properties) == (
        ["all", "k1", "k2"], b"a:b", "t", {"p": "1"},
    )  # fmt: skip
    assert template.from_body(b"no delimiter", NOW_MS).body == b"no delimiter"
    with pytest.raises(MessageRefused, match="expected UTF-8"):
        template.from_body(b"\xff:a", NOW_MS)


def test_a_delay_counts_from_the_time_of_sending() -> None:
    assert MessageTemplate(topic="T", delay_ms=5_000).from_body(b"x", NOW_MS).deliver_at_ms == NOW_MS + 5_000
    assert MessageTemplate(topic="T", deliver_at_ms=7).from_body(b"x", NOW_MS).deliver_at_ms == 7
    assert MessageTemplate(topic="T", delay_level=3).from_body(b"x", NOW_MS).delay_level == 3


def test_a_json_object_sets_every_field_of_a_message() -> None:
    message = from_json(body="é", keys=["a", "b"], tags="t", properties={"p": "1"}, flag=7, delay_level=2)
    assert message == Message(
        topic="T", body="é".encode(), keys=["a", "b"], tags="t", properties={"p": "1"}, flag=7, delay_level=2
    )
    assert from_json(body_base64="/wA=").body == b"\xff\0"
    assert from_json(body="x", keys="a b").keys == ["a", "b"]


@pytest.mark.parametrize(
    ("fields", "delay_level", "deliver_at_ms"),
    [
        ({"delay": "10s"}, 0, NOW_MS + 10_000),
        ({"delay_level": 4}, 4, 0),
        ({"deliver_at": NOW_MS + 1}, 0, NOW_MS + 1),
        ({"deliver_at": "2025-11-22T08:26:41"}, 0, NOW_MS + 1_000),
        ({}, 0, NOW_MS + 60_000),
    ],
)
def test_a_delay_in_json_replaces_that_of_the_command_line(fields, delay_level: int, deliver_at_ms: int) -> None:
    message = from_json(MessageTemplate(topic="T", delay_ms=60_000), body="x", **fields)
    assert (message.delay_level, message.deliver_at_ms) == (delay_level, deliver_at_ms)


def test_json_adds_to_what_the_command_line_sets() -> None:
    template = MessageTemplate(topic="T", tags="t", keys=("k",), properties={"a": "1", "b": "1"})
    message = from_json(template, body="x", properties={"b": "2"})
    assert (message.tags, message.keys, message.properties) == ("t", ["k"], {"a": "1", "b": "2"})
    assert from_json(template, body="x", tags="u", keys=["v"]).tags == "u"


def test_positions_of_a_consumed_message_are_ignored() -> None:
    message = from_json(
        body="x", topic="other", broker="b", queue=3, offset=9, message_id="ID", system_properties={"A": "1"}
    )
    assert message == Message(topic="T", body=b"x", keys=[])


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"{", "not a JSON object"),
        (b"\xff", "not a JSON object"),
        (b"[1]", "type list: expected an object"),
        (b"{}", "exactly one of the fields body"),
        (b'{"body":"x","body_base64":"eA=="}', "exactly one of the fields body"),
        (b'{"body":1}', "body = 1: expected a text"),
        (b'{"body_base64":"?"}', "body_base64: "),
        (b'{"body":"\\ud800"}', "lone surrogate"),
        (b'{"body":"x","keyz":["a"]}', "unknown field 'keyz': expected body, "),
        (b'{"body":"x","keys":[1]}', "expected a list of texts"),
        (b'{"body":"x","tags":1}', "tags = 1: expected a text"),
        (b'{"body":"x","properties":{"a":1}}', "expected texts as values"),
        (b'{"body":"x","flag":true}', "flag = True: expected a whole number"),
        (b'{"body":"x","delay":"5x"}', "delay = '5x'"),
        (b'{"body":"x","delay":"5s","delay_level":1}', "both delay and delay_level"),
        (b'{"body":"x","deliver_at":"soon"}', "deliver_at = 'soon'"),
        (b'{"body":"x","deliver_at":1.5}', "expected ms since the epoch"),
        (b'{"body":"x","body_error":"unknown compression"}', "could not be decompressed"),
    ],
)
def test_invalid_json_is_refused(record: bytes, reason: str) -> None:
    with pytest.raises(MessageRefused, match=reason):
        TEMPLATE.from_json(record, NOW_MS)


def test_deeply_nested_json_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(MessageRefused, match="not a JSON object"):
        TEMPLATE.from_json(b"[" * 200_000, NOW_MS)
