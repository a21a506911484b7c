"""Payload codecs, and messages with decoded payloads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TypedDict

import msgspec
import pytest
from client_script import message

from ariane.client.consumer import Consumer
from ariane.client.consuming.payload_messages import PayloadMessage, with_payload
from ariane.client.consuming.process_queue import ProcessQueue
from ariane.client.delivery.consumer_message import Receipt, consumer_message
from ariane.errors import ConfigError
from ariane.payloads import Json
from ariane.protocol.records.received_messages import is_unreadable


@dataclass
class Line:
    name: str
    count: int = 1


class Order(msgspec.Struct):
    id: int
    lines: list[Line]


class Total(TypedDict):
    amount: float


ORDER = Order(17, [Line("tea", 2), Line("cup")])


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (Json(Order), ORDER),
        (Json(Line), Line("tea")),
        (Json(Total), {"amount": 1.5}),
        (Json(list[Line]), [Line("tea")]),
        (Json(), {"any": [1, None, "x"]}),
    ],
)
def test_json_of_a_type_goes_both_ways(codec, value):
    assert codec.decode(codec.encode(value)) == value


def test_pydantic_models_check_themselves():
    pydantic = pytest.importorskip("pydantic")

    class Customer(pydantic.BaseModel):
        name: str
        age: int

    codec = Json(Customer)
    assert codec.decode(codec.encode(Customer(name="Ann", age=3))) == Customer(name="Ann", age=3)
    with pytest.raises(ValueError, match="age"):
        codec.decode(b'{"name": "Ann"}')


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"id": "seventeen", "lines": []}', b'{"id": 1}'])
def test_a_body_of_another_type_is_a_value_error(body):
    with pytest.raises(ValueError, match=".+"):
        Json(Order).decode(body)


def test_an_unsupported_type_is_refused():
    with pytest.raises(ConfigError, match="cannot decode this type"):
        Json(Line | Order)


@pytest.mark.parametrize(("wrong", "said"), [(Json, "this is a class"), ("json", "encode"), (len, "encode")])
def test_a_payload_that_is_no_codec_is_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        Consumer("127.0.0.1:1", "g", {"T": "*"}, payload=wrong)


def test_a_message_has_its_payload_decoded():
    received = with_payload(message(3, body=Json().encode({"id": 1, "lines": []})), Json(Order))
    assert isinstance(received, PayloadMessage)
    assert (received.payload, received.queue_offset, received.body_error) == (Order(1, []), 3, "")
    again = msgspec.structs.replace(received, reconsume_times=1)  # what a local redelivery does
    assert again.payload == Order(1, [])


def test_a_payload_that_cannot_be_decoded_is_an_unreadable_body():
    received = with_payload(message(3, body=b"{" * 1_000), Json(Order))
    assert received.body_error.startswith("the payload cannot be decoded: DecodeError: JSON is malformed")
    assert is_unreadable(received)


def test_messages_without_a_codec_and_those_that_could_not_be_expanded_are_unchanged():
    plain, broken = message(0), message(1, sys_flag=0x101, body_error="broken")
    assert with_payload(plain, None) is plain
    assert with_payload(broken, Json()) is broken


def test_a_message_of_a_loop_has_the_payload_or_the_body():
    async def play():
        queue = ProcessQueue(message(0).queue, 0)
        plain = consumer_message(Receipt(None, queue, message(0)))
        decoded = consumer_message(Receipt(None, queue, with_payload(message(0, body=b"[1]"), Json())))
        assert (plain.payload, decoded.payload, decoded.body) == (b"0", [1], b"[1]")

    asyncio.run(play())
