"""Hook events: frozen values that describe what a client did. [SendMessageHook, ConsumeMessageHook, EndTransactionHook]

    SendEvent        after a response to an attempt to send, with a result or a refusal
    ConsumeStarted   before the listener is called
    ConsumeFinished  after it returned, raised or was cancelled
    TransactionEnd   before the state of a transaction is sent to the broker

A hook is a function of one event. To make the client wait (a full trace queue that blocks), it returns an awaitable. Exceptions
of a hook are logged and have no other effect.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import TypeVar

import msgspec

from ariane.client.instance.send_types import PreparedMessage, SendResult
from ariane.errors import ReplyError
from ariane.model.message import MessageQueue, ReceivedMessage

log = logging.getLogger("ariane.client")


class SendEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to send a message or a batch, and the broker's response.

    Exactly one of `result` and `refusal` is set. An attempt without a response causes no event.

    Example:
        def on_send(event: SendEvent) -> None:
            print(event.queue, event.cost_ms, event.refusal or "stored")

        Producer(namesrv, "shop", hooks=[on_send])
    """

    group: str
    """Producer group."""
    prepared: PreparedMessage
    """The message or batch as it was sent."""
    queue: MessageQueue
    """Queue that was written to."""
    broker_addr: str
    """Address of the broker."""
    started_ms: int
    """Start of the attempt, in milliseconds since the epoch."""
    cost_ms: int
    """Duration of the attempt in milliseconds."""
    result: SendResult | None = None
    """What the broker stored; None if it refused."""
    refusal: ReplyError | None = None
    """Why the broker refused; None if the message is stored."""


class ConsumeReturn(IntEnum):
    """How a call of a listener ended; the numbers are those of trace records. [ConsumeReturnType]"""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class ConsumeStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The listener is about to be called. `request_id` identifies the `ConsumeFinished` event of the same call."""

    group: str
    """Consumer group."""
    queue: MessageQueue
    """Queue of the messages."""
    messages: Sequence[ReceivedMessage]
    """Messages of the call."""
    request_id: str
    """Id of the call."""
    started_ms: int
    """Time of the event, in milliseconds since the epoch."""


class ConsumeFinished(msgspec.Struct, frozen=True, kw_only=True):
    """The call of the listener that `started` announced has ended."""

    started: ConsumeStarted
    """The event before the call."""
    outcome: ConsumeReturn
    """How the call ended."""
    ended_ms: int
    """End of the call, in milliseconds since the epoch."""
    cost_ms: int
    """Duration of the call in milliseconds."""


class LocalState(IntEnum):
    """State of a transaction, as `execute` and `check` return it. [LocalTransactionState]

    COMMIT delivers the message, ROLLBACK discards it, and after UNKNOWN the broker asks again later. The numbers are those of
    END_TRANSACTION requests.
    """

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12

    def __str__(self) -> str:
        """Return the name: states are printed for people."""
        return self.name

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)


class TransactionEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a transaction is about to be sent to the broker."""

    group: str
    """Producer group."""
    topic: str
    """Topic of the message."""
    tags: str
    """Tag of the message."""
    keys: str
    """Keys of the message, joined by spaces."""
    region: str
    """Region that the broker reported for the half message."""
    message_id: str
    """Id of the message."""
    transaction_id: str
    """Id of the transaction; usually the message id."""
    state: LocalState
    """State that is sent."""
    from_check: bool
    """True if the broker asked for the state; False right after `execute`."""
    broker_addr: str
    """Address of the broker."""
    ended_ms: int
    """Time of the event, in milliseconds since the epoch."""


Event = TypeVar("Event")
# A hook returns None, or an awaitable that makes the client wait.
SendHook = Callable[[SendEvent], Awaitable[None] | None]
TransactionEndHook = Callable[[TransactionEnd], Awaitable[None] | None]
ConsumeHook = Callable[[ConsumeStarted | ConsumeFinished], Awaitable[None] | None]


async def notify(hooks: Sequence[Callable[[Event], Awaitable[None] | None]], event: Event) -> None:
    """Call all hooks with `event`, one after another."""
    for hook in hooks:
        try:
            result = hook(event)
            if result is not None:
                await result
        except Exception:
            log.exception("A hook failed on %s", type(event).__name__)
