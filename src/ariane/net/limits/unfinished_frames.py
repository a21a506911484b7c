"""Frames that have partly arrived: their bytes on the connections of a server, an address or an account."""

from __future__ import annotations

from typing import Protocol


class FrameSender(Protocol):
    """A connection that has received part of a frame."""

    def drop(self, reason: str) -> None:
        """Abort the connection."""
        ...


class UnfinishedFrames:
    """Bytes of unfinished frames on some connections. Beyond the bound the one with the oldest frame is dropped.

    A well-behaved peer sends the rest of a frame immediately, so one that withholds it soon has the oldest.

    Args:
        whose: The connections, in the reason of a drop.
        total_max: The bound; may be changed. 0: there is none.
    """

    def __init__(self, whose: str, total_max: int = 0) -> None:
        self._whose = whose
        self.total_max = total_max
        self.total = 0
        self._sizes: dict[FrameSender, int] = {}  # in the order in which their frames started

    def note(self, sender: FrameSender, size: int) -> int:
        """Record that `sender` has `size` bytes of an unfinished frame; 0 if the frame is complete.

        Returns:
            How many connections were dropped.
        """
        dropped = 0
        self.total += size - self._sizes.get(sender, 0)
        if size:
            self._sizes[sender] = size
        else:
            self._sizes.pop(sender, None)
        while self._sizes and 0 < self.total_max < self.total:
            oldest = next(iter(self._sizes))
            self.total -= self._sizes.pop(oldest)
            oldest.drop(f"{self._whose} have more than {self.total_max} bytes of unfinished frames")
            dropped += 1
        return dropped
