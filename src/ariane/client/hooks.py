"""What clients tell about themselves: frozen events, given to functions that never reach back. [SendMessageHook, …]

    Sent       after an attempt to send that was answered, with a result or with a refusal
    Consuming  before the listener is called
    Consumed   after it returned, raised, or was cancelled
    Ending     before the end of a transaction is told to the broker

A hook that has to make the client wait (a full trace queue, `block`) returns an awaitable; the client waits for it. What a
hook raises is logged and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import TypeVar

import msgspec

from ariane.client.send_codec import PreparedMessage, SendResult
from ariane.errors import ReplyError
from ariane.model.message import MessageQueue, ReceivedMessage

log = logging.getLogger("ariane.client")


class SendEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to send a message or a batch, and what the broker said. Exactly one of `result` and `refusal` is set."""

    group: str
    prepared: PreparedMessage
    queue: MessageQueue
    broker_addr: str
    started_ms: int
    cost_ms: int
    result: SendResult | None = None
    refusal: ReplyError | None = None


class ConsumeReturn(IntEnum):
    """How a call of a listener ended; the numbers are those of trace records. [ConsumeReturnType]"""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class ConsumeStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The listener is about to be called. `request_id` joins this event with its `Consumed`."""

    group: str
    queue: MessageQueue
    messages: Sequence[ReceivedMessage]
    request_id: str
    started_ms: int


class ConsumeFinished(msgspec.Struct, frozen=True, kw_only=True):
    """The call is over."""

    started: ConsumeStarted
    outcome: ConsumeReturn
    ended_ms: int
    cost_ms: int


class LocalState(IntEnum):
    """What became of a transaction; the numbers are those of END_TRANSACTION. [LocalTransactionState]"""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12

    def __str__(self) -> str:
        """Return the name: a result is printed for people."""
        return self.name

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)


class TransactionEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The broker is about to be told the state of a transaction: `from_check` because it asked."""

    group: str
    topic: str
    tags: str
    keys: str
    region: str
    message_id: str
    transaction_id: str
    state: LocalState
    from_check: bool
    broker_addr: str
    ended_ms: int


Event = TypeVar("Event")
SendHook = Callable[[SendEvent], Awaitable[None] | None]
TransactionEndHook = Callable[[TransactionEnd], Awaitable[None] | None]
ConsumeHook = Callable[[ConsumeStarted | ConsumeFinished], Awaitable[None] | None]


async def notify(hooks: Sequence[Callable[[Event], Awaitable[None] | None]], event: Event) -> None:
    """Give `event` to all hooks, one after another."""
    for hook in hooks:
        try:
            waiting = hook(event)
            if waiting is not None:
                await waiting
        except Exception:
            log.exception("a hook failed on %s", type(event).__name__)
