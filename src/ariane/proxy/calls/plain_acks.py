"""AckMessage calls that need no decision, all of a client's in a turn: ended together, by one append to the log of changes.

PlainAcks ─ deliveries ─▶ MessageService.acknowledge_all ─ durable ─▶ renewals end, traces ─▶ replies
               └ one of them cannot be acknowledged ─▶ each call is served by itself, as other calls
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ariane.protocol.requests.pop import AckedDelivery
from ariane.proxy import api
from ariane.proxy.conversion import field_checks
from ariane.proxy.conversion.receipt_handles import DeliveryKey
from ariane.proxy.handle_renewal import HandleRenewal
from ariane.proxy.traces.message_traces import MessageTraces


class PlainAckService(Protocol):
    """Ends deliveries without a decision about each. [BrokerMessageService]"""

    def acknowledge_all(self, deliveries: Sequence[AckedDelivery]) -> Awaitable[None] | None:
        """End deliveries, all or nothing.

        Returns:
            None if their end is durable; otherwise an awaitable, which raises ArianeError if it will not be.

        Raises:
            ArianeError: `MessageService.acknowledge` has to decide about each.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class PlainAckCalls:
    """Acknowledges the messages of a turn."""

    service: PlainAckService
    renewal: HandleRenewal
    traces: MessageTraces

    def serve(self, deliveries: Sequence[AckedDelivery]) -> Awaitable[None] | None:
        """End deliveries. `on_ended` is to be called when the end is durable. [PlainAckService.acknowledge_all]"""
        for each in deliveries:
            _check_names(each.group, each.topic)
        return self.service.acknowledge_all(deliveries)

    def on_ended(self, deliveries: Sequence[AckedDelivery]) -> None:
        """End the renewals of messages, and trace their end."""
        if not self.renewal.count and not self.traces.has_deliveries:
            return
        for each in deliveries:
            for offset in each.offsets:
                key = DeliveryKey(each.group, each.topic, each.broker, 0, each.queue_id, offset)
                self.renewal.close(key, each.taken_ms)
                self.traces.acknowledged(key, each.taken_ms)


@functools.lru_cache(maxsize=1024)
def _check_names(group: str, topic: str) -> None:
    """Raise CallRefused if one of the names is not valid."""
    field_checks.group_name(api.Resource(name=group))
    field_checks.topic_name(api.Resource(name=topic))
