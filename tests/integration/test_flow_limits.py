"""Limits of a server on requests in flight and on connections, over its socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from ariane.errors import ConnectionLost
from ariane.net.connection import Handler, Peer, Reply
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.server import RemotingServer
from ariane.protocol.command import Command

ECHO, HELD, SLOW, EXEMPT = 1, 2, 3, 4


def with_server(limits: ServerLimits, work: Callable[[str, asyncio.Event], Awaitable[None]]) -> None:
    async def run() -> None:
        release = asyncio.Event()

        async def held(request: Command, peer: Peer) -> Reply:
            await release.wait()
            return Reply()

        def slow(request: Command, peer: Peer) -> Reply:
            time.sleep(0.002)
            return Reply()

        def echo(request: Command, peer: Peer) -> Reply:
            return Reply()

        handlers: dict[int, Handler] = {ECHO: echo, HELD: held, SLOW: slow, EXEMPT: echo}
        async with RemotingServer(handlers, "127.0.0.1", 0, limits=limits) as server:
            await work(f"127.0.0.1:{server.port}", release)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_requests_beyond_the_limit_are_rejected_until_others_finish() -> None:
    async def work(addr: str, release: asyncio.Event) -> None:
        async with ConnectionPool() as peers, ConnectionPool() as others:
            pending = [asyncio.ensure_future(peers.request(addr, HELD)) for _ in range(2)]
            while limits.in_flight < 2:
                await asyncio.sleep(0.01)
            refused = await others.request(addr, ECHO)
            assert refused.code == 2
            assert str(refused.remark).startswith("[OVERLOAD]")
            assert (await others.request(addr, EXEMPT)).code == 0
            release.set()
            assert [(await item).code for item in pending] == [0, 0]
            assert limits.in_flight == 0
            assert (await others.request(addr, ECHO)).code == 0

    limits = ServerLimits(requests_max=2, exempt=frozenset({EXEMPT}))
    with_server(limits, work)


def test_each_connection_has_its_own_limit() -> None:
    async def work(addr: str, release: asyncio.Event) -> None:
        async with ConnectionPool() as peers, ConnectionPool() as others:
            pending = asyncio.ensure_future(peers.request(addr, HELD))
            while limits.in_flight < 1:
                await asyncio.sleep(0.01)
            assert (await peers.request(addr, ECHO)).code == 2
            assert (await others.request(addr, ECHO)).code == 0
            release.set()
            assert (await pending).code == 0

    limits = ServerLimits(connection_requests_max=1)
    with_server(limits, work)


def test_requests_of_a_lost_connection_no_longer_count_as_in_flight() -> None:
    async def work(addr: str, release: asyncio.Event) -> None:
        async with ConnectionPool() as peers:
            pending = asyncio.ensure_future(peers.request(addr, HELD))
            while limits.in_flight < 1:
                await asyncio.sleep(0.01)
        with pytest.raises(ConnectionLost):
            await pending
        while limits.in_flight:
            await asyncio.sleep(0.01)

    limits = ServerLimits()
    with_server(limits, work)


def test_a_request_queued_too_long_is_rejected() -> None:
    async def work(addr: str, release: asyncio.Event) -> None:
        async with ConnectionPool() as peers:
            connection = await peers.connect(addr)
            answers = [
                connection.request_nowait(SLOW, timeout_ms=9000) for _ in range(100)
            ]  # one write: 2 ms each, in turns of 3 ms
            codes = [(await answer).code for answer in answers]
            assert codes[0] == 0  # the first turn has waited for nothing
            assert codes[-1] == 2
            assert codes == sorted(codes)
            assert str((await answers[-1]).remark).startswith("[TIMEOUT_CLEAN_QUEUE]")
            assert (await peers.request(addr, SLOW)).code == 0

    with_server(ServerLimits(queue_time_limits_s={SLOW: 0.03}), work)


def test_a_connection_beyond_the_limit_is_closed() -> None:
    async def work(addr: str, release: asyncio.Event) -> None:
        async with ConnectionPool() as peers, ConnectionPool() as others:
            assert (await peers.request(addr, ECHO)).code == 0
            with pytest.raises(ConnectionLost):
                await others.request(addr, ECHO)
            assert recorded == [("connection", "serverConnectionsMax")]
            limits.quotas.set_limits({"serverConnectionsMax": 2})
            assert (await others.request(addr, ECHO)).code == 0

    limits, recorded = ServerLimits(connections_max=1), list[tuple[object, str]]()
    limits.audit = Recorder(recorded)
    with_server(limits, work)


class Recorder:
    """A RefusalRecorder that remembers codes and the keys of limits."""

    def __init__(self, recorded: list[tuple[object, str]]) -> None:
        self._recorded = recorded

    def refused(self, command: Command, peer: Peer, reason: str) -> None:
        raise AssertionError("no request is refused here")

    def refused_connection(self, peer: Peer, reason: str) -> None:
        self._recorded.append(("connection", _key(reason)))


def _key(reason: str) -> str:
    return reason.removeprefix("[QUOTA]").partition(":")[0]


def test_a_connection_beyond_the_limit_is_reset() -> None:
    """Clients of Java 4.9.4 wait for the responses of one that is merely closed."""

    async def work(addr: str, release: asyncio.Event) -> None:
        async with ConnectionPool() as peers:
            assert (await peers.request(addr, ECHO)).code == 0
            reader, writer = await asyncio.open_connection(*addr.split(":"))
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()

    with_server(ServerLimits(connections_max=1), work)
