"""The public fake clock: time passes only on request, sleepers wake in order."""

from __future__ import annotations

import asyncio

import pytest

from ariane.clock import Clock
from ariane.testing.clock import EPOCH_MS, FakeClock


def test_time_does_not_pass_until_it_is_advanced() -> None:
    clock: Clock = FakeClock()
    assert (clock.now_ms(), clock.monotonic()) == (EPOCH_MS, EPOCH_MS / 1000)
    assert clock.now_ms() == EPOCH_MS
    fake = FakeClock(1000)
    fake.advance(1.5)
    fake.advance_ms(0.25)
    assert (fake.now_ms(), fake.time_ms, fake.elapsed_ms, fake.monotonic()) == (2500, 2500.25, 1500.25, 2.50025)


def test_a_tick_separates_readings() -> None:
    clock = FakeClock(1000, tick_ms=1)
    assert [clock.now_ms() for _ in range(3)] == [1000, 1001, 1002]


def test_setting_the_wall_clock_back_does_not_change_the_monotonic_clock() -> None:
    clock = FakeClock(10_000)
    clock.wall_offset_ms = -5000
    assert (clock.now_ms(), clock.monotonic()) == (5000, 10.0)


def test_sleepers_wake_in_order_of_their_deadlines() -> None:
    async def run() -> None:
        clock, woken = FakeClock(), list[str]()

        async def sleeper(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            woken.append(name)

        tasks = [asyncio.create_task(sleeper(name, seconds)) for name, seconds in (("late", 2), ("a", 1), ("b", 1))]
        await asyncio.sleep(0)
        clock.advance(0.999)
        await asyncio.sleep(0)
        assert woken == []
        clock.advance(0.001)
        await asyncio.sleep(0)
        assert woken == ["a", "b"]
        clock.advance(100)
        await asyncio.gather(*tasks)
        assert (woken, clock.sleep_count) == (["a", "b", "late"], 3)

    asyncio.run(run())


def test_a_cancelled_sleeper_does_not_disturb_the_others() -> None:
    async def run() -> None:
        clock = FakeClock()
        cancelled, other = asyncio.create_task(clock.sleep(1)), asyncio.create_task(clock.sleep(1))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        clock.advance(1)
        await other

    asyncio.run(run())


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_sleep_of_zero_returns_without_an_advance(seconds: float) -> None:
    asyncio.run(FakeClock().sleep(seconds))


def test_an_automatic_clock_advances_by_its_sleeps() -> None:
    clock = FakeClock(is_auto=True)
    asyncio.run(clock.sleep(3))
    assert clock.elapsed_ms == 3000


def test_calls_are_made_when_the_clock_has_advanced_far_enough() -> None:
    async def main() -> None:
        clock, calls = FakeClock(), []
        clock.call_later(5, calls.append, "a")
        clock.call_later(3, calls.append, "b")
        clock.call_later(4, calls.append, "cancelled").cancel()
        clock.advance(4)
        await asyncio.sleep(0)
        assert calls == ["b"]
        clock.advance(1)
        await asyncio.sleep(0)
        assert calls == ["b", "a"]

    asyncio.run(main())
