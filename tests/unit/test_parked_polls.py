"""Parked requests of POP: when they are served again, and what a refused one leaves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ariane.broker.delivery.long_polling import PullWaiters
from ariane.broker.delivery.pop import parked_polls
from ariane.broker.delivery.pop.parked_polls import BLOCKED_MS, ParkedPolls, PollKey
from ariane.errors import ReplyError
from ariane.testing.clock import FakeClock

KEY = PollKey("g", "T", 0, "*")


def polls_at(clock: FakeClock, due_ms: int | None) -> ParkedPolls[Any]:
    store: Any = SimpleNamespace(max_offset=lambda topic, queue_id: 0)
    return ParkedPolls(store=store, waiters=PullWaiters(clock), clock=clock, due_ms=lambda group, topic: due_ms)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_visible_message_that_is_not_taken_does_not_keep_the_broker_busy() -> None:
    """The queue is blocked by an earlier message of an ordered batch, or the message is in another queue."""

    async def play() -> int:
        clock, serves = FakeClock(), 0

        def serve(poll: object) -> bool:
            nonlocal serves
            serves += 1
            return False

        parking = asyncio.ensure_future(polls_at(clock, clock.now_ms() - 5).park(KEY, [("T", 0)], None, serve, 1000))
        await turns()
        for _ in range(1001):
            clock.advance_ms(1)
            await turns()
        assert not await parking
        return serves

    assert 0 < asyncio.run(play()) <= 1000 / BLOCKED_MS


def test_a_message_that_becomes_visible_now_is_delivered_at_once() -> None:
    async def play() -> None:
        clock, due = FakeClock(), [None]
        store: Any = SimpleNamespace(max_offset=lambda topic, queue_id: 0)
        polls: ParkedPolls[Any] = ParkedPolls(
            store=store, waiters=PullWaiters(clock), clock=clock, due_ms=lambda group, topic: due[0]
        )
        parking = asyncio.ensure_future(polls.park(KEY, [("T", 0)], None, lambda poll: due[0] is not None, 1000))
        await turns()
        due[0] = clock.now_ms()  # type: ignore[call-overload]
        polls.schedule("g", "T")
        clock.advance_ms(1)
        assert await parking
        assert clock.elapsed_ms == 1

    asyncio.run(play())


def test_a_refused_request_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_polls, "POLLS_MAX", 0)

    async def play() -> None:
        polls = polls_at(FakeClock(), None)
        with pytest.raises(ReplyError, match="0 requests of g wait for messages of T"):
            await polls.park(KEY, [("T", 0)], None, lambda poll: False, 1000)
        assert polls._parked == {}

    asyncio.run(play())
