"""RECALL_MESSAGE (370) of 5.x: take back a message that waits for its time. [RecallMessageProcessor of 5.x]

A message is named by what its send was answered: the message id, or the handle that 5.x clients get. Its unique key works too,
and is what names a message that waits so long that it was moved to a newer part of the log. Clients that do not know the code
send any message to the same topic with the name in its property TIMER_DEL_UNIQKEY (see `send`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from ariane.broker import delayed_delivery
from ariane.errors import FlushFailed, ProtocolError, ReplyError, StoreError
from ariane.model import ids
from ariane.net.connection import Handled, Handler, Peer, Reply
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import fields, typed
from ariane.protocol.requests.messaging import RecallMessage, RecallMessageAnswer
from ariane.store.message_store import AppendResult, MessageStore


class RecallHandler(NamedTuple):
    """What a recall needs. `timers_of` gives the records of the timer topic that have a unique key."""

    store: MessageStore
    deliveries: delayed_delivery.DeliveryLoop
    timers_of: Callable[[str], Iterable[bytes]]
    durable: Callable[[int], Awaitable[bool]] | None


def handlers(parts: RecallHandler) -> dict[int, Handler]:
    return {RequestCode.RECALL_MESSAGE: lambda command, peer: recall(parts, command, peer)}


def recall(parts: RecallHandler, command: Command, peer: Peer) -> Handled:
    """Cancel a timer. What cannot be found, or waits no more, is answered with 1 and the reason."""
    request = typed(command, RecallMessage)
    try:
        timer, placed = cancel(parts, request.recall_handle, peer.packed)
    except StoreError as error:
        return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
    reply = Reply(fields=fields(RecallMessageAnswer(timer.unique_key or request.recall_handle)))
    return reply if parts.durable is None else _when_durable(parts.durable, placed, reply)


def cancel(parts: RecallHandler, name: str, born_host: bytes) -> tuple[delayed_delivery.DeliveryTimer, AppendResult]:
    """Cancel the timer that `name` means; it, and the note of that. ReplyError when none waits under that name."""
    timer = _timer(parts, name)
    return timer, parts.deliveries.cancel(timer.number, timer.due_ms, born_host)


async def _when_durable(durable: Callable[[int], Awaitable[bool]], placed: AppendResult, reply: Reply) -> Reply:
    try:
        flushed = await durable(placed.offset + placed.size)
    except FlushFailed as error:
        return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
    return reply if flushed else Reply(ResponseCode.FLUSH_DISK_TIMEOUT, reply.fields)


def _timer(parts: RecallHandler, name: str) -> delayed_delivery.DeliveryTimer:
    try:
        offset = ids.parse_offset_message_id(name)[1]
    except ProtocolError:
        key = ids.recalled_key(name).rpartition("+")[2]  # in TIMER_DEL_UNIQKEY, 5.x puts the topic before it
    else:
        timer = delayed_delivery.decode_timer(parts.store.read_record(offset))
        if timer is not None:
            return timer
        key = name
    found = [timer for data in parts.timers_of(key) if (timer := delayed_delivery.decode_timer(data)) is not None]
    if not found:
        raise ReplyError(
            ResponseCode.SYSTEM_ERROR,
            f"no message that waits for its time is named {name}: give its message id, unique key or recall handle",
        )
    return max(found)  # moved ones have the higher number
