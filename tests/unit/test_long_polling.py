"""Long polling: what ends a held pull, and the memory that all of them use."""

from __future__ import annotations

import asyncio

import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.delivery import long_polling as arrivals_module
from ariane.broker.delivery.held_requests import HeldRequests
from ariane.broker.delivery.long_polling import PullWaiters
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.errors import ReplyError
from ariane.net.limits.paced_calls import CALLS_PER_TICK
from ariane.protocol.codes import ResponseCode
from ariane.store.message_store import Arrival
from ariane.testing.clock import FakeClock


def pull_waiters(clock: Clock = SYSTEM_CLOCK, *, requests_max: int = 100) -> PullWaiters:
    settings = DynamicConfig(BrokerConfig(broker_name="b", server_requests_max=requests_max), 0)
    return PullWaiters(HeldRequests(settings), clock)


def test_held_pulls_leave_room_for_other_requests() -> None:
    async def hold() -> None:
        waiters = pull_waiters(requests_max=4)
        held = [waiters.hold("T", 0, 0, None, 60_000, 1) for _ in range(3)]
        with pytest.raises(ReplyError, match="3 requests wait for messages, at most 3 are allowed") as refused:
            waiters.hold("T", 0, 0, None, 60_000, 1)
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
        held[0].cancel()
        await asyncio.sleep(0)
        waiters.hold("T", 0, 0, None, 60_000, 1).cancel()

    asyncio.run(hold())


def test_subscriptions_of_waiting_pulls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 pull requests may wait, each with a subscription of 16 KiB."""
    monkeypatch.setattr(arrivals_module, "SUBSCRIPTION_CHARS_MAX", 10)

    async def hold() -> None:
        waiters = pull_waiters()
        first = waiters.hold("T", 0, 0, None, 60_000, 6)
        with pytest.raises(ReplyError, match="10 characters") as refused:
            waiters.hold("T", 0, 0, None, 60_000, 5)
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
        second = waiters.hold("T", 1, 0, None, 60_000, 4)
        waiters.notify([Arrival("T", 0, 1, b"")])
        await first
        await asyncio.sleep(0)  # its place is free when its callbacks have run
        third = waiters.hold("T", 0, 1, None, 60_000, 6)
        second.cancel()
        third.cancel()
        await asyncio.wait([second, third])
        waiters.hold("T", 0, 0, None, 60_000, 10).cancel()

    asyncio.run(hold())


def test_a_held_pull_ends_with_an_arrival_or_when_its_time_is_over() -> None:
    async def hold() -> None:
        clock = FakeClock()
        waiters = pull_waiters(clock)
        arrived, late = waiters.wait("T", 0, 0, None, 5_000), waiters.wait("T", 1, 0, None, 5_000)
        clock.advance(4.9)
        waiters.notify([Arrival("T", 0, 1, b"")])
        assert await arrived is True
        assert not late.done()
        clock.advance(0.1)
        assert await late is False
        await asyncio.sleep(0)  # the table is updated by its callbacks
        assert len(waiters) == 0

    asyncio.run(hold())


def test_the_held_pulls_of_a_topic_can_be_ended() -> None:
    async def hold() -> None:
        waiters = pull_waiters(FakeClock())
        of_topic = [waiters.wait("T", queue_id, 0, None, 5_000) for queue_id in (0, 0, 1)]
        other = waiters.wait("U", 0, 0, None, 5_000)
        waiters.expire("T")
        assert [await waiter for waiter in of_topic] == [False, False, False]
        assert not other.done()
        await asyncio.sleep(0)  # the table is updated by their callbacks
        assert len(waiters) == 1
        other.cancel()

    asyncio.run(hold())


def test_an_arrival_ends_a_bounded_number_of_held_pulls_in_each_tick() -> None:
    """100,000 pulls may be held for one queue: each costs a task and a response."""

    async def hold() -> None:
        waiters = pull_waiters(FakeClock())
        held = [waiters.wait("T", 0, 0, None, 5_000) for _ in range(2 * CALLS_PER_TICK + 1)]
        for _ in range(2):  # the second one matches none that the first one has matched
            waiters.notify([Arrival("T", 0, 1, b"")])
        ended = 0
        while not held[-1].done():
            assert sum(waiter.done() for waiter in held) <= ended + CALLS_PER_TICK
            ended = sum(waiter.done() for waiter in held)
            await asyncio.sleep(0)
        assert all([await waiter for waiter in held])
        assert waiters.is_empty

    asyncio.run(hold())
