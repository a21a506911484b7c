"""Which connection is displaced while many are not established, and when one is too late."""

from __future__ import annotations

import asyncio

from ariane.net.limits.connection_limits import ConnectionLimits
from ariane.net.listening.pending_connections import PendingConnections
from ariane.testing.virtual.virtual_time import VirtualLoop


class Pending:
    def __init__(self, pending: PendingConnections, ip: str) -> None:
        self.ip = ip
        self.reason = ""
        self._pending = pending

    def drop(self, reason: str) -> None:
        self.reason = reason
        self.abort()

    def abort(self) -> None:
        self._pending.discard(self)


def many(pending: PendingConnections, ip: str, count: int) -> list[Pending]:
    added = [Pending(pending, ip) for _ in range(count)]
    for connection in added:
        pending.add(connection)
    return added


def run(work: object) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(work)  # type: ignore[arg-type]
    finally:
        loop.close()


def test_an_address_displaces_its_own_oldest() -> None:
    async def work() -> None:
        pending = PendingConnections("silent", ConnectionLimits(total=100, per_address=3), 10)
        other, crowd = many(pending, "10.0.0.2", 1), many(pending, "10.0.0.1", 5)
        assert [bool(connection.reason) for connection in crowd] == [True, True, False, False, False]
        assert "more than 3 of its address" in crowd[0].reason
        assert not other[0].reason and len(pending) == 4

    run(work())


def test_beyond_the_total_the_most_frequent_address_loses_one() -> None:
    async def work() -> None:
        pending = PendingConnections("silent", ConnectionLimits(total=5, per_address=4), 10)
        first, crowd, last = many(pending, "10.0.0.2", 1), many(pending, "10.0.0.1", 4), many(pending, "10.0.0.3", 1)
        assert crowd[0].reason and not first[0].reason and not last[0].reason
        assert len(pending) == 5

    run(work())


def test_each_is_dropped_after_its_own_time() -> None:
    async def work() -> None:
        pending = PendingConnections("silent", ConnectionLimits(total=5, per_address=4), 10)
        (first,) = many(pending, "10.0.0.1", 1)
        await asyncio.sleep(4)
        second, established = many(pending, "10.0.0.1", 2)
        pending.discard(established)
        await asyncio.sleep(7)
        assert first.reason == "silent within 10 s" and not second.reason
        await asyncio.sleep(4)
        assert second.reason and not established.reason and not len(pending)
        (again,) = many(pending, "10.0.0.1", 1)
        await asyncio.sleep(11)
        assert again.reason

    run(work())
