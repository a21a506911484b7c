"""Calls in ticks of the event loop: their order, how many each tick makes, and errors."""

from __future__ import annotations

import asyncio

import pytest

from ariane.net.limits.paced_calls import CALLS_PER_TICK, PacedCalls


def test_each_tick_makes_a_bounded_number_of_calls_in_order() -> None:
    async def run() -> None:
        calls, made = PacedCalls(), list[int]()
        for number in range(CALLS_PER_TICK + 1):
            calls.add(lambda number=number: made.append(number))  # type: ignore[misc]
        assert made == list(range(CALLS_PER_TICK)), "the first ones at once"
        calls.add(lambda: [calls.add(lambda number=number: made.append(number)) for number in range(100, 300)])  # type: ignore[misc]
        expected = [*range(CALLS_PER_TICK + 1), *range(100, 300)]
        while len(made) < len(expected):
            before = len(made)
            await asyncio.sleep(0)
            assert len(made) <= before + CALLS_PER_TICK
        assert made == expected
        calls.add(lambda: made.append(-1))
        assert made[-1] == -1, "there is room again"

    asyncio.run(run())


def test_a_call_that_fails_concerns_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        calls, made = PacedCalls(), list[int]()
        for _ in range(CALLS_PER_TICK):
            calls.add(lambda: None)
        for number in (1, 0, 2):
            calls.add(lambda number=number: made.append(1 // number))  # type: ignore[misc]
        while len(made) < 2:
            await asyncio.sleep(0)

    asyncio.run(run())
    assert "ZeroDivisionError" in caplog.text
