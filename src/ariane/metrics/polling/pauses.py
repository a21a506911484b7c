"""Pauses of long work in an event loop that serves others."""

from __future__ import annotations

import asyncio

ITEMS_PER_SLICE = 200  # queues or statistics: less than a millisecond


class Pauses:
    """Yields to the event loop after each slice of items."""

    def __init__(self) -> None:
        self._count = 0

    async def add(self, count: int) -> None:
        """Count processed items, and pause if they complete a slice."""
        self._count += count
        if self._count >= ITEMS_PER_SLICE:
            self._count = 0
            await asyncio.sleep(0)
