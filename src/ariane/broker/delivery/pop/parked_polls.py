"""Requests of POP that found nothing, until messages arrive or become visible, or their time is over. [PopLongPollingService]

The requests of a group and topic are served in the order of their arrival. A message wakes as many of them as it takes, some of
them in each tick: thousands of groups may wait for the same one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Generic, NamedTuple, Protocol, TypeVar

from ariane.broker.delivery.long_polling import PullWaiters, Waiter
from ariane.clock import Clock, Timer
from ariane.errors import ReplyError
from ariane.net.limits.paced_calls import PacedCalls
from ariane.protocol.codes import ResponseCode
from ariane.store.message_store import MessageStore

__all__ = ["ParkedPolls", "PollKey"]

KEY_POLLS_MAX = 1_024  # of one group and topic, as in 5.x
# Until requests are served again that took nothing although a message is visible, as in a blocked queue.
BLOCKED_MS = 100
WATCHES_MAX = 200_000  # queues that the groups wait for, counted once for each group; one takes about 700 bytes
WATCH_MS = 60_000.0  # longest wait of one watch; the next one follows

T = TypeVar("T")
Poll_contra = TypeVar("Poll_contra", contravariant=True)


class PollKey(NamedTuple):
    """Requests that can be served with the same messages."""

    group: str
    topic: str
    queue_id: int
    """-1: all queues."""
    expression: str
    """The filter of the requests."""


class Serve(Protocol[Poll_contra]):
    """Answers a request. [PopHandler]"""

    def __call__(self, poll: Poll_contra, queue_id: int | None = None, /) -> bool:
        """Answer with messages of one queue, or of all that the request names; return False if there are none."""
        ...


class _Parked(Generic[T]):
    """The requests of one group and topic, and what wakes them."""

    def __init__(self, serve: Serve[T]) -> None:
        self.serve = serve  # answers a request
        self.polls: OrderedDict[asyncio.Future[bool], T] = OrderedDict()
        self.watches: dict[tuple[str, int], Waiter] = {}  # by topic and queue
        self.timer: Timer | None = None  # until a taken message is visible
        self.timer_ms: int | None = None


class ParkedPolls(Generic[T]):
    """The parked requests of a broker.

    Args:
        waiters: Report arrivals.
        due_ms: Returns when the next taken message of a group in a topic becomes visible, None without any.
    """

    def __init__(
        self, *, store: MessageStore, waiters: PullWaiters, clock: Clock, due_ms: Callable[[str, str], int | None]
    ) -> None:
        self._store = store
        self._waiters = waiters
        self._clock = clock
        self._due_ms = due_ms
        self._parked: dict[tuple[str, str], dict[PollKey, _Parked[T]]] = {}  # by group and topic
        self._watches = 0  # of all groups, compared with WATCHES_MAX
        self._wakes = PacedCalls()  # each serves one request
        self._endings = PacedCalls()  # of watches

    def count(self, group: str, topic: str, queue_id: int) -> int:
        """Return how many requests of a group for a queue are parked."""
        parked = self._parked.get((group, topic), {})
        return sum(len(each.polls) for key, each in parked.items() if key.queue_id == queue_id)

    async def park(
        self, key: PollKey, queues: Collection[tuple[str, int]], poll: T, serve: Serve[T], hold_ms: float
    ) -> bool:
        """Wait until `serve` answered a request. Return False if the time is over.

        Args:
            queues: Topic and id of the queues whose messages the group takes.

        Raises:
            ReplyError: too many requests are parked.
        """
        parked = self._parked.get(key[:2], {}).get(key) or _Parked(serve)
        is_full = self._watches + len(queues) - len(parked.watches) > WATCHES_MAX
        if is_full or len(parked.polls) >= KEY_POLLS_MAX or self._waiters.held.is_full:
            remark = (
                f"{len(parked.polls)} requests of {key.group} wait for messages of {key.topic}, {self._waiters.held.count} in all"
                f" for any, those of POP for {self._watches} queues"
            )
            raise ReplyError(ResponseCode.POLLING_FULL, remark)
        self._parked.setdefault(key[:2], {})[key] = parked
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        parked.polls[done] = poll
        self._waiters.held.count += 1
        timer = self._clock.call_later(hold_ms / 1000, _resolve, done, False)
        for queue in queues:
            self._watch(key, parked, queue)
        self._schedule(key, parked, visible_after_ms=BLOCKED_MS)
        try:
            return await done
        finally:
            timer.cancel()
            self._waiters.held.count -= 1
            del parked.polls[done]
            if not parked.polls:
                self._end(key, parked)

    def wake(self, group: str, topic: str) -> None:
        """Serve the requests of a group and topic for which there are messages."""
        for key, parked in list(self._parked.get((group, topic), {}).items()):
            self._wake(key, parked)

    def schedule(self, group: str, topic: str) -> None:
        """Take notice that a message becomes visible at another time."""
        for key, parked in self._parked.get((group, topic), {}).items():
            self._schedule(key, parked)

    def _wake(self, key: PollKey, parked: _Parked[T], queue_id: int | None = None) -> None:
        """Serve the requests of a key in turn, with messages of one queue or of all, until there are none for the next one."""

        def serve_next() -> None:
            waiting = next(((done, poll) for done, poll in parked.polls.items() if not done.done()), None)
            # Those after one without messages want the same.
            if waiting is not None and parked.serve(waiting[1], queue_id):
                _resolve(waiting[0], True)
                self._wakes.add(serve_next)
            elif parked.polls:
                self._schedule(key, parked, visible_after_ms=BLOCKED_MS)

        self._wakes.add(serve_next)

    def _schedule(self, key: PollKey, parked: _Parked[T], *, visible_after_ms: int = 0) -> None:
        """Wake requests when the next taken message is visible; if one is already, `visible_after_ms` from now."""
        due_ms = self._due_ms(key.group, key.topic)
        if due_ms == parked.timer_ms:
            return
        if parked.timer is not None:
            parked.timer.cancel()
        parked.timer, parked.timer_ms = None, due_ms
        if due_ms is not None:

            def on_due() -> None:
                parked.timer = parked.timer_ms = None
                self._wake(key, parked)

            wait_ms = due_ms - self._clock.now_ms()
            parked.timer = self._clock.call_later(((wait_ms if wait_ms > 0 else visible_after_ms) + 1) / 1000, on_due)

    def _watch(self, key: PollKey, parked: _Parked[T], queue: tuple[str, int]) -> None:
        if queue in parked.watches:
            return
        waiter = parked.watches[queue] = self._waiters.wait(*queue, self._store.max_offset(*queue), None, WATCH_MS)
        self._watches += 1

        def on_arrival(arrived: Waiter) -> None:
            self._watches -= 1
            parked.watches.pop(queue, None)
            if parked.polls and not arrived.cancelled():
                self._watch(key, parked, queue)
                if arrived.result():
                    self._wake(key, parked, queue[1])

        waiter.add_done_callback(on_arrival)

    def _end(self, key: PollKey, parked: _Parked[T]) -> None:
        keys = self._parked[key[:2]]
        del keys[key]
        if not keys:
            del self._parked[key[:2]]
        if parked.timer is not None:
            parked.timer.cancel()
        for waiter in parked.watches.values():
            self._endings.add(waiter.cancel)


def _resolve(done: asyncio.Future[bool], is_served: bool) -> None:
    if not done.done():
        done.set_result(is_served)
