"""Parked requests of POP: which of them a message wakes and when, how much they may wait for, and what a refused one leaves."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.delivery.held_requests import HeldRequests
from ariane.broker.delivery.long_polling import PullWaiters
from ariane.broker.delivery.pop import parked_polls
from ariane.broker.delivery.pop.parked_polls import BLOCKED_MS, ParkedPolls, PollKey
from ariane.errors import ReplyError
from ariane.net.limits.paced_calls import CALLS_PER_TICK
from ariane.protocol.codes import ResponseCode
from ariane.store.message_store import Arrival, MessageStore
from ariane.testing.clock import FakeClock


class Rig:
    """Parked requests of a store whose queues are empty, and which of them were served with which queue."""

    def __init__(self, *, due_ms: int | None = None, has_messages: bool = True, requests_max: int = 100_000) -> None:
        self.clock = FakeClock()
        self.due_ms = due_ms  # when the next taken message is visible
        self.has_messages = has_messages
        settings = DynamicConfig(BrokerConfig(broker_name="b", server_requests_max=requests_max), 0)
        self.waiters = PullWaiters(HeldRequests(settings), self.clock)
        self.polls = ParkedPolls[int](
            store=cast(MessageStore, self),
            waiters=self.waiters,
            clock=self.clock,
            due_ms=lambda group, topic: self.due_ms,
        )
        self.served: list[tuple[int, int | None]] = []

    def max_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def serve(self, poll: int, queue_id: int | None = None, /) -> bool:
        self.served.append((poll, queue_id))
        return self.has_messages

    def park(self, poll: int, group: str, queues: int = 1) -> asyncio.Task[bool]:
        watched = [("T", queue_id) for queue_id in range(queues)]
        return asyncio.ensure_future(self.polls.park(PollKey(group, "T", -1, ""), watched, poll, self.serve, 1_000))

    async def advance(self, milliseconds: int) -> None:
        """Let time pass, with some ticks of the event loop in each millisecond."""
        for _ in range(milliseconds):
            self.clock.advance_ms(1)
            for _ in range(5):
                await asyncio.sleep(0)


def test_a_message_wakes_a_bounded_number_of_requests_in_each_tick() -> None:
    """Each takes its message, which is recorded, or learns of it: 100,000 may wait for the same one."""

    async def run() -> None:
        rig = Rig()
        parked = [rig.park(number, f"g{number % 3}") for number in range(3 * CALLS_PER_TICK)]
        while rig.polls.count("g2", "T", -1) < CALLS_PER_TICK:
            await asyncio.sleep(0)
        rig.waiters.notify([Arrival("T", 0, 1, b"")])
        while len(rig.served) < len(parked):
            before = len(rig.served)
            await asyncio.sleep(0)
            assert len(rig.served) <= before + CALLS_PER_TICK
        assert all(await asyncio.gather(*parked))
        for group in range(3):
            of_group = [poll for poll, _ in rig.served if poll % 3 == group]
            assert of_group == sorted(of_group), "in the order of their arrival"

    asyncio.run(run())


def test_requests_for_all_queues_are_served_with_the_one_that_has_a_message() -> None:
    async def run() -> None:
        rig = Rig()
        parked = rig.park(1, "g", queues=1_000)
        await asyncio.sleep(0)
        rig.waiters.notify([Arrival("T", 700, 1, b"")])
        assert await parked
        assert rig.served == [(1, 700)]
        while len(rig.waiters):
            await asyncio.sleep(0)

    asyncio.run(run())


def test_the_queues_that_all_groups_wait_for_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_polls, "WATCHES_MAX", 10)

    async def run() -> None:
        rig = Rig()
        first, same = rig.park(1, "g", queues=6), rig.park(2, "g", queues=6)
        with pytest.raises(ReplyError) as refused:
            await rig.park(3, "h", queues=5)
        assert refused.value.code == ResponseCode.POLLING_FULL
        other = rig.park(4, "h", queues=4)
        await asyncio.sleep(0)
        rig.waiters.notify([Arrival("T", queue_id, 1, b"") for queue_id in range(6)])
        assert await asyncio.gather(first, same, other) == [True] * 3
        while len(rig.waiters):
            await asyncio.sleep(0)
        again = rig.park(5, "h", queues=10)
        await asyncio.sleep(0)
        again.cancel()

    asyncio.run(run())


def test_a_visible_message_that_is_not_taken_does_not_keep_the_broker_busy() -> None:
    """The queue is blocked by an earlier message of an ordered batch, or the message is in another queue."""

    async def run() -> None:
        rig = Rig(has_messages=False)
        rig.due_ms = rig.clock.now_ms() - 5
        parked = rig.park(1, "g")
        await asyncio.sleep(0)
        await rig.advance(1_001)
        assert not await parked
        assert 0 < len(rig.served) <= 1_000 / BLOCKED_MS

    asyncio.run(run())


def test_a_message_that_becomes_visible_now_is_delivered_at_once() -> None:
    async def run() -> None:
        rig = Rig()
        parked = rig.park(1, "g")
        await asyncio.sleep(0)
        rig.due_ms = rig.clock.now_ms()
        rig.polls.schedule("g", "T")
        await rig.advance(1)
        assert await parked

    asyncio.run(run())


def test_a_refused_request_leaves_nothing() -> None:
    async def run() -> None:
        rig = Rig(requests_max=1)  # at most three quarters are held
        with pytest.raises(ReplyError, match="0 requests of g wait for messages of T"):
            await rig.park(1, "g")
        assert rig.polls._parked == {}

    asyncio.run(run())
