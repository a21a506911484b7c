"""Cached answers of servers, in virtual time: when they are used, fetched again, and retained without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ariane.errors import ConnectionLost, ReplyError
from ariane.proxy.cluster.fresh_values import FRESH_S, STALE_S, FreshValues
from ariane.testing.virtual.virtual_time import VirtualLoop

REFUSED, LOST = ReplyError(17, "no such topic"), ConnectionLost("10.0.0.1:9876", "is closed")


class Server:
    """Answers with the number of the fetch, or raises `failure`."""

    def __init__(self) -> None:
        self.fetches = 0
        self.failure: Exception | None = None
        self.values = FreshValues(self.fetch)

    async def fetch(self, name: str) -> int:
        self.fetches += 1
        number = self.fetches
        await asyncio.sleep(1)
        if self.failure is not None:
            raise self.failure
        return number


def play(act: Callable[[Server, VirtualLoop], Awaitable[None]]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(act(Server(), loop))
    finally:
        loop.close()


def test_concurrent_callers_share_a_fetch() -> None:
    async def act(server: Server, loop: VirtualLoop) -> None:
        assert await asyncio.gather(*(server.values.get("T") for _ in range(3))) == [1, 1, 1]
        assert await server.values.get("U") == 2

    play(act)


def test_an_old_value_is_returned_at_once_and_fetched_again_meanwhile() -> None:
    async def act(server: Server, loop: VirtualLoop) -> None:
        await server.values.get("T")
        await asyncio.sleep(FRESH_S)
        before_s = loop.time()
        assert (await server.values.get("T"), loop.time()) == (1, before_s)
        await asyncio.sleep(2)
        assert (await server.values.get("T"), server.fetches) == (2, 2)
        await asyncio.sleep(STALE_S)
        assert await server.values.get("T") == 3

    play(act)


def test_an_expired_value_is_fetched_before_it_is_used() -> None:
    async def act(server: Server, loop: VirtualLoop) -> None:
        await server.values.get("T")
        server.values.expire("T")
        server.values.expire("another")
        assert await server.values.get("T") == 2

    play(act)


def test_a_value_stays_in_use_while_no_server_responds() -> None:
    async def act(server: Server, loop: VirtualLoop) -> None:
        server.failure = LOST
        with pytest.raises(ConnectionLost):
            await server.values.get("T")
        server.failure = None
        assert await server.values.get("T") == 2
        server.failure = LOST
        for _ in range(3):
            await asyncio.sleep(STALE_S)
            assert await server.values.get("T") == 2

    play(act)


def test_a_refused_value_is_forgotten() -> None:
    async def act(server: Server, loop: VirtualLoop) -> None:
        await server.values.get("T")
        server.failure = REFUSED
        await asyncio.sleep(FRESH_S)
        assert await server.values.get("T") == 1
        await asyncio.sleep(2)
        with pytest.raises(ReplyError):
            await server.values.get("T")

    play(act)
