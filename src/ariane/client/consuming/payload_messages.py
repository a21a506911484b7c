"""Received messages with decoded payloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

import msgspec

from ariane.model.message import ReceivedMessage
from ariane.payloads import P, PayloadCodec
from ariane.protocol.records.received_messages import is_unreadable

REASON_MAX = 200  # characters of a codec's error: validators quote whole bodies


class PayloadMessage(ReceivedMessage, Generic[P], frozen=True, kw_only=True):
    """A message of a consumer with a codec (`payload=`): what a listener receives, and what `poll` and `pull` return."""

    payload: P
    """The body, decoded."""


# Messages of a consumer that is polled or pulls: `ReceivedMessage`, with a codec `PayloadMessage`.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    M = TypeVar("M", bound=ReceivedMessage, default=ReceivedMessage)
else:
    from typing import TypeVar

    M = TypeVar("M", bound=ReceivedMessage)


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
