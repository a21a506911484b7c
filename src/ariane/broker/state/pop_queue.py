"""What one group has taken from one queue by POP. No clock, no disk.

    offsets   … 40 41 42 43 44 45 46 47 48 49 …
                acked │ ·  x  ·  x  x │ not taken yet      x: taken and not acknowledged (`taken`)
                      └ committed     └ next

Everything below `next` that is not in `taken` is consumed or was not wanted. `committed`, the offset of the group for tools and for
brokers without POP, is that of the first message that is not: those who continue there miss none.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["PopQueue", "TakenMessage"]


class TakenMessage(NamedTuple):
    """A message that was taken and is not acknowledged."""

    taken_ms: int  # the identity of this delivery: acknowledgements of earlier ones have no effect
    visible_ms: int  # from then on it is delivered again
    deliveries: int  # so far, this one included; one that did not leave the broker does not count


class PopQueue:
    """The messages that a group has taken from a queue.

    Args:
        first: Offset of the first message to take.
    """

    __slots__ = ("_due", "attempt_id", "committed_before", "next", "taken")

    def __init__(self, first: int) -> None:
        self.next = first  # offset of the first message that was never taken
        # By offset, ascending: new ones are larger than all others, and a delivery that is repeated keeps its place.
        self.taken: OrderedDict[int, TakenMessage] = OrderedDict()
        self.attempt_id: str | None = (
            None  # of the last ordered request, which gets its messages again if it is repeated
        )
        self.committed_before: int | None = None  # `committed` when the group's offset was last written by this process
        self._due: list[
            tuple[int, int]
        ] = []  # heap of (visible_ms, offset); entries that `taken` contradicts are obsolete

    @property
    def committed(self) -> int:
        """Offset of the first message that is neither acknowledged nor skipped."""
        return next(iter(self.taken), self.next)

    @property
    def due_ms(self) -> int | None:
        """When a message becomes visible again; None if none was taken."""
        while self._due:
            visible_ms, offset = self._due[0]
            message = self.taken.get(offset)
            if message is not None and message.visible_ms == visible_ms:
                return visible_ms
            heapq.heappop(self._due)
        return None

    def due(self, now_ms: int, count: int) -> list[int]:
        """Return up to `count` offsets of messages that are visible again, ascending. They stay due until they are taken."""
        entries: list[tuple[int, int]] = []
        while len(entries) < count and (due_ms := self.due_ms) is not None and due_ms <= now_ms:
            entry = heapq.heappop(self._due)
            if (
                not entries or entry != entries[-1]
            ):  # two if the message became visible at the time at which it would have been
                entries.append(entry)
        for entry in entries:
            heapq.heappush(self._due, entry)
        return sorted(offset for _, offset in entries)

    def is_blocked(self, now_ms: int, attempt_id: str | None) -> bool:
        """Whether order is lost if messages are taken: one that was taken before is neither acknowledged nor visible again.

        A request with the attempt of the last one is the same request, whose response was lost: it gets its messages again.
        """
        if attempt_id is not None and attempt_id == self.attempt_id:
            return False
        return any(message.visible_ms > now_ms for message in self.taken.values())

    def take(self, offsets: Iterable[int], now_ms: int, visible_ms: int) -> None:
        """Note a delivery of messages, due ones and new ones. New ones are larger than all that were taken before."""
        first = TakenMessage(now_ms, visible_ms, 1)
        for offset in offsets:
            message = self.taken.get(offset)
            self._set(offset, first if message is None else first._replace(deliveries=message.deliveries + 1))
            if offset >= self.next:
                self.next = offset + 1

    def hide(self, offset: int, taken_ms: int, now_ms: int, visible_ms: int) -> bool:
        """Change when a message is visible again, as a delivery at `now_ms`. Return False if that delivery has ended."""
        if not self.is_current(offset, taken_ms):
            return False
        self._set(offset, TakenMessage(now_ms, visible_ms, self.taken[offset].deliveries))
        return True

    def give_back(self, offsets: Iterable[int], now_ms: int) -> None:
        """Make messages visible again whose delivery did not leave the broker, so that it does not count."""
        for offset in offsets:
            if (message := self.taken.get(offset)) is not None:
                self._set(offset, TakenMessage(now_ms, now_ms, message.deliveries - 1))

    def is_current(self, offset: int, taken_ms: int) -> bool:
        """Whether a message was taken at `taken_ms` last, and is not acknowledged."""
        message = self.taken.get(offset)
        return message is not None and message.taken_ms == taken_ms

    def drop(self, offsets: Iterable[int]) -> None:
        """End the deliveries of messages: they are consumed, or cannot be read any more."""
        for offset in offsets:
            self.taken.pop(offset, None)

    def skip_to(self, offset: int) -> None:
        """Continue at an offset: messages before it are not taken any more, those that were stay."""
        self.next = max(self.next, offset)

    def restore(self, offset: int, message: TakenMessage) -> None:
        """Add a stored delivery. They come in ascending order."""
        self._set(offset, message)

    def _set(self, offset: int, message: TakenMessage) -> None:
        self.taken[offset] = message
        heapq.heappush(self._due, (message.visible_ms, offset))
        if len(self._due) > 64 and len(self._due) > 4 * len(self.taken):  # mostly obsolete
            self._due = [(message.visible_ms, offset) for offset, message in self.taken.items()]
            heapq.heapify(self._due)
