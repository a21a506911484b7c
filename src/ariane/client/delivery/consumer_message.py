"""Messages of a `Consumer`: a received message with what the application decides about it.

received ─┬─ ack()      consumed
          ├─ retry()    delivered again later
          ├─ reject()   dead letter
          └─ none of them within `consume_timeout` or until the consumer closes: delivered again
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Generic, Protocol

import msgspec

from ariane.client.consuming.process_queue import ProcessQueue
from ariane.client.delivery.consume_events import Consumption
from ariane.client.delivery.send_back import DEAD_LETTER
from ariane.client.instance import validation
from ariane.errors import ConfigError
from ariane.model.message import ReceivedMessage
from ariane.payloads import P

DELAY_LEVEL_MAX = 18  # of Java's brokers; one with fewer levels takes its highest


class Settlement(Enum):
    """How the delivery of a message ended; the values are the words of log lines."""

    ACKNOWLEDGED = "acknowledged"
    RETRIED = "sent back"
    REJECTED = "rejected"
    EXPIRED = "timed out"
    ABANDONED = "left when its consumer closed"


class Settler(Protocol):
    """Applies what the application decides: implemented by `IteratorDelivery`."""

    async def settle(self, receipt: Receipt, settlement: Settlement, delay_level: int = 0) -> None:
        """Settle a delivered message, unless it is settled already."""
        ...


class Receipt:
    """One delivery of a message to the application."""

    __slots__ = ("consumption", "deadline", "delivered_at", "message", "process_queue", "settlement", "settler")

    def __init__(self, settler: Settler, process_queue: ProcessQueue, message: ReceivedMessage) -> None:
        self.settler = settler  # settles this delivery
        self.process_queue = process_queue  # the assignment under which the message was fetched
        self.message = message  # as it was fetched
        self.consumption: Consumption | None = None  # its event before the delivery; None without hooks
        self.delivered_at = 0.0  # monotonic seconds
        self.deadline = 0.0  # monotonic seconds: without a settlement until then the message is delivered again
        self.settlement: Settlement | None = None  # the first one counts; None while the message is pending

    def __repr__(self) -> str:
        return "pending" if self.settlement is None else self.settlement.value


class ConsumerMessage(ReceivedMessage, Generic[P], frozen=True, kw_only=True):
    """A message that a `Consumer` yields.

    The first of `ack`, `retry` and `reject` counts. Later calls, and calls after the queue was revoked, after the message timed
    out or after the consumer was closed, are logged and have no effect.

    Example:
        async for message in consumer:
            try:
                await handle(message.body)
            except ConnectionError:
                await message.retry(delay_level=2)
            else:
                await message.ack()
    """

    payload: P
    """The body, decoded by the consumer's codec (`payload=`); without one, the body."""
    _receipt: Receipt

    @property
    def attempt(self) -> int:
        """Number of this delivery: 1 for the first, 2 for the first redelivery."""
        return self.reconsume_times + 1

    @property
    def is_pending(self) -> bool:
        """Whether neither the application nor the consumer has settled the message yet."""
        return self._receipt.settlement is None

    async def ack(self) -> None:
        """Count the message as consumed."""
        await self.settle(Settlement.ACKNOWLEDGED)

    async def retry(self, *, delay_level: int = 0) -> None:
        """Have the message delivered again later, and after `max_reconsume_times` redeliveries as a dead letter.

        Args:
            delay_level: Delay level of the redelivery. 0: the broker chooses, rising with each attempt. An orderly consumer
                ignores it: the queue pauses for `suspend_queue_time`, then the same message follows.

        Raises:
            ConfigError: the level is not a whole number from 0 to 18.
        """
        if delay_level == DEAD_LETTER:
            raise ConfigError("delay_level", delay_level, "call `reject()` for a dead letter")
        validation.whole("delay_level", delay_level, 0, DELAY_LEVEL_MAX)
        await self.settle(Settlement.RETRIED, delay_level)

    async def reject(self) -> None:
        """Make the message a dead letter: it is not delivered again."""
        await self.settle(Settlement.REJECTED)

    async def settle(self, settlement: Settlement, delay_level: int = 0) -> None:
        """Settle the message; `ack`, `retry` and `reject` are the ways for applications."""
        await self._receipt.settler.settle(self._receipt, settlement, delay_level)


def consumer_message(receipt: Receipt) -> ConsumerMessage[Any]:
    """Return the message of a receipt as the application gets it."""
    fields = msgspec.structs.asdict(receipt.message)
    fields.setdefault("payload", receipt.message.body)
    return ConsumerMessage(**fields, _receipt=receipt)
