"""Offset tracker: cached messages of one queue, and the offset that may be committed. Pure. [ProcessQueue]

    offsets    … 40 41 │ 42 43 44 45 46 47 │ 48 …
                       │  ·  ✓  ✓  ·  ✓  · │           ✓ consumed, · pending or being consumed
    committed          42: the smallest pending one       next pull: 48

Everything below the committed offset is consumed, so a crash repeats messages (43, 44, 46) and loses none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from ariane.model.message import ReceivedMessage


class OffsetTracker:
    """Pending messages by offset: added in rising order, consumed in any. `next_offset` is where the next pull starts."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.bytes = 0
        self._cached: dict[int, ReceivedMessage] = {}
        self._order: deque[int] = deque()  # added offsets; consumed ones are removed once they are at the front

    def __len__(self) -> int:
        return len(self._cached)

    @property
    def span(self) -> int:
        """Distance between the first and the last pending offset; 0 if fewer than two are pending."""
        return self._order[-1] - self._order[0] if self._cached else 0

    @property
    def bounds(self) -> tuple[int, int]:
        """The first and the last pending offset; 0, 0 if none is pending, as Java reports it."""
        return (self._order[0], self._order[-1]) if self._cached else (0, 0)

    @property
    def commit_offset(self) -> int:
        """The smallest pending offset; the offset of the next pull if none is pending."""
        return self._order[0] if self._order else self.next_offset

    def add(self, messages: Iterable[ReceivedMessage], next_offset: int) -> None:
        """Add pulled messages. `next_offset` is after them and after messages that the filter skipped."""
        for message in messages:
            offset = message.queue_offset
            # A repeated pull (after a lost response) may return messages that were added before.
            if offset not in self._cached and (not self._order or offset > self._order[-1]):
                self._order.append(offset)
                self._cached[offset] = message
                self.bytes += message.stored_size
        self.next_offset = next_offset

    def first(self, count: int) -> list[ReceivedMessage]:
        """Return the first `count` pending messages, in order."""
        pending = []
        for offset in self._order:
            message = self._cached.get(offset)
            if message is not None:
                pending.append(message)
                if len(pending) == count:
                    break
        return pending

    def replace(self, messages: Sequence[ReceivedMessage]) -> None:
        """Replace pending messages with newer versions (another attempt)."""
        for message in messages:
            if message.queue_offset in self._cached:
                self._cached[message.queue_offset] = message

    def mark_consumed(self, messages: Iterable[ReceivedMessage]) -> int:
        """Remove messages that were consumed or sent back. Return the offset that may be committed."""
        for message in messages:
            cached = self._cached.pop(message.queue_offset, None)
            if cached is not None:
                self.bytes -= cached.stored_size
        order = self._order
        while order and order[0] not in self._cached:
            order.popleft()
        return self.commit_offset

    def is_full(self, *, count_max: int, bytes_max: int, span_max: int | None) -> bool:
        """Return True if the queue must not be pulled for now. An orderly queue has no span limit (None)."""
        return (
            len(self._cached) > count_max or self.bytes > bytes_max or (span_max is not None and self.span > span_max)
        )
