"""Attributes of topics and message types of 5.x: the values and texts of 5.3.3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ariane.model.topic import TopicConfig
from ariane.model.topic_attributes import (
    ATTRIBUTES,
    TopicMessageType,
    accepted_types,
    alter,
    join_changes,
    message_type,
    parse_changes,
)

NORMAL, FIFO, DELAY, TRANSACTION = (
    TopicMessageType.NORMAL,
    TopicMessageType.FIFO,
    TopicMessageType.DELAY,
    TopicMessageType.TRANSACTION,
)
ALL = (NORMAL, FIFO, DELAY, TRANSACTION)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, NORMAL),
        ({"KEYS": "a", "TAGS": ""}, NORMAL),
        ({"__SHARDINGKEY": ""}, FIFO),
        ({"DELAY": "0"}, DELAY),
        ({"TIMER_DELIVER_MS": "1"}, DELAY),
        ({"TIMER_DELAY_SEC": "1"}, DELAY),
        ({"TIMER_DELAY_MS": "1"}, DELAY),
        ({"__STARTDELIVERTIME": "1"}, DELAY),
        ({"TRAN_MSG": "true"}, TRANSACTION),
        ({"TRAN_MSG": "false"}, NORMAL),
        ({"TRAN_MSG": "True", "__SHARDINGKEY": "g"}, FIFO),
        ({"DELAY": "1", "__SHARDINGKEY": "g"}, DELAY),
        ({"TRAN_MSG": "true", "DELAY": "1", "__SHARDINGKEY": "g"}, TRANSACTION),
    ],
)
def test_the_type_of_a_message_is_derived_from_its_properties(
    properties: dict[str, str], expected: TopicMessageType
) -> None:
    assert message_type(properties) is expected


@pytest.mark.parametrize(
    ("declared", "untyped", "expected"),
    [
        ("NORMAL", "MIXED", (NORMAL,)),
        ("FIFO", "MIXED", (FIFO,)),
        ("DELAY", "NORMAL", (DELAY,)),
        ("TRANSACTION", "MIXED", (TRANSACTION,)),
        ("MIXED", "NORMAL", ALL),
        (None, "MIXED", ALL),
        (None, "NORMAL", (NORMAL,)),
        ("UNSPECIFIED", "NORMAL", (NORMAL,)),
        ("PRIORITY", "MIXED", ()),  # of 5.5
    ],
)
def test_a_topic_accepts_messages_of_its_type(
    declared: str | None, untyped: str, expected: tuple[TopicMessageType, ...]
) -> None:
    topic = TopicConfig(topic_name="T", attributes={} if declared is None else {"message.type": declared})
    assert accepted_types(topic, TopicMessageType(untyped)) == expected
    assert accepted_types(TopicConfig(topic_name="T")) == ALL, "topics of 4.x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("+message.type=FIFO", {"+message.type": "FIFO"}),
        ("+message.type=FIFO,-reserve.time", {"+message.type": "FIFO", "-reserve.time": ""}),
        ("message.type=FIFO", "add/alter attribute format is wrong"),
        ("+message.type=", "add/alter attribute format is wrong"),
        ("-message.type=FIFO", "add/alter attribute format is wrong"),
        ("message.type", "delete attribute format is wrong"),
        ("+message.type", "delete attribute format is wrong"),
        ("+message.type=FIFO,", "delete attribute format is wrong"),
        ("-message.type,-message.type", "key duplication: -message.type"),
    ],
)
def test_changes_are_parsed(text: str, expected: dict[str, str] | str) -> None:
    if isinstance(expected, dict):
        assert parse_changes(text) == expected
        assert parse_changes(join_changes(expected)) == expected
    else:
        with pytest.raises(ValueError, match=expected):
            parse_changes(text)


@pytest.mark.parametrize(
    ("current", "text", "expected"),
    [
        (None, "+message.type=FIFO,+queue.type=SimpleCQ", {"message.type": "FIFO", "queue.type": "SimpleCQ"}),
        ({"message.type": "FIFO"}, "+message.type=MIXED,+reserve.time=-1", {"message.type": "MIXED", "reserve.time": "-1"}),
        ({"message.type": "FIFO", "new.of.5.5": "x"}, "-message.type", {"new.of.5.5": "x"}),
        (None, "-message.type", "only add attribute is supported while creating topic. key: message.type"),
        ({}, "-message.type", "attempt to delete a nonexistent key: message.type"),
        ({}, "+nope=1", "unsupported key: nope"),
        (None, "+nope=1", "unsupported key: nope"),
        ({}, "+queue.type=SimpleCQ", "attempt to update an unchangeable attribute. key: queue.type"),
        ({}, "+message.type=WRONG", "value is not in set: [UNSPECIFIED, TRANSACTION, FIFO, MIXED, DELAY, NORMAL]"),
        (None, "+queue.type=BatchCQ", "value is not in set: [SimpleCQ]"),
        ({}, "+reserve.time=x", 'For input string: "x"'),
        ({}, "+reserve.time=-5", "value is not in range(-1, 9223372036854775807)"),
        ({}, "+reserve.time=9223372036854775808", "value is not in range(-1, 9223372036854775807)"),
        ({}, "+message+type=FIFO", "kv string format wrong."),
        ({"message.type": "FIFO"}, "+message.type=FIFO,-message.type", "alter duplication key. key: message.type"),
    ],
)  # fmt: skip
def test_changes_are_applied_or_refused_with_the_texts_of_5x(
    current: dict[str, str] | None, text: str, expected: dict[str, str] | str
) -> None:
    before = None if current is None else dict(current)
    if isinstance(expected, dict):
        assert alter(current, parse_changes(text)) == expected
    else:
        with pytest.raises(ValueError) as raised:
            alter(current, parse_changes(text))
        assert str(raised.value) == expected
    assert current == before


@given(st.text(alphabet="+-=,messag.typeFIFO0123456789 ", max_size=60), st.booleans())
def test_any_text_is_applied_or_refused(text: str, is_new: bool) -> None:
    try:
        altered = alter(None if is_new else {"message.type": "FIFO"}, parse_changes(text))
    except ValueError:
        return
    assert altered.keys() <= ATTRIBUTES.keys()
    assert not any(character in f"{key}{value}" for key, value in altered.items() for character in ",= ")
