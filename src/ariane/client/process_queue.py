"""A queue that this member reads now: its window, and what its fetch loop and its listeners tell each other."""

from __future__ import annotations

import asyncio

from ariane.client.offset_tracker import OffsetTracker
from ariane.model.message import MessageQueue

LOCK_TRUSTED_S = 30.0  # a lock last asked for so long ago is not relied on; the broker keeps it for 60 s


class ProcessQueue:
    """Owned, then ending (nothing new is begun, what is under way still counts), then dropped (nothing counts any more).
    `changed` is set when messages came, were consumed, or one of these steps was taken."""

    def __init__(self, queue: MessageQueue, next_offset: int, now: float = 0.0) -> None:
        self.queue = queue
        self.tracker = OffsetTracker(next_offset)
        self.is_revoked = False
        self.is_dropped = False
        self.changed = asyncio.Event()
        self.broker_id = 0  # which of the broker's servers it told us to read from
        self.locked_until = 0.0
        self.is_abandoned = False  # a thread still works on it that nobody waits for
        self.pulled_at = self.consumed_at = now  # when it was last asked for, and its listener last called

    def is_locked(self, now: float) -> bool:
        return now < self.locked_until

    def set_locked(self, asked_at: float) -> None:
        """The lock was granted to a request of that time: the answer may have come much later."""
        self.locked_until = asked_at + LOCK_TRUSTED_S

    def revoke(self) -> None:
        self.is_revoked = True
        self.changed.set()

    def drop(self) -> None:
        self.is_revoked = self.is_dropped = True
        self.changed.set()

    async def wait_change(self, timeout_s: float) -> None:
        """Return when something changed, after `timeout_s` at the latest."""
        self.changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self.changed.wait()
        except TimeoutError:
            return
