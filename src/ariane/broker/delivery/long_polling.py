"""Held pulls: futures that resolve when a matching message arrives. [PullRequestHoldService]

A handler requests a waiter and awaits it. The waiter is resolved by a matching arrival (True) or by its timeout (False), whichever
comes first, and is then removed from the table. One message may match thousands of them: a few are resolved in each tick.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable

from ariane.broker.delivery.held_requests import HeldRequests
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.errors import ReplyError
from ariane.kernels.sends.send_turn import QueueRun
from ariane.net.limits.paced_calls import PacedCalls
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records.queue_entry import ENTRY
from ariane.store.message_store import Arrival

Waiter = asyncio.Future[bool]  # whether a message arrived; False: the time is over

# Of all held pulls together. A parsed subscription takes up to 80 times its length in memory.
SUBSCRIPTION_CHARS_MAX = 8 * 1024 * 1024


class PullWaiters:
    """The held pulls of a broker, by topic and queue."""

    def __init__(self, held: HeldRequests, clock: Clock = SYSTEM_CLOCK) -> None:
        self.held = held  # counts pulls, and requests of POP
        self._clock = clock  # measures how long pulls are held
        self._chars = 0  # of the subscriptions of all held pulls
        # By topic and queue: each waiter with the offset it waits for and the tag hashes it accepts (None: all).
        self._waiting: dict[tuple[str, int], dict[Waiter, tuple[int, frozenset[int] | None]]] = {}
        self._resolutions = PacedCalls()  # of waiters that an arrival has matched

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def find_awaited(self, queues: list[QueueRun]) -> list[tuple[str, int]]:
        """Return the queues for which pulls are held, by topic and id."""
        waiting = self._waiting
        return [key for topic, queue_id, *_ in queues if (key := (topic, queue_id)) in waiting]

    def hold(
        self, topic: str, queue_id: int, offset: int, codes: frozenset[int] | None, hold_ms: float, chars: int
    ) -> Waiter:
        """Register a pull, whose subscription has this many characters, and return its future as `wait` does.

        Raises:
            ReplyError: too many requests are held, or the subscriptions of all held pulls take too much memory.
        """
        if self.held.is_full:
            remark = f"[OVERLOAD]{self.held.count} requests wait for messages, at most {self.held.maximum} are allowed"
            raise ReplyError(ResponseCode.SYSTEM_BUSY, remark)
        if self._chars + chars > SUBSCRIPTION_CHARS_MAX:
            remark = (
                f"[OVERLOAD]the subscriptions of held pulls have {SUBSCRIPTION_CHARS_MAX} characters; try again later"
            )
            raise ReplyError(ResponseCode.SYSTEM_BUSY, remark)
        waiter = self.wait(topic, queue_id, offset, codes, hold_ms)
        self.held.count += 1
        self._chars += chars

        def release(_: Waiter) -> None:
            self.held.count -= 1
            self._chars -= chars

        waiter.add_done_callback(release)
        return waiter

    def wait(self, topic: str, queue_id: int, offset: int, codes: frozenset[int] | None, hold_ms: float) -> Waiter:
        """Register a future of messages of a queue.

        It is registered before this method returns, so that no arrival is missed.

        Args:
            codes: Accepted tag hashes; None for all.

        Returns:
            A future that is True when a message at `offset` or later with an accepted tag arrives, and False after `hold_ms`.
        """
        waiter: Waiter = asyncio.get_running_loop().create_future()
        key = (topic, queue_id)
        self._waiting.setdefault(key, {})[waiter] = (offset, codes)
        timer = self._clock.call_later(hold_ms / 1000, _resolve, waiter, False)

        def remove(_: Waiter) -> None:
            timer.cancel()
            queue = self._waiting.get(key)
            if queue is not None and queue.pop(waiter, None) is not None and not queue:
                del self._waiting[key]

        waiter.add_done_callback(remove)
        return waiter

    def notify(self, arrivals: Iterable[Arrival]) -> None:
        """Resolve the waiters that one of the arrivals matches."""
        if not self._waiting:
            return
        for arrival in arrivals:
            key = arrival.topic, arrival.queue_id
            queue = self._waiting.get(key)
            if not queue:
                continue
            arrived: set[int] | None = None  # tag hashes of the new messages
            for waiter, (offset, codes) in list(queue.items()):
                if arrival.max_offset <= offset:
                    continue
                if codes is not None and arrived is None:
                    arrived = {_low32(code) for _, _, code in ENTRY.iter_unpack(arrival.entries)}
                if codes is None or (arrived is not None and not codes.isdisjoint(arrived)):
                    del queue[waiter]
                    self._resolutions.add(functools.partial(_resolve, waiter, True))
            if not queue:
                del self._waiting[key]

    def expire_all(self) -> None:
        """End all held pulls as if their time were over."""
        for topic in {topic for topic, _ in self._waiting}:
            self.expire(topic)

    def expire(self, topic: str) -> None:
        """End the held pulls of a topic as if their time were over. Their consumers pull again, and commit offsets with that."""
        for (waiting_topic, _), queue in list(self._waiting.items()):
            if waiting_topic == topic:
                for waiter in list(queue):
                    _resolve(waiter, False)


def _resolve(waiter: Waiter, has_arrival: bool) -> None:
    if not waiter.done():
        waiter.set_result(has_arrival)


def _low32(code: int) -> int:
    """Return a 64-bit tags code as the signed 32-bit hash that subscriptions contain."""
    code &= 0xFFFFFFFF
    return code - 0x1_0000_0000 if code & 0x8000_0000 else code
