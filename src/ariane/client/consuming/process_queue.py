"""State of one assigned queue, shared by its fetch loop and the delivery. [ProcessQueue]

assigned ─ revoke() ─→ revoked: no call starts, running calls still count ─ drop() ─→ dropped: nothing counts
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ariane.client.consuming.offset_tracker import OffsetTracker
from ariane.model.message import MessageQueue, ReceivedMessage

LOCK_TRUSTED_S = 30.0  # how long after its request a lock is trusted; the broker holds it for 60 s


class ProcessQueue:
    """One assigned queue."""

    def __init__(self, queue: MessageQueue, next_offset: int, now: float = 0.0) -> None:
        self.queue = queue
        self.tracker = OffsetTracker(next_offset)
        """Pending messages and the offset that may be committed."""
        self.is_revoked = False
        """True once no call of the listener may start."""
        self.is_dropped = False
        """True once nothing that happens to the messages counts."""
        self.changed = asyncio.Event()
        """Set when messages arrive or are consumed, and by `revoke` and `drop`."""
        self.broker_id = 0
        """Which server of the broker to pull from next, as the last response suggests."""
        self.locked_until = 0.0
        """Monotonic time until which the lock is trusted."""
        self.is_abandoned = False
        """True if a thread still processes messages although its call was cancelled."""
        self.pulled_at = now
        """Monotonic time of the last pull."""
        self.consumed_at = now
        """Monotonic time of the last call of the listener."""

    def is_locked(self, now: float) -> bool:
        """Return True if the lock is trusted at monotonic time `now`."""
        return now < self.locked_until

    def set_locked(self, requested_at: float) -> None:
        """Record a lock that was requested at `requested_at`: its response may have arrived much later."""
        self.locked_until = requested_at + LOCK_TRUSTED_S

    def revoke(self) -> None:
        """Start no more calls; the running one still counts."""
        self.is_revoked = True
        self.changed.set()

    def drop(self) -> None:
        """Ignore whatever happens to the messages from now on."""
        self.is_revoked = self.is_dropped = True
        self.changed.set()

    def mark_consumed(self, messages: Iterable[ReceivedMessage]) -> int:
        """Remove messages that were consumed or sent back. Return the offset that may be committed."""
        offset = self.tracker.mark_consumed(messages)
        self.changed.set()
        return offset

    async def wait_change(self, timeout_s: float | None = None) -> None:
        """Return when something changed, or after `timeout_s` seconds."""
        self.changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self.changed.wait()
        except TimeoutError:
            return
