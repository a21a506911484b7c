"""Arguments of sends: a message, a topic with a body, or a topic with a payload."""

from __future__ import annotations

import pytest

from ariane.client.sending.message_arguments import message_of
from ariane.errors import MessageRefused
from ariane.model.message import Message
from ariane.payloads import Json


class NoBytes:
    """A codec that does not encode to bytes."""

    def encode(self, value: object, /) -> bytes:
        return str(value)  # type: ignore[return-value]

    def decode(self, body: bytes, /) -> object:
        return body


def test_a_payload_becomes_the_body() -> None:
    fields = {"payload": {"id": 17}, "keys": ["K"]}
    assert message_of("orders", None, fields, Json()) == Message(topic="orders", body=b'{"id":17}', keys=["K"])
    assert fields.keys() == {"payload", "keys"}
    assert message_of("orders", None, {"payload": None}, Json()).body == b"null"
    assert message_of("orders", None, {"payload": b"x"}) == Message(topic="orders", body=b"x")


@pytest.mark.parametrize(
    ("message", "body", "codec", "fields", "text"),
    [
        ("orders", b"x", Json(), {"payload": 1}, "a payload replaces the body"),
        (Message(topic="orders", body=b"x"), None, Json(), {"payload": 1}, "a payload replaces the body"),
        ("orders", None, None, {"payload": {"id": 17}}, "of type dict: give the producer a codec, payload=Json"),
        (
            "orders",
            None,
            Json(),
            {"payload": object()},
            "of type object cannot be encoded: TypeError: Encoding objects",
        ),
        ("orders", None, Json(), {}, "no body for topic 'orders'"),
    ],
)
def test_payloads_that_are_refused(message, body, codec, fields, text) -> None:
    with pytest.raises(MessageRefused, match=text):
        message_of(message, body, fields, codec)


def test_the_body_of_a_codec_is_checked_by_the_send() -> None:
    # Like any body: by `send_codec.prepare`.
    assert message_of("orders", None, {"payload": 1}, NoBytes()).body == "1"  # type: ignore[comparison-overlap]
