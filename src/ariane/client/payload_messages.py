"""Received messages with decoded payloads."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from ariane.model.message import ReceivedMessage
from ariane.payloads import PayloadCodec
from ariane.protocol.received_messages import is_unreadable

REASON_MAX = 200  # characters of a codec's error: validators quote whole bodies

P = TypeVar("P")


class PayloadMessage(ReceivedMessage, Generic[P], frozen=True, kw_only=True):
    """A message that a listener receives from a `PushConsumer` with a codec (`payload=`)."""

    payload: P
    """The body, decoded."""


def with_payload(message: ReceivedMessage, codec: PayloadCodec[Any] | None) -> ReceivedMessage:
    """Return the message with its payload decoded; without a codec, the message.

    If the body cannot be decoded, the message is returned with `body_error`, which makes it a dead letter
    and is logged with it.
    """
    if codec is None or is_unreadable(message):
        return message
    try:
        payload = codec.decode(message.body)
    except Exception as error:  # noqa: BLE001 - a codec of the application may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:REASON_MAX]}"
        return msgspec.structs.replace(message, body_error=f"the payload cannot be decoded: {reason}")
    return PayloadMessage(**msgspec.structs.asdict(message), payload=payload)
