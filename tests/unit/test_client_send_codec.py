"""Send codec: from messages to requests, and from responses to results."""

from __future__ import annotations

import itertools
import zlib
from datetime import UTC, datetime, timedelta

import pytest

from ariane.client.instance.send_types import SendStatus
from ariane.client.instance.settings import ProducerSettings
from ariane.client.sending import send_codec
from ariane.errors import MessageRefused, ReplyError
from ariane.model.message import Message, MessageQueue
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import batch, compression, properties
from ariane.protocol.requests import decode_header, encode_header
from ariane.protocol.requests.messaging import SendMessage

SETTINGS = ProducerSettings()
QUEUES = tuple(MessageQueue("T", broker, number) for broker in "ab" for number in range(2))


def plain(**more) -> Message:
    return Message(**({"topic": "T", "body": b"x"} | more))


def test_message_properties_are_encoded():
    out = send_codec.prepare(
        plain(tags="A", keys=["k1", "k2"], delay_level=3, properties={"mine": "1"}, wait_stored=False), "ID", SETTINGS
    )
    assert properties.decode(out.properties) == {
        "UNIQ_KEY": "ID",
        "WAIT": "false",
        "TAGS": "A",
        "KEYS": "k1 k2",
        "DELAY": "3",
        "mine": "1",
    }


def test_a_large_body_is_compressed_and_flagged():
    body = b"z" * 4096
    out = send_codec.prepare(plain(body=body), "ID", SETTINGS)
    assert out.sys_flag == 0x301
    assert zlib.decompress(out.body) == body
    assert send_codec.prepare(plain(body=body[1:]), "ID", SETTINGS).sys_flag == 0


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (plain(body=b""), "empty"),
        (plain(body="text"), "encode"),
        (plain(body=bytes(4 * 1024 * 1024 + 1)), "at most 4194304"),
        (plain(topic=""), "blank"),
        (plain(topic="a/b"), "characters"),
        (plain(topic="x" * 128), "127"),
        (plain(topic="SCHEDULE_TOPIC_XXXX"), "belongs to the broker"),
        (plain(keys="abc"), "list"),
        (plain(keys=["a b"]), "white space"),
        (plain(keys=[""]), "white space"),
        (plain(properties={"UNIQ_KEY": "1"}), "reserved"),
        (plain(properties={"mine": ""}), "empty"),
        (plain(properties={"mine": "a\x01b"}), "U\\+0001"),
        (plain(tags="a\x02b"), "U\\+0001"),
        (plain(properties={"mine": "ä" * 17_000}), "32767"),
    ],
)
def test_messages_that_brokers_would_reject_or_change_are_rejected(message, says):
    with pytest.raises(MessageRefused, match=says):
        send_codec.prepare(message, "ID", SETTINGS)


def test_each_message_of_a_batch_has_its_own_id():
    numbers = itertools.count()
    out = send_codec.prepare_batch(
        [plain(body=b"1", keys=["k"]), plain(body=b"2", tags="B", flag=7)], lambda: f"ID{next(numbers)}", SETTINGS
    )
    entries = batch.decode(out.body)
    assert [(entry.flag, entry.body) for entry in entries] == [(0, b"1"), (7, b"2")]
    assert [properties.decode(entry.properties)["UNIQ_KEY"] for entry in entries] == ["ID0", "ID1"]
    assert properties.decode(out.properties) == {"WAIT": "true"}
    assert out.code == RequestCode.SEND_BATCH_MESSAGE
    assert send_codec.request_fields(out, "g", 3, 5, SETTINGS)["m"] == "true"


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "at least one"),
        ([plain(), plain(topic="U")], "one topic"),
        ([plain(), plain(wait_stored=False)], "two batches"),
        ([plain(delay_level=1)], "delayed"),
        ([plain(topic="%RETRY%g")], "retry"),
        ([plain(body=bytes(3_000_000)), plain(body=bytes(3_000_000))], "split"),
        ([plain(), plain(body=b"")], "empty"),
    ],
)
def test_invalid_batches_are_rejected(messages, says):
    with pytest.raises(MessageRefused, match=says):
        send_codec.prepare_batch(messages, lambda: "ID", SETTINGS)


def test_the_send_header_of_a_message_is_encoded():
    out = send_codec.prepare(plain(), "ID", SETTINGS)
    sent = send_codec.request_fields(out, "g", 3, 5, SETTINGS)
    assert sent == {
        "a": "g",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": "3",
        "f": "0",
        "g": "5",
        "h": "0",
        "i": out.properties,
        "j": "0",
        "k": "false",
        "m": "false",
    }
    assert encode_header(decode_header(Command(310, fields=sent), SendMessage)) == sent
    assert out.code == RequestCode.SEND_MESSAGE_V2


@pytest.mark.parametrize(("code", "name"), [(0, "SEND_OK"), (10, "FLUSH_DISK_TIMEOUT"), (11, "SLAVE_NOT_AVAILABLE"),
                                            (12, "FLUSH_SLAVE_TIMEOUT")])  # fmt: skip
def test_the_response_is_decoded_to_a_send_result(code, name):
    out = send_codec.prepare(plain(), "ID", SETTINGS)
    answer = Command(code, fields={"msgId": "OFF", "queueId": "1", "queueOffset": "9", "TRACE_ON": "false"})
    result = send_codec.parse_result(out, answer, QUEUES[0], "a:1")
    assert result.status.name == name
    assert (result.message_id, result.offset_message_id, result.queue_offset) == ("ID", "OFF", 9)
    assert result.queue == QUEUES[1]  # the broker's word counts
    assert (result.region, result.trace_on) == ("DefaultRegion", False)


def test_other_responses_raise_an_error_with_code_remark_and_address():
    out = send_codec.prepare(plain(), "ID", SETTINGS)
    with pytest.raises(ReplyError) as caught:
        send_codec.parse_result(out, Command(13, remark="too large"), QUEUES[0], "a:1")
    assert (caught.value.code, caught.value.remark, caught.value.addr) == (13, "too large", "a:1")


def test_queues_are_selected_in_rotation_and_a_failed_broker_is_avoided():
    assert [send_codec.select_queue(QUEUES, turn, None) for turn in range(5)] == [*QUEUES, QUEUES[0]]
    assert send_codec.select_queue(QUEUES, 0, "a") == QUEUES[2]
    assert send_codec.select_queue(QUEUES[:2], 1, "a") == QUEUES[1]  # the only broker


@pytest.mark.parametrize(
    ("key", "count", "queue_id"),
    [("ORDER-17", 2, 1), ("", 2, 0), ("polygenelubricants", 2, 0), ("polygenelubricants", 3, 2)],
)
def test_an_order_key_selects_the_queue_as_java_does(key, count, queue_id):
    # Java: Math.abs("ORDER-17".hashCode() % 2) = 2050450513 % 2; "polygenelubricants" hashes to the smallest int
    queues = [MessageQueue("T", "a", number) for number in range(count)]
    assert send_codec.queue_for_key(queues, key).queue_id == queue_id


def test_an_order_key_that_is_no_text_is_refused():
    with pytest.raises(MessageRefused, match=r"order_key = 17: expected a text, give str\(…\)"):
        send_codec.queue_for_key([MessageQueue("T", "a", 0)], 17)


def test_response_codes_of_stored_messages_equal_those_of_the_protocol():
    from ariane.protocol.codes import STORED_CODES

    assert {ResponseCode(status.value) for status in SendStatus} == STORED_CODES


@pytest.mark.parametrize(
    ("deliver_at_ms", "said"),
    [
        (1_700_000_000, "1970-01-20 16:13:20 UTC; if it is in seconds, multiply by 1,000 (2023-11-14 22:13:20 UTC)"),
        (5_000, "for 5000 ms from now, give time.time_ns() // 1_000_000 + 5000"),
        (1_700_000_000_000_000, "if it is in µs or ns, divide by 1,000 or 1,000,000 (2023-11-14 22:13:20 UTC)"),
        (1_700_000_000_000_000_000, "(2023-11-14 22:13:20 UTC)"),
        (-1, "not negative"),
        (1_700_000_000_000.5, "expected a whole number of ms since the epoch, not float"),
        (True, "not bool"),
        ("1700000000000", "not str"),
    ],
)
def test_a_delivery_time_in_another_unit_is_rejected(deliver_at_ms, said):
    with pytest.raises(MessageRefused) as caught:
        send_codec.prepare(plain(deliver_at_ms=deliver_at_ms), "ID", SETTINGS)
    assert str(caught.value).startswith(f"deliver_at_ms = {deliver_at_ms!r}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize("deliver_at_ms", [0, 10**11, 1_700_000_000_000, 10**14 - 1])
def test_a_delivery_time_in_ms_is_accepted(deliver_at_ms):
    text = send_codec.prepare(plain(deliver_at_ms=deliver_at_ms), "ID", SETTINGS).properties
    assert properties.decode(text).get("TIMER_DELIVER_MS") == (str(deliver_at_ms) if deliver_at_ms else None)


def test_messages_are_split_into_batches_that_fit():
    settings = ProducerSettings(message_max=4_000)
    messages = [
        plain(body=b"x" * size, message_id=f"ID{index}") for index, size in enumerate((900, 900, 3_800, 10, 10))
    ]
    parts = send_codec.split_batch(messages, lambda: "made", settings)
    assert [[message.message_id for message in part] for part in parts] == [["ID0", "ID1"], ["ID2"], ["ID3", "ID4"]]
    assert send_codec.split_batch([], lambda: "made", settings) == []
    with pytest.raises(MessageRefused, match="expected one topic per batch"):
        send_codec.split_batch([plain(), Message(topic="other", body=b"x")], lambda: "made", settings)


@pytest.mark.parametrize("algorithm", ["zlib", "lz4", "zstd"])
def test_a_large_body_is_compressed_as_the_settings_say(algorithm):
    body = b"large" * 2_000
    prepared = send_codec.prepare(plain(body=body), "ID", ProducerSettings(compression=algorithm))
    assert len(prepared.body) < 200
    assert prepared.sys_flag == {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}[algorithm]
    assert compression.decompress(prepared.body, prepared.sys_flag) == body


def test_a_delivery_time_with_a_time_zone_is_sent_in_ms():
    text = send_codec.prepare(plain(deliver_at=datetime(2026, 5, 4, tzinfo=UTC)), "ID", SETTINGS).properties
    table = properties.decode(text)
    assert (table["TIMER_DELIVER_MS"], table["__STARTDELIVERTIME"]) == ("1777852800000",) * 2


@pytest.mark.parametrize(("delay", "ms"), [(90, "90000"), (0.25, "250"), (timedelta(hours=1), "3600000"), (1e-9, "1")])
def test_a_delay_is_counted_by_the_broker(delay, ms):
    table = properties.decode(send_codec.prepare(plain(delay=delay), "ID", SETTINGS).properties)
    assert table["TIMER_DELAY_MS"] == ms
    assert "TIMER_DELIVER_MS" not in table


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"delay": -1}, "delay = -1"),
        ({"delay": "5s"}, "number of seconds or a timedelta"),
        ({"deliver_at": datetime(2026, 5, 4)}, "no time zone"),
        ({"deliver_at": 1_700_000_000_000}, "expected a datetime"),
        ({"delay": 1, "delay_level": 3}, "the message has delay_level and delay: give only one of them"),
    ],
)
def test_an_invalid_delay_is_rejected(fields, said):
    with pytest.raises(MessageRefused) as caught:
        send_codec.prepare(plain(**fields), "ID", SETTINGS)
    assert said in str(caught.value)


@pytest.mark.parametrize("level", [-1, "3", 1.5, True])
def test_an_invalid_delay_level_is_rejected(level):
    with pytest.raises(MessageRefused, match="delay_level = "):
        send_codec.prepare(plain(delay_level=level), "ID", SETTINGS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": 5}, {"topic": None}, {"topic": ["a"]}, {"tags": 5}, {"tags": None}, {"keys": [5]}, {"keys": 5}, {"flag": "x"},
        {"flag": 2**31}, {"flag": 1.5}, {"wait_stored": "no"}, {"properties": {"a": 5}}, {"properties": {5: "a"}},
        {"properties": "a"}, {"message_id": 5},
    ],
)  # fmt: skip
def test_a_field_of_a_wrong_type_is_rejected_with_its_value(wrong):
    ((name, value),) = wrong.items()
    for prepare in (
        lambda message: send_codec.prepare(message, "ID", SETTINGS),
        lambda message: send_codec.prepare_batch([message], itertools.count, SETTINGS),
    ):
        with pytest.raises(MessageRefused, match=name.removesuffix("ies").removesuffix("s")):
            prepare(plain(**wrong))


@pytest.mark.parametrize("wrong", [None, "x", b"x", 5, ["x"], [b"x"]])
def test_only_messages_can_be_sent(wrong):
    with pytest.raises(MessageRefused, match="list of messages|expected a Message"):
        send_codec.prepare_batch(wrong, itertools.count, SETTINGS)
    with pytest.raises(MessageRefused, match="expected a Message"):
        send_codec.prepare(wrong, "ID", SETTINGS)
