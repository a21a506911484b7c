"""States of clients that tabs share: one fetch for all, and another one when it is old or failed."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ariane.clock import Clock
from ariane.cluster.admin import Admin
from ariane.cluster.groups.consumer_status import ConsumerStates
from ariane.cluster.groups.group_admin import GroupConnections
from ariane.console.live.client_states import VALID_S, ClientStates
from ariane.errors import ServerUnavailable
from ariane.testing.clock import FakeClock

CONNECTIONS = GroupConnections("G", (), {}, frozenset(), None, None, None, {}, ())


class GatedAdmins:
    """Returns operations that count the fetches, and respond when their gate is open."""

    def __init__(self) -> None:
        self.fetches = 0
        self.gate = asyncio.Event()
        self.error: ServerUnavailable | None = None
        self.connections: GroupConnections | None = CONNECTIONS

    def admin(self, *, is_dry_run: bool = False) -> Admin:
        return cast(Admin, self)

    async def consumer_connections(self, group: str) -> GroupConnections | None:
        self.fetches += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.connections

    async def consumer_states(self, group: str, connections: GroupConnections) -> ConsumerStates:
        return ConsumerStates(connections, {}, ())


def opened() -> tuple[GatedAdmins, Any, ClientStates]:
    source, clock = GatedAdmins(), FakeClock()
    return source, clock, ClientStates(source=source, clock=cast(Clock, clock))


def test_tabs_share_a_fetch_until_it_is_old() -> None:
    async def run() -> None:
        source, clock, states = opened()
        tabs = [asyncio.create_task(states.fetch("G")) for _ in range(5)]
        await asyncio.sleep(0)
        source.gate.set()
        first = (await asyncio.gather(*tabs))[0]
        assert first.found is not None and source.fetches == 1
        clock.advance(VALID_S - 0.001)
        assert await states.fetch("G") is first
        clock.advance(0.001)
        assert await states.fetch("G") is not first
        assert source.fetches == 2
        source.connections = None
        assert (await states.fetch("H")).found is None
        await states.close()

    asyncio.run(run())


def test_a_closed_tab_does_not_cancel_the_fetch_of_the_others() -> None:
    async def run() -> None:
        source, _, states = opened()
        closed, other = [asyncio.create_task(states.fetch("G")) for _ in range(2)]
        await asyncio.sleep(0)
        closed.cancel()
        source.gate.set()
        assert (await other).found is not None
        assert source.fetches == 1
        await states.close()

    asyncio.run(run())


def test_a_failed_fetch_is_tried_again() -> None:
    async def run() -> None:
        source, _, states = opened()
        source.gate.set()
        source.error = ServerUnavailable("no broker is registered")
        with pytest.raises(ServerUnavailable):
            await states.fetch("G")
        source.error = None
        assert (await states.fetch("G")).found is not None
        await states.close()

    asyncio.run(run())
