"""RECALL_MESSAGE (370) of 5.x: take back a message that waits for its time.

A message is named by what its send was answered: the message id, or the handle that 5.x clients get (`recallHandle`). The unique
key works too, and is what names a message that waits so long that it was moved to a newer part of the log.

    handle: base64url of `v1 topic brokerName deliveryTime uniqueKey`, as 5.x makes it

[RecallMessageProcessor, RecallMessageHandle of 5.x]
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

import msgspec

from ariane.broker import delay
from ariane.errors import FlushFailed, ProtocolError, ReplyError, StoreError
from ariane.model import ids
from ariane.net.connection import Handled, Handler, Peer, Reply
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import fields, typed
from ariane.store.message_store import MessageStore

HANDLE_VERSION = "v1"


class RecallMessage(msgspec.Struct, frozen=True, rename="camel"):
    """RECALL_MESSAGE (370)."""

    recall_handle: str
    topic: str = ""
    producer_group: str = ""


class RecallMessageAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Its answer: the unique key of the message that will not be delivered, its message id where it has none."""

    msg_id: str


class RecallParts(NamedTuple):
    """What a recall needs. `timers_of` gives the records of the timer topic that have a unique key."""

    store: MessageStore
    deliveries: delay.Deliveries
    timers_of: Callable[[str], Iterable[bytes]]
    durable: Callable[[int], Awaitable[bool]] | None


def handlers(parts: RecallParts) -> dict[int, Handler]:
    return {RequestCode.RECALL_MESSAGE: lambda command, peer: recall(parts, command, peer)}


def recall(parts: RecallParts, command: Command, peer: Peer) -> Handled:
    """Cancel a timer. Nothing that can be found and waits: 1 with the reason."""
    request = typed(command, RecallMessage)
    timer = _timer(parts, request.recall_handle)
    try:
        end = parts.deliveries.cancel(timer.number, timer.due_ms, peer.packed)
    except StoreError as error:
        return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
    reply = Reply(fields=fields(RecallMessageAnswer(timer.unique_key or request.recall_handle)))
    return reply if parts.durable is None else _when_durable(parts.durable, end, reply)


async def _when_durable(durable: Callable[[int], Awaitable[bool]], end: int, reply: Reply) -> Reply:
    try:
        flushed = await durable(end)
    except FlushFailed as error:
        return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
    return reply if flushed else Reply(ResponseCode.FLUSH_DISK_TIMEOUT, reply.fields)


def _timer(parts: RecallParts, name: str) -> delay.Timer:
    """The timer that `name` means."""
    try:
        offset = ids.parse_offset_message_id(name)[1]
    except ProtocolError:
        key = unique_key(name)
    else:
        timer = delay.timer(parts.store.record_at(offset))
        if timer is not None:
            return timer
        key = name
    found = [timer for data in parts.timers_of(key) if (timer := delay.timer(data)) is not None]
    if not found:
        raise ReplyError(
            ResponseCode.SYSTEM_ERROR,
            f"no message that waits for its time is named {name}: give its message id, unique key or recall handle",
        )
    return max(found)  # moved ones have the higher number


def unique_key(name: str) -> str:
    """The unique key in a handle, or `name` itself when it is no handle."""
    try:
        text = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
    except (binascii.Error, ValueError):
        return name
    version, *rest = text.split(" ")
    return rest[3] if version == HANDLE_VERSION and len(rest) == 4 else name


def handle(topic: str, broker_name: str, due_ms: int, key: str) -> str:
    """What a send of a timer is answered, for 5.x clients."""
    text = f"{HANDLE_VERSION} {topic} {broker_name} {due_ms} {key}"
    return base64.urlsafe_b64encode(text.encode()).decode()
