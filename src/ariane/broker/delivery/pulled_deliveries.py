"""Traced deliveries of pulls, which end when their group commits an offset after them.

pulled ──▶ SubBefore ┬ committed ───▶ SubAfter, success        the broker does not see when and how a message was consumed
                     ├ sent back ───▶ SubAfter, failed
                     └ pulled again ▶ no end: consumed or not, nothing says which
"""

from __future__ import annotations

from collections import OrderedDict

from ariane.broker.state.pop_table import QueueKey
from ariane.net.replies import Peer
from ariane.proxy.traces import open_deliveries
from ariane.proxy.traces.message_traces import FAILED, SUCCESS, DeliveredMessage, MessageTraces
from ariane.proxy.traces.open_deliveries import TracedDelivery


class PulledDeliveries:
    """Deliveries whose offset is not committed."""

    def __init__(self, traces: MessageTraces) -> None:
        self.dropped = 0
        """Number of deliveries whose end has no record because as many or as large ones as are awaited followed."""
        self.count = 0
        """Number of deliveries that have not ended."""
        self._text_bytes = 0  # of their ids and keys
        self._traces = traces
        # By offset, in their order. A queue moves to the end of the table with each delivery.
        self._queues: OrderedDict[QueueKey, OrderedDict[int, TracedDelivery]] = OrderedDict()

    def delivered(self, client: Peer, key: QueueKey, offset: int, message: DeliveredMessage) -> None:
        """Note a delivery, which replaces those of the same message and of later ones."""
        queue = self._queues.setdefault(key, OrderedDict())
        self._queues.move_to_end(key)
        while queue and next(reversed(queue)) >= offset:
            self._forget(queue.popitem()[1])
        delivery = queue[offset] = self._traces.start(client, key.group, message)
        self.count += 1
        self._text_bytes += delivery.text_bytes
        # The oldest ones of the least used queue have no record of their end.
        while self.count > open_deliveries.OPEN_MAX or self._text_bytes > open_deliveries.OPEN_BYTES_MAX:
            oldest = next(iter(self._queues))
            self._take(oldest, next(iter(self._queues[oldest])))
            self.dropped += 1

    def committed(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> None:
        """Note that a group has consumed the messages before an offset."""
        key = QueueKey(group, topic, queue_id)
        while (queue := self._queues.get(key)) and (first := next(iter(queue))) < offset:
            self._end(key, first, SUCCESS, now_ms)

    def returned(self, key: QueueKey, offset: int, now_ms: int) -> None:
        """Note that a message was not consumed."""
        if offset in self._queues.get(key, ()):
            self._end(key, offset, FAILED, now_ms)

    def _end(self, key: QueueKey, offset: int, code: int, now_ms: int) -> None:
        self._traces.end(key.group, self._take(key, offset), code, now_ms)

    def _take(self, key: QueueKey, offset: int) -> TracedDelivery:
        queue = self._queues[key]
        delivery = queue.pop(offset)
        self._forget(delivery)
        if not queue:
            del self._queues[key]
        return delivery

    def _forget(self, delivery: TracedDelivery) -> None:
        self.count -= 1
        self._text_bytes -= delivery.text_bytes
