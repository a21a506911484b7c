"""The text format of traces, as written and read by all clients from 4.4 to 5.3."""

from __future__ import annotations

import msgspec
import pytest

from ariane.model.trace_event import (
    ConsumeEndEvent,
    ConsumeStartEvent,
    EndTransactionEvent,
    MessageType,
    PublishEvent,
    RecallEvent,
)
from ariane.protocol import trace_codec

PUB = PublishEvent(
    timestamp_ms=1700000000000,
    region="DefaultRegion",
    group="P",
    topic="T",
    message_id="ID1",
    tags="a",
    keys="k1 k2",
    store_host="10.0.0.1:10911",
    body_length=5,
    cost_ms=3,
    message_type=MessageType.NORMAL,
    offset_message_id="OFF1",
    success=True,
)
BEFORE = ConsumeStartEvent(
    timestamp_ms=1, region="", group="G", request_id="R", message_id="ID1", retry_times=0, keys=""
)
AFTER = ConsumeEndEvent(
    request_id="R", message_id="ID1", cost_ms=7, success=False, keys="k", context_code=4, timestamp_ms=9, group="G"
)
END = EndTransactionEvent(
    timestamp_ms=1, region="r", group="P", topic="T", message_id="ID1", tags="", keys="k", store_host="h:1",
    message_type=MessageType.COMMIT, transaction_id="TX", state="ROLLBACK_MESSAGE", from_check=True,
)  # fmt: skip
RECALL = RecallEvent(timestamp_ms=1, region="", group="P", topic="T", message_id="ID1", success=True)


@pytest.mark.parametrize(("event", "fields"), [(PUB, 14), (BEFORE, 8), (AFTER, 9), (END, 13), (RECALL, 7)])
def test_each_layout_has_its_number_of_fields_and_round_trips(event: object, fields: int) -> None:
    text = trace_codec.encode(event)  # type: ignore[arg-type]
    assert text.endswith("\x02")
    assert len(text[:-1].split("\x01")) == fields
    assert trace_codec.decode(text.encode()) == ([event], [])


def test_the_text_equals_javas_byte_for_byte() -> None:
    pub = "Pub|1700000000000|DefaultRegion|P|T|ID1|a|k1 k2|10.0.0.1:10911|5|3|0|OFF1|true"
    assert trace_codec.encode(PUB) == pub.replace("|", "\x01") + "\x02"
    assert trace_codec.encode(BEFORE) == "SubBefore\x011\x01null\x01G\x01R\x01ID1\x010\x01null\x02"
    assert trace_codec.encode(AFTER) == "SubAfter\x01R\x01ID1\x017\x01false\x01k\x014\x019\x01G\x02"
    assert trace_codec.encode(RECALL) == "Recall\x011\x01null\x01P\x01T\x01ID1\x01true\x02"


def test_keys_contain_the_id_and_each_business_key() -> None:
    assert trace_codec.keys(PUB) == ("ID1", "k1", "k2")
    assert trace_codec.keys(BEFORE) == ("ID1",)
    assert trace_codec.keys(RECALL) == ("ID1",)


def test_an_id_with_white_space_becomes_several_keys() -> None:
    event = msgspec.structs.replace(BEFORE, message_id="an id\tof another client")
    assert trace_codec.keys(event) == ("an", "id", "of", "another", "client")
    assert trace_codec.keys(msgspec.structs.replace(BEFORE, message_id="")) == ()


@pytest.mark.parametrize("separator", ["\x01", "\x02"])
def test_a_separator_in_a_sent_message_does_not_split_its_record(separator: str) -> None:
    text = trace_codec.encode(msgspec.structs.replace(PUB, tags=f"a{separator}b"))
    ((event,), rejects) = trace_codec.decode(text.encode())
    assert (event, rejects) == (msgspec.structs.replace(PUB, tags="a b"), [])


def test_a_separator_in_a_value_does_not_split_it() -> None:
    event = ConsumeStartEvent(
        timestamp_ms=1, region="", group="G", request_id="R", message_id="I", retry_times=0, keys="a\x01b\x02c"
    )
    ((back,), rejects) = trace_codec.decode(trace_codec.encode(event).encode())
    assert (back.keys, rejects) == ("a b c", [])


@pytest.mark.parametrize(
    ("text", "success", "offset_id", "host"),
    [
        ("Pub|1|r|g|t|i|a|k|h|5|3|0", True, "", ""),
        ("Pub|1|r|g|t|i|a|k|h|5|3|0|false", False, "", ""),
        ("Pub|1|r|g|t|i|a|k|h|5|3|0|OFF|false", False, "OFF", ""),
        ("Pub|1|r|g|t|i|a|k|h|5|3|4|OFF|true|1.2.3.4@5", True, "OFF", "1.2.3.4@5"),
    ],
)
def test_pub_records_of_older_and_newer_clients_are_decoded(
    text: str, success: bool, offset_id: str, host: str
) -> None:
    ((event,), rejects) = trace_codec.decode(text.replace("|", "\x01").encode() + b"\x02")
    assert isinstance(event, PublishEvent)
    assert (event.success, event.offset_message_id, event.client_host, rejects) == (success, offset_id, host, [])


@pytest.mark.parametrize(("text", "code", "time"), [("R|i|5|true|k", 0, None), ("R|i|5|true|k|4", 4, None)])
def test_consume_records_without_time_and_group_are_decoded(text: str, code: int, time: int | None) -> None:
    ((event,), _) = trace_codec.decode(f"SubAfter|{text}".replace("|", "\x01").encode())
    assert isinstance(event, ConsumeEndEvent)
    assert (event.context_code, event.timestamp_ms, event.group) == (code, time, "")


def test_an_invalid_record_is_returned_with_the_reason_and_hides_no_other() -> None:
    broken = "Pub\x01soon\x01" + "x\x01" * 12 + "\x02Reply\x011\x02SubBefore\x011\x02"
    events, rejects = trace_codec.decode((trace_codec.encode(PUB) + broken + trace_codec.encode(AFTER)).encode())
    assert events == [PUB, AFTER]
    assert [reject.reason for reject in rejects] == [
        "Pub: invalid literal for int() with base 10: 'soon'",
        "unknown record type 'Reply'",
        "SubBefore with 2 fields is too short",
    ]
