"""Back-pressure of a producer: number and bytes of sends in flight."""

from __future__ import annotations

import asyncio

import pytest

from ariane.client.sending.in_flight import InFlightBound


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_sends_beyond_the_number_or_the_bytes_wait_in_order() -> None:
    async def play() -> None:
        bound, done = InFlightBound(2, 100), []

        async def take(name: str, size: int) -> None:
            await bound.take(size)
            done.append(name)

        tasks = [asyncio.create_task(take(*item)) for item in (("a", 60), ("b", 50), ("c", 10), ("d", 10))]
        await settle()
        assert done == ["a"]  # b is too large as long as a is in flight, and c waits behind it
        assert not bound.try_take(1)
        bound.release(60)
        await settle()
        assert done == ["a", "b", "c"]
        bound.release(50)
        await settle()
        assert done == ["a", "b", "c", "d"]
        await asyncio.gather(*tasks)

    asyncio.run(play())


def test_a_send_larger_than_the_bound_goes_alone() -> None:
    async def play() -> None:
        bound = InFlightBound(10, 100)
        await bound.take(500)
        assert not bound.try_take(1)
        bound.release(500)
        assert bound.try_take(1)
        assert not bound.try_take(500)

    asyncio.run(play())


@pytest.mark.parametrize("is_admitted", [False, True])
def test_a_cancelled_send_takes_no_room(is_admitted: bool) -> None:
    async def play() -> None:
        bound = InFlightBound(1, 100)
        await bound.take(1)
        waiting = asyncio.create_task(bound.take(1))
        behind = asyncio.create_task(bound.take(1))
        await settle()
        if is_admitted:
            bound.release(1)  # admits `waiting`, which is cancelled before it runs
        waiting.cancel()
        await settle()
        assert waiting.cancelled()
        if not is_admitted:
            assert not behind.done()
            bound.release(1)
        async with asyncio.timeout(5):
            await behind
        bound.release(1)
        assert bound.try_take(100)

    asyncio.run(play())
