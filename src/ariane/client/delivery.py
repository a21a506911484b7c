"""Protocol of delivery strategies: how fetched messages reach the application.

ConcurrentDelivery   messages of all queues to a fixed number of workers      (push)
OrderlyDelivery      one call per queue at a time, in the order of offsets    (push, orderly=True)
PollingDelivery      messages wait until the application polls                (lite pull)
"""

from __future__ import annotations

from typing import Protocol

from ariane.client.listener_invoker import ListenerInvoker
from ariane.client.process_queue import ProcessQueue
from ariane.model.message import ReceivedMessage


class DeliveryStrategy(Protocol):
    """Receives assigned queues and their messages from the group membership."""

    @property
    def invoker(self) -> ListenerInvoker | None:
        """Calls the application's listener; None if the application polls."""
        ...

    def start(self) -> None:
        """Start the workers, before the first queue is assigned."""
        ...

    def on_assigned(self, process_queue: ProcessQueue) -> None:
        """Take over a queue; its messages follow through `on_messages`."""
        ...

    def on_messages(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Deliver fetched messages, which are in the queue's offset tracker already."""
        ...

    async def on_revoked(self, process_queue: ProcessQueue) -> None:
        """Return when the queue may be assigned to another member, and drop it."""
        ...

    async def close(self, wait_s: float) -> None:
        """Start no more calls and wait at most `wait_s` seconds for the running ones; then cancel them."""
        ...
