"""The clock of test clusters: calls and sleeps end when the clock is moved past them, in order."""

from __future__ import annotations

import asyncio

import pytest

from ariane.clock import SYSTEM_CLOCK
from ariane.testing import movable_clock
from ariane.testing.movable_clock import MovableClock


async def run_ready() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_calls_that_are_due_are_made_in_order_and_the_others_come_nearer() -> None:
    async def main() -> None:
        clock, calls = MovableClock(), []
        clock.call_later(600, calls.append, "second")
        clock.call_later(300, calls.append, "first")
        late = clock.call_later(3600, calls.append, "third")
        never = clock.call_later(60, calls.append, "never")
        never.cancel()
        clock.shift(0)
        await run_ready()
        assert calls == []
        clock.shift(1_800_000)
        await run_ready()
        assert calls == ["first", "second"]
        clock.shift(1_799_000)
        await run_ready()
        assert calls == ["first", "second"]
        clock.shift(1_000)
        await run_ready()
        assert calls == ["first", "second", "third"]
        late.cancel()
        assert not clock._timers

    asyncio.run(main())


def test_only_the_wall_clock_moves() -> None:
    async def main() -> None:
        clock = MovableClock()
        before = SYSTEM_CLOCK.monotonic()
        clock.shift(86_400_000)
        assert before <= clock.monotonic() <= SYSTEM_CLOCK.monotonic()
        before_ms = SYSTEM_CLOCK.now_ms()
        assert before_ms <= clock.now_ms() - 86_400_000 <= SYSTEM_CLOCK.now_ms()

    asyncio.run(main())


def test_sleeps_end_by_a_shift_by_time_and_by_cancellation() -> None:
    async def main() -> None:
        clock = MovableClock()
        await clock.sleep(0)
        await clock.sleep(0.001)
        sleeping = asyncio.create_task(clock.sleep(3600))
        await run_ready()
        clock.shift(3_600_000)
        await sleeping
        cancelled = asyncio.create_task(clock.sleep(3600))
        await run_ready()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert not clock._timers

    asyncio.run(main())


def test_a_call_that_is_repeated_runs_once_per_shift() -> None:
    async def main() -> None:
        clock, rounds = MovableClock(), []

        async def repeat() -> None:
            while True:
                await clock.sleep(10)
                rounds.append(clock.now_ms())

        task = asyncio.create_task(repeat())
        await run_ready()
        clock.shift(3_600_000)
        await run_ready()
        assert len(rounds) == 1
        clock.shift(10_000)
        await run_ready()
        assert len(rounds) == 2
        task.cancel()

    asyncio.run(main())


def test_work_between_two_sleeps_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock, rounds = MovableClock(), []
        at_work, proceed = asyncio.Event(), asyncio.Event()

        async def repeat() -> None:
            while True:
                await clock.sleep(10)
                at_work.set()
                await proceed.wait()
                rounds.append(1)

        task = asyncio.create_task(repeat())
        await run_ready()
        await clock.wait_idle()
        clock.shift(10_000)
        await at_work.wait()
        waiting = asyncio.create_task(clock.wait_idle())
        await run_ready()
        assert not waiting.done()
        proceed.set()
        await waiting
        assert rounds == [1]
        proceed.clear()
        clock.shift(10_000)
        await asyncio.sleep(0.01)
        monkeypatch.setattr(movable_clock, "IDLE_MAX_S", 0.01)
        await clock.wait_idle()  # reaches its time limit, and forgets the task
        monkeypatch.setattr(movable_clock, "IDLE_MAX_S", 3600)
        await clock.wait_idle()
        task.cancel()

    asyncio.run(main())
