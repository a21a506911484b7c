"""Waits for an offset of the log: shared by the requests of a tick, ended in order by progress, error or deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ariane.broker.lifecycle.offset_waiters import OffsetWaiter, OffsetWaiters
from ariane.errors import FlushFailed
from ariane.testing.virtual.virtual_time import VirtualLoop

TIMEOUT_S = 5.0
FAILURE = FlushFailed("commitlog/0", "Input/output error")


def play(act: Callable[[OffsetWaiters[str], VirtualLoop], Awaitable[None]]) -> None:
    """Run `act` with waiters and a loop whose clock jumps."""
    loop = VirtualLoop()

    async def run() -> None:
        await act(OffsetWaiters(reached="reached", timed_out="timed out"), loop)

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


def test_requests_of_one_tick_share_a_waiter() -> None:
    async def act(waiters: OffsetWaiters[str], loop: VirtualLoop) -> None:
        first = waiters.wait(10, TIMEOUT_S)
        assert waiters.wait(20, TIMEOUT_S) is first
        assert waiters.wait(20, TIMEOUT_S) is first
        assert (first.end_offset, len(waiters)) == (20, 1)
        waiters.advance(19)
        assert not first.done()
        await asyncio.sleep(0)
        second = waiters.wait(20, TIMEOUT_S)
        assert second is not first
        waiters.advance(20)
        assert (first.result(), second.result()) == ("reached", "reached")
        assert waiters.wait(30, TIMEOUT_S) is not second, "a waiter that is done takes no further request"

    play(act)


def test_a_sealed_waiter_and_another_timeout_are_not_shared() -> None:
    async def act(waiters: OffsetWaiters[str], loop: VirtualLoop) -> None:
        first = waiters.wait(10, TIMEOUT_S)
        waiters.seal()
        second = waiters.wait(20, TIMEOUT_S)
        third = waiters.wait(20, 60.0)
        waiters.advance(10)
        assert first.done() and not second.done() and not third.done()
        assert await second == "timed out"
        assert loop.time() == TIMEOUT_S
        assert await third == "timed out"
        assert loop.time() == 60

    play(act)


def test_waits_end_in_the_order_of_their_offsets() -> None:
    async def act(waiters: OffsetWaiters[str], loop: VirtualLoop) -> None:
        ended: list[int] = []
        for end in (30, 10, 20, 20, 40):
            waiters.wait(end, TIMEOUT_S).add_done_callback(lambda waiter: ended.append(waiter.end_offset))
            waiters.seal()
        waiters.advance(25)
        assert ended == [10, 20, 20]
        waiters.advance(40)
        assert ended == [10, 20, 20, 30, 40]
        assert not len(waiters)

    play(act)


def test_each_wait_has_its_own_deadline_and_all_share_a_timer() -> None:
    async def act(waiters: OffsetWaiters[str], loop: VirtualLoop) -> None:
        long = waiters.wait(10, 60.0)
        await asyncio.sleep(1)
        short = waiters.wait(20, TIMEOUT_S)
        await asyncio.sleep(1)
        later = waiters.wait(30, TIMEOUT_S)
        assert await short == "timed out"
        assert (loop.time(), long.done(), later.done()) == (6.0, False, False)
        assert await later == "timed out"
        assert loop.time() == 7.0
        waiters.advance(30)
        assert long.result() == "reached"
        await asyncio.sleep(100)
        assert long.result() == "reached"
        again = waiters.wait(50, TIMEOUT_S)  # the timer runs again
        assert await again == "timed out"
        assert loop.time() == 112.0

    play(act)


def test_a_failure_ends_all_waits() -> None:
    async def act(waiters: OffsetWaiters[str], loop: VirtualLoop) -> None:
        first, second = waiters.wait(10, TIMEOUT_S), waiters.wait(20, 60.0)
        waiters.fail(FAILURE)
        for waiter in (first, second, waiters.failed(FAILURE)):
            with pytest.raises(FlushFailed, match="commitlog/0"):
                await waiter
            with pytest.raises(FlushFailed):
                waiter.result()
        assert await waiters.wait(30, TIMEOUT_S) == "timed out", "later waits do not fail of themselves"

    play(act)


def test_cancelling_one_request_does_not_affect_the_others() -> None:
    async def act(waiters: OffsetWaiters[str], loop: VirtualLoop) -> None:
        waiter = waiters.wait(10, TIMEOUT_S)

        async def wait() -> str:
            return await waiter

        left, stays = asyncio.ensure_future(wait()), asyncio.ensure_future(wait())
        called: list[str] = []
        cancelled, value = waiter.then(lambda _: called.append("cancelled")), waiter.then(lambda done: done.result())
        await asyncio.sleep(0)
        left.cancel()
        cancelled.cancel()
        await asyncio.sleep(0)
        assert left.cancelled() and not waiter.done()
        waiters.advance(10)
        assert (await stays, await value, called) == ("reached", "reached", [])

    play(act)


def test_an_error_in_a_callback_reaches_its_own_request_only(caplog: pytest.LogCaptureFixture) -> None:
    async def act(waiters: OffsetWaiters[str], loop: VirtualLoop) -> None:
        waiter = waiters.wait(10, TIMEOUT_S)
        called: list[str] = []

        def fail(done: OffsetWaiter[str]) -> None:
            raise ValueError("bad request")

        failed = waiter.then(fail)
        waiter.add_done_callback(fail)
        waiter.add_done_callback(lambda done: called.append(done.result()))
        waiters.advance(10)
        assert called == ["reached"]
        with pytest.raises(ValueError, match="bad request"):
            await failed
        assert "offset 10" in caplog.text

    play(act)


def test_a_wait_that_has_ended_calls_back_at_once() -> None:
    async def act(waiters: OffsetWaiters[str], loop: VirtualLoop) -> None:
        called: list[str] = []
        waiter = waiters.finished("reached")
        waiter.add_done_callback(lambda done: called.append(done.result()))
        assert called == ["reached"]
        assert waiter.then(lambda done: done.result() + "!").result() == "reached!"
        with pytest.raises(asyncio.InvalidStateError):
            waiters.wait(10, TIMEOUT_S).result()

    play(act)


def test_a_callback_may_wait_again() -> None:
    async def act(waiters: OffsetWaiters[str], loop: VirtualLoop) -> None:
        later: list[OffsetWaiter[str]] = []
        first = waiters.wait(10, TIMEOUT_S)
        first.add_done_callback(lambda _: later.append(waiters.wait(15, TIMEOUT_S)))
        waiters.advance(12)
        assert first.done() and later[0] is not first and not later[0].done()
        waiters.advance(15)
        assert later[0].result() == "reached"
        first = waiters.wait(20, TIMEOUT_S)
        first.add_done_callback(lambda _: later.append(waiters.wait(25, TIMEOUT_S)))
        waiters.fail(FAILURE)
        assert first.done() and not later[1].done()
        assert await later[1] == "timed out"

    play(act)
