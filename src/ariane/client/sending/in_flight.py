"""Bound of the sends in flight, in number and bytes: the back-pressure of a producer.

Sends wait in order. One that is larger than the bound of bytes is sent when it is alone: otherwise it would wait endlessly.
"""

from __future__ import annotations

import asyncio
from collections import deque


class InFlightBound:
    """Sends of one producer that have no response yet."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()  # with the size of each

    def try_take(self, size: int) -> bool:
        """Take room for a send of `size` bytes, unless others wait or there is none."""
        # Written out, as every send takes room.
        count = self._count
        if self._waiting or (count and (count >= self._count_max or self._bytes + size > self._bytes_max)):
            return False
        self._count = count + 1
        self._bytes += size
        return True

    async def take(self, size: int) -> None:
        """Take room for a send of `size` bytes; wait until there is some."""
        if self.try_take(size):
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((admitted, size))
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():  # admitted and cancelled in the same tick
                self.release(size)
            else:
                self._admit()  # the next may be smaller
            raise

    def release(self, size: int) -> None:
        """Return the room of a send of `size` bytes."""
        self._count -= 1
        self._bytes -= size
        if self._waiting:
            self._admit()

    def _has_room(self, size: int) -> bool:
        return not self._count or (self._count < self._count_max and self._bytes + size <= self._bytes_max)

    def _take(self, size: int) -> None:
        self._count += 1
        self._bytes += size

    def _admit(self) -> None:
        while self._waiting:
            admitted, size = self._waiting[0]
            if not admitted.done():  # a cancelled one takes no room
                if not self._has_room(size):
                    return
                self._take(size)
                admitted.set_result(None)
            self._waiting.popleft()
