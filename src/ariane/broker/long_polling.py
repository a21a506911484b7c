"""Held pulls: who waits for which queue, and is woken when a message that it wants arrives. [PullRequestHoldService]

A held pull is an await: the handler asks for a waiter and awaits it. A waiter is resolved by a matching arrival or by its
time, whichever comes first, and leaves the table by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ariane.errors import ReplyError
from ariane.protocol.codes import ResponseCode
from ariane.store.message_store import Arrival

Waiter = asyncio.Future[None]

SUBSCRIPTION_CHARS_MAX = 8 * 1024 * 1024  # of all held pulls; parsed, a subscription takes up to 80 times its length


class PullWaiters:
    """Waiters by topic and queue."""

    def __init__(self) -> None:
        self._chars = 0
        self._waiting: dict[tuple[str, int], dict[Waiter, tuple[int, frozenset[int] | None]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def wait(
        self, topic: str, queue_id: int, offset: int, codes: frozenset[int] | None, hold_ms: float, chars: int = 0
    ) -> Waiter:
        """Resolved when a message at `offset` or later, with a tag of `codes` (None: any), has arrived, or after
        `hold_ms`. Registered before this returns, so that no arrival is missed.

        `chars` is the length of the pull's subscription. ReplyError when those of all held pulls take too much memory.
        """
        if self._chars + chars > SUBSCRIPTION_CHARS_MAX:
            remark = (
                f"[OVERLOAD]the subscriptions of held pulls have {SUBSCRIPTION_CHARS_MAX} characters; try again later"
            )
            raise ReplyError(ResponseCode.SYSTEM_BUSY, remark)
        self._chars += chars
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        key = (topic, queue_id)
        self._waiting.setdefault(key, {})[waiter] = (offset, codes)
        timer = loop.call_later(hold_ms / 1000, _resolve, waiter)

        def leave(_: Waiter) -> None:
            timer.cancel()
            self._chars -= chars
            queue = self._waiting.get(key)
            if queue is not None and queue.pop(waiter, None) is not None and not queue:
                del self._waiting[key]

        waiter.add_done_callback(leave)
        return waiter

    def notify(self, arrivals: Iterable[Arrival]) -> None:
        """Wake those whom one of `arrivals` concerns."""
        if not self._waiting:
            return
        for arrival in arrivals:
            queue = self._waiting.get((arrival.topic, arrival.queue_id))
            if not queue:
                continue
            for waiter, (offset, codes) in list(queue.items()):
                if arrival.max_offset > offset and (codes is None or _low32(arrival.tags_code) in codes):
                    _resolve(waiter)


def _resolve(waiter: Waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _low32(code: int) -> int:
    """A tags code as the 32-bit hash that subscriptions hold."""
    code &= 0xFFFFFFFF
    return code - 0x1_0000_0000 if code & 0x8000_0000 else code
