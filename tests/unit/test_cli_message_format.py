"""Output of `ariane cat`: bodies, format strings, JSON that can be sent again, and hexadecimal bytes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ariane.cli.messages.message_format import body_format, compile_format, format_time, hex_format, json_format
from ariane.cli.messages.message_input import MessageTemplate
from ariane.errors import UsageError
from ariane.model.message import MessageQueue, ReceivedMessage

SYSTEM = {"UNIQ_KEY": "ID", "CLUSTER": "c", "DELAY": "3", "TIMER_DELIVER_MS": "5", "WAIT": "true"}


def received(body: bytes = b"body", properties: dict[str, str] | None = None, **more: object) -> ReceivedMessage:
    values: dict[str, object] = {
        "topic": "T", "body": body, "properties": properties if properties is not None else {"KEYS": "a b", "TAGS": "t"},
        "queue": MessageQueue("T", "broker-a", 3), "queue_offset": 42, "commit_log_offset": 100, "message_id": "ID",
        "offset_message_id": "OID", "born_ms": 1_763_800_000_001, "born_host": "10.0.0.1:5", "store_ms": 1_763_800_000_123,
        "store_host": "10.0.0.2:10911", "reconsume_times": 1, "flag": 7, "sys_flag": 0, "stored_size": 99, **more,
    }  # fmt: skip
    return ReceivedMessage(**values)  # type: ignore[arg-type]


def test_bodies_are_printed_as_they_are() -> None:
    assert body_format(b"\n")(received(b"\xff\0")) == b"\xff\0\n"
    assert body_format(b"\0", b"|")(received()) == b"a b|body\0"
    assert body_format(b"")(received(properties={})) == b"body"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t %b %p %o", b"T broker-a 3 42"),
        ("%k|%g|%s|%S", b"a b|t|body|4"),
        ("%T %B %D", b"1763800000123 1763800000001 2025-11-22T08:26:40.123Z"),
        ("%i %I %r", b"ID OID 1"),
        ("%{KEYS},%{nothing},", b"a b,,"),
        (r"100%%\t%s\n\x00", b"100%\tbody\n\0"),
        (r"%%s\\%s", b"%s\\body"),
        ("", b""),
    ],
)
def test_format_strings(text: str, expected: bytes) -> None:
    assert compile_format(text)(received()) == expected


def test_a_format_prints_bodies_and_properties_that_are_not_text() -> None:
    message = received(b"\xff\n", {**SYSTEM, "p": "1", "q": "é"})
    assert compile_format("%s|%h")(message) == b"\xff\n|" + "p=1,q=é".encode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("%x", "unknown field %x; expected %t "),
        ("a%", "unknown field %;"),
        ("%{}", "names no property"),
        (r"\q", "unknown escape"),
    ],
)
def test_invalid_formats_are_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        compile_format(text)


def test_json_separates_properties_of_the_application_and_of_the_system() -> None:
    fields = json.loads(json_format(received(properties={**SYSTEM, "KEYS": "a b", "TAGS": "t", "p": "1"})))
    assert fields == {
        "topic": "T", "broker": "broker-a", "queue": 3, "offset": 42, "stored_at": "2025-11-22T08:26:40.123Z",
        "born_at": "2025-11-22T08:26:40.001Z", "born_host": "10.0.0.1:5", "message_id": "ID", "offset_message_id": "OID",
        "keys": ["a", "b"], "tags": "t", "properties": {"p": "1"}, "system_properties": SYSTEM, "flag": 7,
        "reconsume_times": 1, "body": "body",
    }  # fmt: skip
    assert json.loads(json_format(received(body_error="unknown compression")))["body_error"] == "unknown compression"


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\1\2"), min_size=1, max_size=8)


@given(st.binary(min_size=1), st.dictionaries(TEXTS.map("x".__add__), TEXTS), st.integers(-(2**31), 2**31 - 1))
def test_json_output_is_json_input(body: bytes, properties: dict[str, str], flag: int) -> None:
    message = received(body, {**SYSTEM, **properties, "KEYS": "k1 k2", "TAGS": "t"}, flag=flag)
    line = json_format(message)
    assert line.count(b"\n") == 1
    repeated = MessageTemplate(topic="copy").from_json(line, 0)
    assert (repeated.topic, repeated.body, list(repeated.keys), repeated.tags, repeated.properties, repeated.flag) == (
        "copy", body, ["k1", "k2"], "t", properties, flag,
    )  # fmt: skip
    assert (repeated.delay_level, repeated.deliver_at_ms) == (0, 0)


def test_hexadecimal_bytes() -> None:
    lines = hex_format(received(bytes(range(60, 80)) + b"\xff\x1b")).decode().splitlines()
    assert lines == [
        "T broker-a:3 offset 42  2025-11-22T08:26:40.123Z  keys a b  tag t  22 bytes",
        "00000000  3c 3d 3e 3f 40 41 42 43  44 45 46 47 48 49 4a 4b  |<=>?@ABCDEFGHIJK|",
        "00000010  4c 4d 4e 4f ff 1b                                 |LMNO..|",
    ]
    assert max(map(len, lines[1:])) <= 80


def test_hexadecimal_output_escapes_terminal_commands_in_keys() -> None:
    assert b"\x1b" not in hex_format(received(properties={"TAGS": "\x1b[31m"}))


def test_a_time_that_is_none_is_printed_as_a_number() -> None:
    assert format_time(2**62) == 2**62
    assert format_time(0) == "1970-01-01T00:00:00.000Z"
