"""Messages of a `SimpleConsumer`: a received message that is invisible to the other members of its group.

taken ─┬─ ack()                 consumed
       ├─ change_invisible(s)   delivered again in `s` seconds, unless it is settled before
       ├─ reject()              dead letter
       └─ none of them while it is invisible: delivered again
"""

from __future__ import annotations

import contextvars
from contextlib import AbstractContextManager
from datetime import timedelta
from enum import Enum
from typing import Any, Generic, Protocol

import msgspec

from ariane.client.consuming.pop_deliveries import Delivery
from ariane.client.delivery.consume_events import Consumption
from ariane.clock import Timer
from ariane.model.message import ReceivedMessage
from ariane.payloads import P


class PoppedState(Enum):
    """What became of a taken message; the values are the words of log lines."""

    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    REJECTED = "rejected"
    EXPIRED = "visible again"
    ABANDONED = "left when its consumer closed"


class PoppedReceipt:
    """One delivery of a message by POP, as the client sees it."""

    __slots__ = ("consumption", "context", "delivery", "message", "settler", "span", "state", "taken_at", "timer")

    def __init__(self, settler: PoppedSettler, message: ReceivedMessage, delivery: Delivery, taken_at: float) -> None:
        self.settler = settler  # sends the requests
        self.message = message
        self.delivery = delivery  # as the broker identifies it; another one after each change of the invisible time
        self.taken_at = taken_at  # monotonic seconds
        self.state = PoppedState.PENDING
        self.timer: Timer | None = None  # until the message is visible again
        self.consumption: Consumption | None = None  # the event that announced it; None without hooks
        self.span: AbstractContextManager[None] | None = None  # open until the message is settled
        # Context of the span: the tasks that receive and settle may differ.
        self.context: contextvars.Context | None = None

    def __repr__(self) -> str:
        return self.state.value


class PoppedSettler(Protocol):
    """Applies what the application decides: implemented by `SimpleDelivery`."""

    async def acknowledge(self, receipts: list[PoppedReceipt]) -> None: ...

    async def change_invisible(self, receipt: PoppedReceipt, invisible: float | timedelta) -> None: ...

    async def reject(self, receipt: PoppedReceipt) -> None: ...


class PoppedMessage(ReceivedMessage, Generic[P], frozen=True, kw_only=True):
    """A message that a `SimpleConsumer` received: no other member receives it while it is invisible.

    The first of `ack` and `reject` counts; a later one is logged and has no effect. A call that raises another error than
    `DeliveryExpired` leaves the message pending, and may be repeated.

    Example:
        for message in await consumer.receive(invisible=30):
            if await is_ready(message.body):
                await message.ack()
            else:
                await message.change_invisible(5)
    """

    payload: P
    """The body, decoded by the consumer's codec (`payload=`); without one, the body."""
    _receipt: PoppedReceipt

    @property
    def attempt(self) -> int:
        """Number of this delivery: 1 for the first, 2 for the first redelivery."""
        return self.reconsume_times + 1

    @property
    def is_pending(self) -> bool:
        """Whether the message is neither settled nor visible again."""
        return self._receipt.state is PoppedState.PENDING

    async def ack(self) -> None:
        """Count the message as consumed.

        Raises:
            DeliveryExpired: the invisible time is over, so the message may be delivered again.
            ConnectionLost, RequestTimeout, ReplyError: the broker did not respond, or with an error.
        """
        await self._receipt.settler.acknowledge([self._receipt])

    async def change_invisible(self, invisible: float | timedelta) -> None:
        """Have the message delivered again `invisible` seconds from now, unless it is settled before.

        Args:
            invisible: Seconds or a `timedelta`, up to 12 hours. A long time is for work that takes longer; a short one, or 0,
                for a retry.

        Raises:
            ConfigError: the time cannot be used.
            DeliveryExpired: the invisible time was over before, so the message may be delivered again.
            ConnectionLost, RequestTimeout, ReplyError: the broker did not respond, or with an error.
        """
        await self._receipt.settler.change_invisible(self._receipt, invisible)

    async def reject(self) -> None:
        """Make the message a dead letter: it is not delivered again.

        Raises:
            DeliveryExpired: the invisible time is over, so the message may be delivered again.
            ServerUnavailable: no broker stored the dead letter.
            ConnectionLost, RequestTimeout, ReplyError: the broker did not respond, or with an error.
        """
        await self._receipt.settler.reject(self._receipt)


def popped_message(receipt: PoppedReceipt) -> PoppedMessage[Any]:
    """Return the message of a receipt as the application gets it."""
    fields = msgspec.structs.asdict(receipt.message)
    fields.setdefault("payload", receipt.message.body)
    return PoppedMessage(**fields, _receipt=receipt)


def receipt_of(message: PoppedMessage[Any]) -> PoppedReceipt:
    """Return the receipt of a message."""
    return message._receipt
