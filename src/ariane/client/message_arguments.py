"""A message as the arguments of a send: a `Message`, or topic, body and fields.

send(Message(topic="orders", body=b"paid", keys=["ORDER-17"]))
send("orders", b"paid", keys=["ORDER-17"])                         # the same
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypedDict

from ariane.errors import MessageRefused
from ariane.model.message import Message


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


def message_of(message: Message | str, body: bytes | None, fields: MessageFields) -> Message:
    """Return the message that the arguments of a send describe.

    Raises:
        MessageRefused: a message is given together with a body or fields, a topic without a body, or an unknown field.
    """
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
        known = ", ".join(MessageFields.__annotations__)
        # As for any function: an unknown name is a mistake of the program, not of the message.
        raise TypeError(f"unknown argument {', '.join(sorted(unknown))}: a message has {known}")
    return Message(topic=message, body=body, **fields)
