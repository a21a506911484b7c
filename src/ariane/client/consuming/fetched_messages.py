"""Messages between the fetch loops and the application, by queue. They stay in the offset trackers of their queues, whose
limits bound them, so no committed offset passes them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from ariane.client.consuming.process_queue import ProcessQueue
from ariane.model.message import ReceivedMessage


class FetchedMessages:
    """Fetched messages that no one has taken yet."""

    def __init__(self) -> None:
        self.available = asyncio.Event()
        """Set when messages were fetched or returned, when a queue may be read again, and when the consumer closes."""
        self._messages: dict[ProcessQueue, deque[ReceivedMessage]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._messages.values()))

    def add(self, process_queue: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None:
        """Append messages of a queue."""
        self._messages.setdefault(process_queue, deque()).extend(messages)
        self.available.set()

    def put_back(self, process_queue: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None:
        """Put messages in front of the others of their queue, in the order given; those of a dropped queue are discarded."""
        if not process_queue.is_dropped:
            self._messages.setdefault(process_queue, deque()).extendleft(reversed(list(messages)))
            self.available.set()

    def take(
        self, count: int, is_ready: Callable[[ProcessQueue], bool]
    ) -> tuple[ProcessQueue, list[ReceivedMessage]] | None:
        """Remove at most `count` messages of the next queue that has any and `is_ready`; None if there is no such queue."""
        for process_queue in self._messages:
            if not process_queue.is_dropped and is_ready(process_queue):
                break
        else:
            return None
        queued = self._messages.pop(process_queue)
        messages = [queued.popleft() for _ in range(min(count, len(queued)))]
        if queued:
            # Insert again at the end: queues take turns, so a busy one does not starve the others.
            self._messages[process_queue] = queued
        return process_queue, messages

    def position(self, process_queue: ProcessQueue) -> int:
        """Return the offset of the first message that was not taken; where the next pull starts if all were."""
        queued = self._messages.get(process_queue)
        return queued[0].queue_offset if queued else process_queue.tracker.next_offset

    def forget_dropped(self) -> None:
        """Discard messages of queues that were revoked or are read from another offset."""
        self._messages = {queue: messages for queue, messages in self._messages.items() if not queue.is_dropped}
