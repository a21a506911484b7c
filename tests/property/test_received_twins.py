"""Messages of receive calls that the native kernels encode: the same as Python's, or left to Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf", reason="the extra grpc is not installed")

from ariane.kernels.grpc_port import Reception
from ariane.kernels.implementation import selected
from ariane.model.message import COMPRESSED, POP_CHECK_POINT
from ariane.protocol.records import record
from ariane.protocol.requests.pop import PopMessage, PopMessageResponse
from ariane.proxy import api
from ariane.proxy.conversion import field_checks, grpc_messages, receipt_handles
from ariane.proxy.traces.message_traces import DeliveredMessage
from grpc_transports import NEEDS_NATIVE

pytestmark = NEEDS_NATIVE

TOPIC, BROKER = "T", "broker-a"
TAKEN = PopMessageResponse(1_700_000_000_123, 60_000, 0, 0, "0 1 40;0 3 7;1 1 99")
POPPED = PopMessage("G", TOPIC, -1, 32, 60_000, 0)
NAMES = [
    "TAGS", "KEYS", "UNIQ_KEY", "a", "é", "CLUSTER", "WAIT", "TIMER_DELIVER_MS", "TIMER_X", "DELAY", "TRAN_MSG", "__SHARDINGKEY",
    "TRACE_CONTEXT", "TRACE_ON", "BORN_TIMESTAMP", "__BORNHOST", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "__STARTDELIVERTIME",
    POP_CHECK_POINT,
]  # fmt: skip
VALUES = st.sampled_from(
    [
        "x",
        "true",
        "false",
        "0",
        "5",
        "1700000000999",
        "9" * 16,
        "k1 k2",
        " k ",
        "k\x0b\x1cl",
        "日本",
        "\x01",
        "a\x01b",
        "",
    ]
)
TEXTS = st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=6).map(
    lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs)
)
RECORDS = st.builds(
    dict,
    properties=TEXTS,
    body=st.binary(max_size=40),
    queue_id=st.sampled_from([0, 1, 3]),
    queue_offset=st.integers(0, 2**40),
    offset=st.integers(0, 2**40),
    born_ms=st.integers(-5_000, 2**41),
    store_ms=st.integers(0, 2**41),
    reconsume_times=st.integers(0, 3),
)
UNUSUAL = {
    "compressed": {"sys_flag": COMPRESSED},
    "dead letter": {"reconsume_times": 16},
    "another topic": {"topic": b"%RETRY%G_T"},
    "IPv6": {"born_host": bytes(20)},
    "not UTF-8": {"properties": b"a\x01\xff"},
}


@pytest.fixture(scope="module")
def port() -> Any:
    open_port = selected().open_grpc_port
    assert open_port is not None
    opened = open_port(
        "127.0.0.1", 0, methods=set(), tls_mode="disabled", takes_plain_calls=True, reserved=field_checks.RESERVED
    )
    yield opened
    opened.close()


def stored(**fields: Any) -> bytes:
    """Return a record of the topic."""
    properties = fields.pop("properties", "")
    values: dict[str, Any] = {
        "topic": TOPIC.encode(),
        "body": b"body",
        "properties": properties if isinstance(properties, bytes) else properties.encode(),
        "queue_id": 1,
        "queue_offset": 41,
        "offset": 1000,
        "born_ms": 1,
        "born_host": bytes([192, 0, 2, 1, 0, 0, 0x13, 0x88]),
        "store_ms": 2,
        "store_host": bytes([192, 0, 2, 9, 0, 0, 0x2A, 0x9F]),
    }
    return record.encode(**{**values, **fields})


def reception(selected_tags: frozenset[str] | None = None) -> Reception:
    starts = {queue_id: start for (retry, queue_id), start in receipt_handles.first_offsets(TAKEN).items() if not retry}
    return Reception("n", TOPIC, BROKER, (TAKEN.pop_time, 60_000, 0), starts, (16, selected_tags))


def replies(framed: bytes) -> list[Any]:
    found = []
    while framed:
        end = 5 + int.from_bytes(framed[1:5], "big")
        found.append(api.ReceiveMessageResponse.FromString(framed[5:end]))
        framed = framed[end:]
    return found


@given(items=st.lists(RECORDS, min_size=1, max_size=4))
def test_messages_are_those_of_python(port: Any, items: list[dict[str, Any]]) -> None:
    data = b"".join(stored(**fields) for fields in items)
    parts = port.encode_received(data, reception())
    records = list(record.decode_all(data))
    if parts is None:
        properties = [item.property_map() for item in records]
        assert any(POP_CHECK_POINT in each or not each.get("KEYS", "").isprintable() for each in properties) or any(
            not each.get("KEYS", "").isascii() for each in properties
        )
        return
    resource = api.Resource(resource_namespace="n", name=TOPIC)
    expected = list(receipt_handles.with_handles(records, POPPED, BROKER, TAKEN))
    messages = [grpc_messages.received(item, resource, handle=str(handle)) for item, handle in expected]
    assert [reply.message for framed, _ in parts for reply in replies(framed)] == messages
    for (start, queue_id, offset, log_offset, *described), (item, handle) in zip(
        [message for _, messages in parts for message in messages], expected, strict=True
    ):
        assert (start, queue_id, offset, log_offset) == (
            handle.start,
            handle.queue_id,
            handle.offset,
            handle.log_offset,
        )
        assert DeliveredMessage(*described) == DeliveredMessage.of(item)


@pytest.mark.parametrize("fields", UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_records_are_left_to_python(port: Any, fields: dict[str, Any]) -> None:
    assert port.encode_received(stored(), reception()) is not None
    assert port.encode_received(stored() + stored(**fields), reception()) is None
    assert port.encode_received(stored()[:-1], reception()) is None


def test_messages_with_other_tags_are_left_to_python(port: Any) -> None:
    tagged = stored(properties="TAGS\x01A")
    assert port.encode_received(tagged, reception(frozenset({"A", "B"}))) is not None
    assert port.encode_received(tagged, reception(frozenset({"B"}))) is None
    assert port.encode_received(stored(), reception(frozenset({"B"}))) is None


def test_large_responses_have_several_parts(port: Any) -> None:
    parts = port.encode_received(stored(body=bytes(30_000)) * 7, reception())
    assert [len(messages) for _, messages in parts] == [3, 3, 1]
    assert port.encode_received(b"", reception()) == []
