"""Messages, settings, statuses and handles of the gRPC port, without sockets."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import hmac
import zlib
from typing import Any

import msgspec
import pytest

pytest.importorskip("google.protobuf", reason="the extra grpc is not installed")

from ariane.errors import ReplyError
from ariane.model.message import COMPRESSED
from ariane.model.topic import GroupRetryPolicy, SubscriptionGroupConfig
from ariane.model.topic_attributes import TopicMessageType
from ariane.protocol import fastjson
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records import properties, record
from ariane.protocol.requests.pop import PopMessage, PopMessageResponse
from ariane.proxy import api, request_signatures, transaction_ids
from ariane.proxy.calls.send_calls import consistent_hash
from ariane.proxy.conversion import (
    client_settings,
    field_checks,
    grpc_messages,
    grpc_statuses,
    receipt_handles,
    request_sizes,
)
from ariane.proxy.conversion.client_settings import ClientKind
from ariane.proxy.conversion.grpc_messages import SendLimits, outgoing
from ariane.proxy.conversion.grpc_statuses import CallRefused, StatusCode
from ariane.proxy.conversion.receipt_handles import ReceiptHandle

NOW_MS = 1_700_000_000_000
LIMITS = SendLimits(body_bytes_max=1_000, delay_ms_max=86_400_000)
HANDLE = ReceiptHandle(3, NOW_MS, 60_000, 0, "broker-a", 2, 5, 4_213_065)


def message(**own: Any) -> Any:
    system = {"message_id": "01AB", **own.pop("system", {})}
    return api.Message(**{"topic": {"name": "T"}, "body": b"body", "system_properties": system, **own})


def refusal(**own: Any) -> tuple[StatusCode, str]:
    with pytest.raises(CallRefused) as caught:
        outgoing(message(**own), LIMITS, NOW_MS)
    return caught.value.code, caught.value.text


def test_system_properties_become_properties_of_the_wire() -> None:
    sent = message(
        user_properties={"name": "value", "empty": ""},
        system={"tag": "A", "keys": ["k1", "k2"], "message_group": "g", "born_host": "host", "trace_context": "t"},
    )
    sent.system_properties.born_timestamp.FromMilliseconds(NOW_MS - 5)
    result = outgoing(sent, LIMITS, NOW_MS)
    assert result.properties == {
        "name": "value",
        "UNIQ_KEY": "01AB",
        "TAGS": "A",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "g",
        "TRACE_CONTEXT": "t",
        "BORN_TIMESTAMP": str(NOW_MS - 5),
        "__BORNHOST": "host",
    }
    assert (result.kind, result.message_group, result.born_ms) == (TopicMessageType.FIFO, "g", NOW_MS - 5)


def test_the_kind_of_a_message_follows_from_its_properties() -> None:
    delayed = message()
    delayed.system_properties.delivery_timestamp.FromMilliseconds(NOW_MS + 1_500)
    result = outgoing(delayed, LIMITS, NOW_MS)
    assert (result.kind, result.properties["TIMER_DELIVER_MS"]) == (TopicMessageType.DELAY, str(NOW_MS + 1_500))
    half = message(system={"message_type": 4, "orphaned_transaction_recovery_duration": {"seconds": 30}})
    result = outgoing(half, LIMITS, NOW_MS)
    assert result.kind is TopicMessageType.TRANSACTION
    assert (result.properties["TRAN_MSG"], result.properties["CHECK_IMMUNITY_TIME_IN_SECONDS"]) == ("true", "30")
    assert result.properties["PGROUP"] == "T"
    assert outgoing(message(system={"message_type": 2}), LIMITS, NOW_MS).kind is TopicMessageType.NORMAL


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_a_compressed_body_is_stored_decompressed(compress: Any) -> None:
    sent = message(body=compress(b"x" * 900), system={"body_encoding": 2})
    assert outgoing(sent, LIMITS, NOW_MS).body == b"x" * 900
    code, _ = refusal(body=compress(b"x" * 10_000_000), system={"body_encoding": 2})
    assert code is StatusCode.MESSAGE_BODY_TOO_LARGE
    code, _ = refusal(body=compress(b"x" * 900)[:-9], system={"body_encoding": 2})
    assert code is StatusCode.MESSAGE_CORRUPTED


@pytest.mark.parametrize(
    ("own", "code", "text"),
    [
        ({"topic": {"name": " "}}, 40002, "The specified topic is blank"),
        ({"topic": {"name": "x" * 128}}, 40002, "The specified topic is longer than topic max length 127."),
        ({"topic": {"name": "TBW102"}}, 40002, "cannot access system topic"),
        ({"system": {"message_id": " "}}, 40009, "message id cannot be empty"),
        ({"system": {"tag": "a|b"}}, 40004, "tag cannot contain '|'"),
        ({"system": {"tag": " "}}, 40004, "tag cannot be the char sequence of whitespace"),
        ({"system": {"tag": "a\x01"}}, 40004, "tag cannot contain control character"),
        ({"system": {"keys": ["a", " "]}}, 40005, "key cannot be the char sequence of whitespace"),
        ({"system": {"message_group": "é" * 32}}, 40006, "message group exceed the max size 64"),
        ({"user_properties": {"KEYS": "x"}}, 40007, "property is used by system: KEYS"),
        ({"user_properties": {"TIMER_OUT_MS": "1"}}, 40007, "property is used by system: TIMER_OUT_MS"),
        ({"user_properties": {"a": "\x02"}}, 40007, "property 'a' cannot contain control character"),
        ({"user_properties": {str(n): "x" for n in range(129)}}, 43101, "too many user properties, max is 128"),
        ({"user_properties": {"a": "x" * 16_384}}, 43101, "the total size of user property is too large, max is 16384"),
        ({"body": b""}, 41302, "message body cannot be empty"),
        ({"body": b"x" * 1_001}, 41301, "message body cannot exceed the max 1000"),
        (
            {"system": {"delivery_timestamp": {"seconds": NOW_MS // 1000 + 86_401}}},
            40012,
            "the max delay time of message is too large, max is 86400000",
        ),
        (
            {"system": {"message_type": 4, "orphaned_transaction_recovery_duration": {"seconds": 3_601}}},
            40000,
            "the max transaction recovery time of message is too large, max is 3600",
        ),
    ],
)
def test_refused_messages(own: dict[str, Any], code: int, text: str) -> None:
    assert refusal(**own) == (code, text)


def test_names_with_other_characters_are_refused_with_the_name() -> None:
    assert refusal(topic={"name": "a b"}) == (
        40002,
        "The specified topic[a b] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
    )
    with pytest.raises(CallRefused, match=r"the specified group\[a b\] contains illegal characters"):
        field_checks.group_name(api.Resource(name="a b"))
    with pytest.raises(CallRefused, match="cannot use system consumer group"):
        field_checks.group_name(api.Resource(name="CID_RMQ_SYS_x"))


def stored(body: bytes = b"body", sys_flag: int = 0, reconsume_times: int = 2, **own: str) -> record.Record:
    data = record.encode(
        b"T",
        body,
        properties.encode(own).encode(),
        queue_id=1,
        queue_offset=7,
        offset=4_000,
        born_ms=NOW_MS,
        born_host=b"\x7f\x00\x00\x01\x00\x00\x00\x10",
        store_ms=NOW_MS + 5,
        store_host=b"\x7f\x00\x00\x01\x00\x00\x2a\x9f",
        flag=0,
        sys_flag=sys_flag,
        reconsume_times=reconsume_times,
    )
    return record.decode(data)


def test_a_stored_message_becomes_one_for_clients() -> None:
    item = stored(
        TAGS="A", KEYS="k1 k2", UNIQ_KEY="01AB", __SHARDINGKEY="g", user="u", PGROUP="T", TIMER_DELIVER_MS=str(NOW_MS)
    )
    topic = api.Resource(name="T", resource_namespace="n")
    got = grpc_messages.received(item, topic, handle=str(HANDLE))
    system = got.system_properties
    assert (got.topic, got.body, dict(got.user_properties)) == (topic, b"body", {"user": "u"})
    assert (system.tag, list(system.keys), system.message_id, system.message_group) == ("A", ["k1", "k2"], "01AB", "g")
    assert system.body_digest.checksum == hashlib.md5(b"body").hexdigest().upper()
    assert (system.body_digest.type, system.body_encoding, system.message_type) == (2, 1, 3)
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (1, 7, 3)
    assert (system.born_host, system.store_host) == ("127.0.0.1:16", "127.0.0.1:10911")
    assert system.delivery_timestamp.ToMilliseconds() == NOW_MS
    assert system.receipt_handle == str(HANDLE)


def test_a_body_that_a_client_of_4_x_compressed_is_delivered_decompressed() -> None:
    got = grpc_messages.received(stored(zlib.compress(b"text" * 100), COMPRESSED), api.Resource(name="T"))
    assert (got.body, got.system_properties.body_encoding) == (b"text" * 100, 1)
    assert got.system_properties.message_id == "7F00000100002A9F0000000000000FA0"  # without UNIQ_KEY: the offset id


def test_handles_have_the_fields_of_java() -> None:
    text = str(HANDLE)
    assert text == f"3 {NOW_MS} 60000 0 0 broker-a 2 5 4213065"
    assert receipt_handles.parse(text) == HANDLE
    retried = msgspec.structs.replace(HANDLE, retry=2)
    assert receipt_handles.parse(str(retried)) == retried
    assert retried.stored_topic("G", "T") == "%RETRY%G+T"
    for invalid in ("", "x", text + " 1", text.replace("60000", "x"), "1 2"):
        with pytest.raises(CallRefused, match="Invalid receipt handle") as caught:
            receipt_handles.parse(invalid)
        assert caught.value.code is StatusCode.INVALID_RECEIPT_HANDLE


@pytest.mark.parametrize(
    ("named", "retry", "offset"),
    [
        (f"3 {NOW_MS} 60000 2 1 broker-a 0 5", 1, 5),  # as a broker of 5.3.3 names a retry
        (f"3 {NOW_MS - 1} 60000 2 1 broker-a 0 5", 0, 7),  # of a former delivery
        ("x", 0, 7),
    ],
)
def test_the_handle_of_a_retry_is_a_property_of_its_record(named: str, retry: int, offset: int) -> None:
    """Acknowledgements of retries at brokers of Apache named the topic, and ended nothing."""
    request = PopMessage("G", "T", -1, 32, 60_000, 0)
    taken = PopMessageResponse(NOW_MS, 60_000, 2, 0, "0 1 7", "0 1 7")
    ((_, handle),) = receipt_handles.with_handles([stored(POP_CK=named)], request, "broker-a", taken)
    assert (handle.retry, handle.offset, handle.stored_topic("G", "T")) == (retry, offset, ("T", "%RETRY%G_T")[retry])


def test_transaction_ids_name_the_half_message() -> None:
    text = transaction_ids.transaction_id("01AB", 12, 4_096, "broker a:1")
    assert transaction_ids.parse_transaction_id(text) == ("01AB", 12, 4_096, "broker a:1")
    for invalid, code in ((" ", 40008), ("01AB", 40008), ("01AB:1:x", 40008), ("01AB:-1:2", 40008)):
        with pytest.raises(CallRefused) as caught:
            transaction_ids.parse_transaction_id(invalid)
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("code", "remark", "is_anonymous", "expected"),
    [
        (ResponseCode.NO_PERMISSION, "denied", True, StatusCode.UNAUTHORIZED),
        (ResponseCode.NO_PERMISSION, "denied", False, StatusCode.FORBIDDEN),
        (ResponseCode.SYSTEM_ERROR, grpc_statuses.ACCOUNT_PREFIX + "denied", True, StatusCode.UNAUTHORIZED),
        (ResponseCode.SYSTEM_ERROR, grpc_statuses.ACCOUNT_PREFIX + "denied", False, StatusCode.FORBIDDEN),
        (ResponseCode.SYSTEM_BUSY, "denied", False, StatusCode.TOO_MANY_REQUESTS),
        (ResponseCode.NO_MESSAGE, "denied", False, StatusCode.INVALID_RECEIPT_HANDLE),
        (12_345, "denied", False, StatusCode.INTERNAL_SERVER_ERROR),
    ],
)
def test_each_refusal_of_the_broker_has_a_status(
    code: int, remark: str, is_anonymous: bool, expected: StatusCode
) -> None:
    refused = grpc_statuses.refusal_of(ReplyError(code, remark), is_anonymous=is_anonymous)
    assert (refused.code, refused.text) == (expected, "denied")


def test_settings_are_answered_with_what_the_server_decides() -> None:
    sent = api.Settings(
        client_type=2,
        subscription={
            "group": {"name": "G"},
            "subscriptions": [{"topic": {"name": "T"}, "expression": {"expression": "a||b"}}],
        },
        user_agent={"version": "5.1.2", "hostname": "h" * 300},
        request_timeout={"seconds": 4},
    )
    reported = client_settings.parse(sent, NOW_MS)
    assert reported.properties == {"PROP_CLIENT_VERSION": "5.1.2", "hostName": "h" * 255, "requestTimeout": "4000"}
    assert (reported.kind, reported.group, reported.subscriptions[0].tags_set) == (
        ClientKind.PUSH_CONSUMER,
        "G",
        {"a", "b"},
    )
    answered = client_settings.answer(sent, reported, 1_000, SubscriptionGroupConfig(retry_max_times=3))
    assert answered.user_agent == sent.user_agent
    assert answered.HasField("metric") and not answered.metric.on
    assert (answered.subscription.receive_batch_size, answered.subscription.long_polling_timeout.seconds) == (32, 20)
    assert answered.backoff_policy.max_attempts == 4
    assert [delay.seconds for delay in answered.backoff_policy.customized_backoff.next[:3]] == [1, 5, 10]
    assert not answered.subscription.fifo
    producer = api.Settings(client_type=1, publishing={"topics": [{"name": "T"}]})
    answered = client_settings.answer(producer, client_settings.parse(producer, NOW_MS), 1_000, None)
    assert (answered.publishing.max_body_size, answered.publishing.validate_message_type) == (1_000, True)
    assert answered.backoff_policy.exponential_backoff.multiplier == 2


def consumer_settings(group: SubscriptionGroupConfig) -> Any:
    sent = api.Settings(client_type=2, subscription={"group": {"name": "G"}})
    return client_settings.answer(sent, client_settings.parse(sent, NOW_MS), 1_000, group)


def test_an_ordered_group_is_served_in_order() -> None:
    assert consumer_settings(SubscriptionGroupConfig(consume_message_orderly=True)).subscription.fifo
    assert not consumer_settings(SubscriptionGroupConfig(consume_message_orderly=False)).subscription.fifo


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ('{"type":"EXPONENTIAL"}', (5_000, 7_200_000, 2.0)),
        ('{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":100,"max":900,"multiplier":3}}', (100, 900, 3.0)),
        ('{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[10,2500]}}', [10, 2_500]),
        ('{"type":"EXPONENTIAL","exponentialRetryPolicy":null}', (5_000, 7_200_000, 2.0)),
        (
            f'{{"type":"EXPONENTIAL","exponentialRetryPolicy":{{"initial":{2**62},"max":{2**62}}}}}',
            (43_200_000, 43_200_000, 2.0),
        ),
        (f'{{"customizedRetryPolicy":{{"next":[1,{2**62}]}}}}', [1, 43_200_000]),
        ('{"type":"CUSTOMIZED"}', [seconds * 1_000 for seconds in client_settings.RETRY_S]),
    ],
)
def test_the_retry_policy_of_a_group_spaces_the_attempts_of_its_clients(policy: str, expected: object) -> None:
    document = f'{{"groupName":"G","groupRetryPolicy":{policy}}}'.encode()
    backoff = consumer_settings(fastjson.decode(document, SubscriptionGroupConfig)).backoff_policy
    if backoff.HasField("exponential_backoff"):
        grows = backoff.exponential_backoff
        assert (grows.initial.ToMilliseconds(), grows.max.ToMilliseconds(), grows.multiplier) == expected
    else:
        assert [delay.ToMilliseconds() for delay in backoff.customized_backoff.next] == expected


@pytest.mark.parametrize(
    "policy",
    [
        '{"type":"LINEAR"}',
        '{"exponentialRetryPolicy":{"initial":0}}',
        '{"exponentialRetryPolicy":{"initial":10,"max":9}}',
        '{"exponentialRetryPolicy":{"multiplier":0.5}}',
        '{"customizedRetryPolicy":{"next":[]}}',
        '{"customizedRetryPolicy":{"next":[-1]}}',
    ],
)
def test_a_policy_that_no_client_can_follow_is_refused(policy: str) -> None:
    assert "expected" in (fastjson.decode(policy.encode(), GroupRetryPolicy).fault or "")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"client_type": 1}, "the settings have neither publishing nor subscription data"),
        (
            {"client_type": 4, "subscription": {"group": {"name": "G"}}},
            "Client type is not consumer, type: PULL_CONSUMER",
        ),
        ({"client_type": 6, "subscription": {}}, "Client type 6 is not supported"),
        ({"client_type": 2, "subscription": {}}, "the specified group is blank"),
        (
            {
                "client_type": 2,
                "subscription": {
                    "group": {"name": "G"},
                    "subscriptions": [{"topic": {"name": "T"}, "expression": {"expression": "||"}}],
                },
            },
            "it has no tag",
        ),
    ],
)
def test_refused_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(CallRefused, match=text):
        client_settings.parse(api.Settings(**settings), NOW_MS)


def test_a_call_has_a_bounded_number_of_entries_and_short_expressions() -> None:
    topic = {"name": "T"}
    publishing = api.Settings(client_type=1, publishing={"topics": [topic] * 1_001})
    subscriptions = [{"topic": topic, "expression": {"type": 1, "expression": "*"}}] * 1_001
    subscribing = api.Settings(client_type=3, subscription={"group": {"name": "g"}, "subscriptions": subscriptions})
    for settings in (publishing, subscribing):
        with pytest.raises(CallRefused, match="1001 entries in a call: expected at most 1000"):
            client_settings.parse(settings, NOW_MS)
    for kind in (1, 2):
        expression = api.FilterExpression(type=kind, expression="a" * 16_385)
        with pytest.raises(CallRefused, match="expression of 16385 characters: expected at most 16384"):
            client_settings.subscription_data(api.Resource(**topic), expression, NOW_MS)


def test_a_message_group_has_one_queue_which_few_changes_move() -> None:
    # The values in the tests of Guava's Hashing.consistentHash.
    first = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]
    assert [consistent_hash(number, 100) for number in range(20)] == first
    assert [consistent_hash(10_863_919_174_838_991, 11), consistent_hash(2_016_238_256_797_177_309, 11)] == [6, 3]
    assert [consistent_hash(number, 1) for number in (0, -1, 12345)] == [0, 0, 0]
    before, after = ([consistent_hash(number, count) for number in range(1_000)] for count in (8, 9))
    assert {moved for old, moved in zip(before, after, strict=True) if old != moved} == {8}


def test_signatures_are_verified_by_the_date() -> None:
    header = "MQv2-HMAC-SHA1 Credential=alice/region/x, SignedHeaders=x-mq-date-time, Signature={}"
    metadata = {"x-mq-date-time": "20200101T000000Z", "authorization": header.format("00")}
    digest = hmac.new(b"secret", b"20200101T000000Z", hashlib.sha1).hexdigest()
    keys = {"alice": "secret"}.get
    for text in (digest, digest.upper()):
        found = request_signatures.verify({**metadata, "authorization": header.format(text)}, keys)
        assert found is not None and found.access_key == "alice"
    assert request_signatures.verify({}, keys) is None
    for own, text in (
        ({}, "check signature failed."),
        ({"x-mq-date-time": ""}, "datetime is null."),
        ({"authorization": "MQv2-HMAC-SHA1 Credential=bob"}, "User:bob is not found."),
    ):
        with pytest.raises(CallRefused, match=text) as caught:
            request_signatures.verify({**metadata, **own}, keys)
        assert caught.value.code is StatusCode.UNAUTHORIZED


# --- sizes of requests ---

LARGE = 2 << 20
EMPTY = b"\x0a\x00"  # a message, or a key in its system properties, without content


@pytest.mark.parametrize(
    ("call", "data", "text"),
    [
        ("SendMessage", EMPTY * LARGE, "at most 16384 fields"),
        ("SendMessage", api.SendMessageRequest(messages=[{"system_properties": {"keys": ["k"] * LARGE}}]), "6291466"),
        ("SendMessage", api.SendMessageRequest(messages=[{"body": bytes(LARGE)}] * 2), None),
        ("SendMessage", b"\x0a\xff\xff\xff\x7f" + bytes(LARGE), "at most 1048576 bytes"),
        ("SendMessage", b"\x09" + bytes(8) + b"\x0d" + bytes(4) + b"\x0b" + bytes(LARGE), "at most 1048576 bytes"),
        ("SendMessage", b"\xff" * LARGE, "at most 1048576 bytes"),
        ("Telemetry", api.TelemetryCommand(thread_stack_trace={"thread_stack_trace": "x" * LARGE}), None),
        ("Telemetry", api.TelemetryCommand(settings={"publishing": {"topics": [{}] * LARGE}}), "4194314"),
    ],
)
def test_requests_that_take_much_memory_are_refused_before_they_are_decoded(
    call: str, data: Any, text: str | None
) -> None:
    """A send of 16 MiB of empty messages took 670 MiB."""
    data = data if isinstance(data, bytes) else data.SerializeToString()
    with contextlib.nullcontext() if text is None else pytest.raises(CallRefused, match=text):
        request_sizes.check(call, data)
