"""Protocol of delivery strategies: how fetched messages reach the application.

ConcurrentDelivery   messages of all queues to a fixed number of workers      (push)
OrderlyDelivery      one call per queue at a time, in the order of offsets    (push, orderly=True)
IteratorDelivery     messages wait for a loop and for their acknowledgement   (Consumer)
PollingDelivery      messages wait until the application polls                (lite pull)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ariane.client.consuming.consume_rates import ConsumeRates
from ariane.client.consuming.group_options import GroupOptions
from ariane.client.consuming.offset_store import OffsetStore
from ariane.client.consuming.process_queue import ProcessQueue
from ariane.client.delivery.consume_events import ConsumeEvents
from ariane.client.delivery.listener_invoker import ListenerInvoker
from ariane.client.delivery.send_back import SendBackStrategy
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.telemetry import ClientTelemetry
from ariane.model.message import ReceivedMessage


@dataclass(frozen=True, kw_only=True)
class DeliveryServices:
    """Collaborators of a delivery strategy."""

    instance: ClientInstance
    """The clock, and ids of requests."""
    options: GroupOptions
    """Group name, settings, and whether queues are consumed in order."""
    offsets: OffsetStore
    """Receives the consumed offset of a queue."""
    send_back: SendBackStrategy
    """What happens to failed messages."""
    events: ConsumeEvents
    """Hooks and traces."""
    telemetry: ClientTelemetry
    """Spans around the processing of messages."""
    rates: ConsumeRates
    """Counters for tools."""


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
