"""What of one queue was pulled and is not yet consumed, and the offset that may be committed. Pure. [ProcessQueue]

    offsets    … 40 41 │ 42 43 44 45 46 47 │ 48 …
                       │  ·  ✓  ✓  ·  ✓  · │           ✓ consumed, · waiting or under way
    committed          42: the smallest that waits        next pull: 48

Everything below the committed offset is consumed, so a crash repeats messages (43, 44, 46) and loses none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from ariane.model.message import ReceivedMessage


class OffsetTracker:
    """Messages by offset, put in rising order, taken out in any. `next_offset` is where the next pull begins."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.bytes = 0
        self._cached: dict[int, ReceivedMessage] = {}
        self._order: deque[int] = deque()  # offsets ever put, consumed ones at the front removed

    def __len__(self) -> int:
        return len(self._cached)

    @property
    def span(self) -> int:
        """Distance between the first and the last waiting offset; 0 when fewer than two wait."""
        return self._order[-1] - self._order[0] if self._cached else 0

    @property
    def bounds(self) -> tuple[int, int]:
        """The first and the last waiting offset; 0, 0 when none waits, as Java tells it."""
        return (self._order[0], self._order[-1]) if self._cached else (0, 0)

    @property
    def commit_offset(self) -> int:
        """The smallest waiting offset; where the next pull begins when none waits."""
        return self._order[0] if self._order else self.next_offset

    def add(self, messages: Iterable[ReceivedMessage], next_offset: int) -> None:
        """What a pull brought; `next_offset` lies behind it, and behind what the filter left out."""
        for message in messages:
            offset = message.queue_offset
            if offset not in self._cached and (not self._order or offset > self._order[-1]):
                self._order.append(offset)
                self._cached[offset] = message
                self.bytes += message.stored_size
        self.next_offset = next_offset

    def first(self, count: int) -> list[ReceivedMessage]:
        """The first messages that wait, in order."""
        found = []
        for offset in self._order:
            message = self._cached.get(offset)
            if message is not None:
                found.append(message)
                if len(found) == count:
                    break
        return found

    def replace(self, messages: Sequence[ReceivedMessage]) -> None:
        """Newer versions (another attempt) of messages that wait."""
        for message in messages:
            if message.queue_offset in self._cached:
                self._cached[message.queue_offset] = message

    def mark_consumed(self, messages: Iterable[ReceivedMessage]) -> int:
        """These are consumed, or stored elsewhere for another attempt; the offset that may be committed now."""
        for message in messages:
            known = self._cached.pop(message.queue_offset, None)
            if known is not None:
                self.bytes -= known.stored_size
        order = self._order
        while order and order[0] not in self._cached:
            order.popleft()
        return self.commit_offset

    def is_full(self, *, count_max: int, bytes_max: int, span_max: int | None) -> bool:
        """Whether the queue is not to be pulled for now. An orderly queue has no span limit (None)."""
        return (
            len(self._cached) > count_max or self.bytes > bytes_max or (span_max is not None and self.span > span_max)
        )
