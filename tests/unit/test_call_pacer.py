"""Pacing of new calls: connections take turns while the library has many calls that it has not begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ariane.proxy.transport import call_pacer
from ariane.proxy.transport.call_pacer import PENDING_MAX, SHARE_MIN, CallPacer


class Holder:
    """A connection that holds calls."""

    def __init__(self, calls: int, passed: list[Holder]) -> None:
        self.calls = calls
        self._passed = passed

    def pass_calls(self, limit: int) -> int:
        count = min(limit, self.calls)
        self.calls -= count
        self._passed += [self] * count
        return count

    @property
    def has_held_data(self) -> bool:
        return self.calls > 0


def run(scenario: Callable[[CallPacer, list[Holder]], object]) -> None:
    async def running() -> None:
        pacer = CallPacer()
        result = scenario(pacer, [])
        if asyncio.iscoroutine(result):
            await result
        pacer.close()

    asyncio.run(running())


async def tick() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_calls_pass_while_the_library_has_few() -> None:
    def scenario(pacer: CallPacer, passed: list[Holder]) -> None:
        for _ in range(10):
            assert pacer.admit(PENDING_MAX)
            assert not pacer.admit(1)
            for _ in range(PENDING_MAX):
                pacer.on_begun()

    run(scenario)


def test_a_connection_with_a_thousand_calls_delays_others_by_its_share() -> None:
    async def scenario(pacer: CallPacer, passed: list[Holder]) -> None:
        flood, other = Holder(1000, passed), Holder(1, passed)
        pacer.add(flood)
        await tick()
        assert len(passed) == PENDING_MAX
        pacer.add(other)
        await tick()
        assert other.calls == 1
        for _ in range(PENDING_MAX // 2):
            pacer.on_begun()
        await tick()
        assert other.calls == 0
        assert passed.index(other) <= PENDING_MAX + max(SHARE_MIN, PENDING_MAX // 4)
        assert not pacer.admit(1)

    run(scenario)


@pytest.mark.parametrize("never", [PENDING_MAX // 2 + 1, PENDING_MAX])
def test_calls_that_never_begin_are_forgotten(never: int) -> None:
    async def scenario(pacer: CallPacer, passed: list[Holder]) -> None:
        assert pacer.admit(never)
        flood = Holder(10 * PENDING_MAX, passed)
        pacer.add(flood)
        begun = 0
        while flood.calls:
            await asyncio.sleep(0.001)
            for _ in passed[begun:]:  # the others begin at once
                begun += 1
                pacer.on_begun()

    run(scenario)


def test_no_call_is_forgotten_while_the_library_begins_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_pacer, "SILENCE_S", 0.0)

    async def scenario(pacer: CallPacer, passed: list[Holder]) -> None:
        pacer.add(Holder(10 * PENDING_MAX, passed))
        for begun in range(100):
            await asyncio.sleep(0)
            assert len(passed) <= begun + PENDING_MAX
            pacer.on_begun()

    run(scenario)


def test_a_connection_that_is_lost_passes_nothing_on() -> None:
    async def scenario(pacer: CallPacer, passed: list[Holder]) -> None:
        lost = Holder(1, passed)
        pacer.add(lost)
        pacer.remove(lost)
        await tick()
        assert passed == []

    run(scenario)
