"""Traced deliveries whose end is awaited, bounded in number and in bytes: the keys of a message may have 32 KB."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from ariane.net.replies import Peer
from ariane.proxy.conversion.receipt_handles import DeliveryKey

OPEN_MAX = 100_000  # deliveries whose end is awaited
OPEN_BYTES_MAX = 32 * 1024 * 1024  # of their texts: 335 bytes for each of OPEN_MAX; most need half
LATE_MAX = 10_000  # deliveries that may be acknowledged after their time
LATE_BYTES_MAX = 4 * 1024 * 1024


@dataclass(slots=True)
class TracedDelivery:
    """A delivery that has not ended."""

    client: Peer
    request_id: str
    message_id: str
    keys: str
    started_ms: int
    taken_ms: int  # identifies the delivery in the handles of its message
    visible_ms: int

    @property
    def text_bytes(self) -> int:
        """Size of what the client has chosen."""
        return sys.getsizeof(self.message_id) + sys.getsizeof(self.keys)


class DeliveryTable:
    """Deliveries by key, in the order in which they were added."""

    def __init__(self) -> None:
        self.text_bytes = 0
        """Size of the texts of all deliveries."""
        self._deliveries: OrderedDict[DeliveryKey, TracedDelivery] = OrderedDict()

    def __len__(self) -> int:
        return len(self._deliveries)

    def get(self, key: DeliveryKey) -> TracedDelivery | None:
        """Return the delivery with a key."""
        return self._deliveries.get(key)

    def items(self) -> Iterable[tuple[DeliveryKey, TracedDelivery]]:
        """Return all deliveries with their keys."""
        return self._deliveries.items()

    def add(self, key: DeliveryKey, delivery: TracedDelivery) -> None:
        """Add a delivery, whose key the table does not have."""
        self._deliveries[key] = delivery
        self.text_bytes += delivery.text_bytes

    def take(self, key: DeliveryKey, taken_ms: int | None = None) -> TracedDelivery | None:
        """Remove and return a delivery; None if there is none, or another one than that of `taken_ms`."""
        delivery = self._deliveries.get(key)
        if delivery is None or taken_ms not in (None, delivery.taken_ms):
            return None
        del self._deliveries[key]
        self.text_bytes -= delivery.text_bytes
        return delivery

    def take_oldest(self) -> None:
        """Remove the delivery that was added first."""
        self.text_bytes -= self._deliveries.popitem(last=False)[1].text_bytes
