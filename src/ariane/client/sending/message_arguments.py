"""A message as the arguments of a send: a `Message`, or topic, body and fields.

send(Message(topic="orders", body=b"paid", keys=["ORDER-17"]))
send("orders", b"paid", keys=["ORDER-17"])                         # the same
send("orders", payload=order, keys=["ORDER-17"])                   # the body is what the producer's codec makes of the payload
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

from ariane.client.sending import send_codec
from ariane.errors import MessageRefused
from ariane.model.message import Message, MessageQueue
from ariane.payloads import PayloadCodec

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]

REASON_MAX = 200  # characters of a codec's error: validators quote whole values


class MessageFields(TypedDict, total=False):
    """Fields of a `Message` as keyword arguments: all but topic and body."""

    tags: str
    keys: Sequence[str]
    properties: Mapping[str, str]
    flag: int
    delay_level: int
    delay: float | timedelta
    deliver_at: datetime | None
    deliver_at_ms: int
    wait_stored: bool
    message_id: str


class QueueChoice(TypedDict, total=False):
    """Arguments of a send that choose the queue."""

    queue: MessageQueue | None
    order_key: str | None
    selector: QueueSelector | None


class SendFields(QueueChoice, MessageFields):
    """Arguments of a send by topic."""


def message_of(
    message: Message | str,
    body: bytes | None,
    fields: MessageFields | dict[str, Any],
    codec: PayloadCodec[Any] | None = None,
) -> Message:
    """Return the message that the arguments of a send describe.

    Args:
        message: A message, or a topic.
        body: The body, with a topic.
        fields: Fields of the message with a topic, and `payload` in place of a body.
        codec: Encodes the payload; None: the payload is the body.

    Raises:
        MessageRefused: a message is given together with a body or fields, a topic without a body, or an unknown field; or the
            payload cannot be encoded.
    """
    if fields and "payload" in fields:
        fields = dict(fields)
        payload = fields.pop("payload")
        if body is not None or not isinstance(message, str):
            raise MessageRefused(
                "a payload replaces the body: give send(topic, payload=…), without a body or a Message"
            )
        body = encode_payload(payload, codec)
    if not isinstance(message, str):
        if body is not None or fields:
            names = ", ".join(["body"] * (body is not None) + sorted(fields))
            raise MessageRefused(
                f"{names} of a Message are its own: give send(Message(…)), or a topic, a body and fields"
            )
        return message
    if body is None:
        raise MessageRefused(f"no body for topic {message!r}: give send({message!r}, b'…')")
    if fields and (unknown := fields.keys() - MessageFields.__annotations__.keys()):
        names = ", ".join(MessageFields.__annotations__)
        # As for any function: an unknown name is a mistake of the program, not of the message.
        raise TypeError(f"unknown argument {', '.join(sorted(unknown))}: a message has {names}")
    return Message(topic=message, body=body, **fields)


def choose_queue(
    queues: Sequence[MessageQueue], message: Message, order_key: str | None, selector: QueueSelector | None
) -> MessageQueue:
    """Return the queue that `order_key` or `selector` chooses.

    Raises:
        MessageRefused: both are given, or the selector returns something else.
    """
    if selector is None:
        assert order_key is not None
        return send_codec.queue_for_key(queues, order_key)
    if order_key is not None:
        raise MessageRefused("both order_key and selector are given: give only one of them")
    chosen = selector(queues, message)
    if not isinstance(chosen, MessageQueue):
        raise MessageRefused(f"the selector returned {chosen!r}: expected one of the queues that it was called with")
    return chosen


def encode_payload(payload: Any, codec: PayloadCodec[Any] | None) -> bytes:
    """Return the body for a payload.

    Raises:
        MessageRefused: the codec fails, or there is none and the payload is not bytes.
    """
    kind = type(payload).__name__
    if codec is None:
        if not isinstance(payload, bytes):
            raise MessageRefused(
                f"the payload is of type {kind}: give the producer a codec, payload=Json(…), or send bytes"
            )
        return payload
    try:
        return codec.encode(payload)
    except Exception as error:  # a codec of the application may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:REASON_MAX]}"
        raise MessageRefused(f"the payload of type {kind} cannot be encoded: {reason}") from error
