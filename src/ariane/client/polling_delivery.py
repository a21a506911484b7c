"""Delivery by polling: fetched messages wait until the application takes them. [DefaultLitePullConsumerImpl]

    fetched ─ take() ─→ polled ─ acknowledge() ─→ offsets that may be committed

Fetched and polled messages stay in the offset trackers of their queues, so no committed offset passes them, and the trackers'
limits bound them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection

from ariane.client.process_queue import ProcessQueue
from ariane.model.message import MessageQueue, ReceivedMessage


class PollingDelivery:
    """Messages of one lite-pull consumer between the fetch loops and the application."""

    invoker = None

    def __init__(self) -> None:
        self.available = asyncio.Event()
        """Set when messages were fetched, a paused queue was resumed or the consumer closes."""
        self._fetched: dict[ProcessQueue, deque[ReceivedMessage]] = {}
        self._polled: dict[ProcessQueue, list[ReceivedMessage]] = {}

    def start(self) -> None:
        """Do nothing: the application drives the delivery."""

    def on_assigned(self, process_queue: ProcessQueue) -> None:
        """Do nothing: a queue appears with its first messages."""

    def on_messages(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Append fetched messages."""
        self._fetched.setdefault(process_queue, deque()).extend(messages)
        self.available.set()

    async def on_revoked(self, process_queue: ProcessQueue) -> None:
        """Drop the queue and its messages."""
        process_queue.drop()
        self.forget_dropped()

    async def close(self, wait_s: float) -> None:
        """Wake a waiting poll."""
        self.available.set()

    def forget_dropped(self) -> None:
        """Discard messages of queues that were revoked or are read from another offset."""
        self._fetched = {queue: messages for queue, messages in self._fetched.items() if not queue.is_dropped}
        self._polled = {queue: messages for queue, messages in self._polled.items() if not queue.is_dropped}

    def take(self, count: int, paused: Collection[MessageQueue]) -> list[ReceivedMessage]:
        """Return at most `count` messages of the next queue that has any and is not paused."""
        for process_queue in list(self._fetched):
            if process_queue.is_dropped or process_queue.queue in paused:
                continue
            fetched = self._fetched.pop(process_queue)
            messages = [fetched.popleft() for _ in range(min(count, len(fetched)))]
            if fetched:
                # Insert again at the end: queues take turns, so a busy one does not starve the others.
                self._fetched[process_queue] = fetched
            self._polled.setdefault(process_queue, []).extend(messages)
            return messages
        return []

    def position(self, process_queue: ProcessQueue) -> int:
        """Return the offset of the first message that was not taken; where the next pull starts if all were."""
        fetched = self._fetched.get(process_queue)
        return fetched[0].queue_offset if fetched else process_queue.tracker.next_offset

    def acknowledge(self) -> dict[MessageQueue, int]:
        """Mark all polled messages as consumed and return the offsets that may be committed."""
        offsets = {}
        for process_queue, messages in self._polled.items():
            if not process_queue.is_dropped:
                offsets[process_queue.queue] = process_queue.tracker.mark_consumed(messages)
                process_queue.changed.set()
        self._polled.clear()
        return offsets
