"""Connections of the console: a server that hangs costs one time limit, whatever is asked of it, and comes back by a probe."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from ariane.console.live.guarded_pool import GuardedPool, NotRegistered
from ariane.errors import ArianeError, ConnectionLost, RequestTimeout
from ariane.net.connection import Peer, Reply
from ariane.net.pools.fail_fast_pool import FORGET_S, PROBE_EVERY_S
from ariane.net.pools.server_health import ServerHealth
from ariane.net.server import RemotingServer
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.testing.clock import FakeClock

LIMIT_MS = 300.0
LONG_MS = 600_000.0  # a test would take this long if the limit had no effect
READ = RequestCode.GET_ALL_TOPIC_CONFIG
SLOW = RequestCode.GET_CONSUMER_RUNNING_INFO  # takes until the end of the test, unlike all others


class HangingServer:
    """A server that responds to nothing while `is_hanging`, and counts the requests."""

    def __init__(self) -> None:
        self.is_hanging = False
        self.counts: dict[int, int] = {}
        self._never = asyncio.Event()
        codes = (READ, SLOW, RequestCode.GET_BROKER_RUNTIME_INFO)
        self.server = RemotingServer(dict.fromkeys(codes, self._handle), "127.0.0.1", 0)

    async def _handle(self, request: Command, peer: Peer) -> Reply:
        self.counts[request.code] = self.counts.get(request.code, 0) + 1
        if self.is_hanging or request.code == SLOW:
            await self._never.wait()
        return Reply(body=b"ok")

    @property
    def addr(self) -> str:
        return f"127.0.0.1:{self.server.port}"


class ListingServer:
    """A name server that lists one broker, and counts the requests."""

    def __init__(self, broker: HangingServer) -> None:
        self._broker = broker
        self.requests = 0
        self.server = RemotingServer({RequestCode.GET_BROKER_CLUSTER_INFO: self._handle}, "127.0.0.1", 0)

    async def _handle(self, request: Command, peer: Peer) -> Reply:
        self.requests += 1
        brokers = {"b": {"cluster": "c", "brokerName": "b", "brokerAddrs": {"0": self._broker.addr}}}
        return Reply(body=json.dumps({"brokerAddrTable": brokers, "clusterAddrTable": {"c": ["b"]}}).encode())


class Scene:
    """A server, its state, and two pools that share it."""

    def __init__(self, server: HangingServer, name_server: ListingServer) -> None:
        self.server = server
        self.name_server = name_server
        name_servers = [f"127.0.0.1:{name_server.server.port}"]
        self.clock = FakeClock()
        self.health = ServerHealth(self.clock)
        self.pools = [
            GuardedPool(name_servers, health=self.health, limit_ms=LIMIT_MS, clock=self.clock) for _ in range(2)
        ]

    async def request(self, code: int = READ, *, timeout_ms: float = LIMIT_MS, pool: int = 0) -> Command:
        # Clocks of programs never stand still between two events.
        self.clock.advance_ms(1)
        return await self.pools[pool].request(self.server.addr, code, timeout_ms=timeout_ms)

    async def fails(self, code: int = READ, *, timeout_ms: float = LIMIT_MS, pool: int = 0) -> ArianeError:
        with pytest.raises(ArianeError) as raised:
            await self.request(code, timeout_ms=timeout_ms, pool=pool)
        return raised.value


def play(story: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        server = HangingServer()
        name_server = ListingServer(server)
        async with server.server, name_server.server:
            scene = Scene(server, name_server)
            async with scene.pools[0], scene.pools[1]:
                await story(scene)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_after_one_time_limit_requests_fail_at_once_in_all_pools() -> None:
    async def story(scene: Scene) -> None:
        scene.server.is_hanging = True
        assert isinstance(await scene.fails(), RequestTimeout)
        asked = dict(scene.server.counts)
        for pool in (0, 1):
            error = await scene.fails(timeout_ms=LONG_MS, pool=pool)
            assert isinstance(error, ConnectionLost)
            assert "it did not respond lately (no response within 300 ms)" in str(error)
        assert scene.server.counts == asked

    play(story)


def test_a_request_with_a_long_limit_fails_with_its_probe() -> None:
    async def story(scene: Scene) -> None:
        scene.server.is_hanging = True
        error = await scene.fails(timeout_ms=LONG_MS)
        assert isinstance(error, ConnectionLost)
        assert "no response within 300 ms" in str(error)

    play(story)


def test_requests_in_flight_in_another_pool_fail_with_the_first() -> None:
    async def story(scene: Scene) -> None:
        waiting = asyncio.create_task(scene.fails(SLOW, timeout_ms=LONG_MS, pool=1))
        while not (scene.server.counts.get(SLOW) and scene.health.has_responded_since(scene.server.addr, 0)):
            await asyncio.sleep(0.001)
        scene.server.is_hanging = True
        await scene.fails()
        assert isinstance(await waiting, ConnectionLost)

    play(story)


def test_a_server_that_answers_others_is_not_silent() -> None:
    async def story(scene: Scene) -> None:
        async def answer_others() -> None:
            while True:
                await scene.request()

        others = asyncio.create_task(answer_others())
        assert isinstance(await scene.fails(SLOW), RequestTimeout)
        others.cancel()
        assert scene.health.silence(scene.server.addr) is None

    play(story)


def test_a_probe_brings_a_server_back() -> None:
    async def story(scene: Scene) -> None:
        scene.server.is_hanging = True
        await scene.fails()
        scene.server.is_hanging = False
        assert isinstance(await scene.fails(), ConnectionLost)
        scene.clock.advance(PROBE_EVERY_S)
        # This request starts the probe, and does not wait for it.
        assert isinstance(await scene.fails(), ConnectionLost)
        while scene.health.silence(scene.server.addr):
            await asyncio.sleep(0.001)
        assert (await scene.request()).body == b"ok"

    play(story)


def test_a_silence_that_nobody_checked_is_forgotten() -> None:
    async def story(scene: Scene) -> None:
        scene.server.is_hanging = True
        await scene.fails()
        scene.server.is_hanging = False
        scene.clock.advance(FORGET_S)
        assert (await scene.request()).body == b"ok"
        assert scene.health.silence(scene.server.addr) is None

    play(story)


def test_a_refused_connection_is_no_silence() -> None:
    async def story(scene: Scene) -> None:
        free = scene.server.addr
        await scene.server.server.__aexit__(None, None, None)
        error = await scene.fails()
        assert isinstance(error, ConnectionLost)
        assert scene.health.silence(free) is None

    play(story)


def test_a_connection_that_was_dropped_for_a_silent_server_is_no_response() -> None:
    """The probe of the second pool ends with the connection, because the first pool found out earlier."""

    async def story(scene: Scene) -> None:
        await scene.request()
        await scene.request(pool=1)
        scene.server.is_hanging = True
        first = asyncio.create_task(scene.fails())
        await asyncio.sleep(LIMIT_MS / 4000)
        assert isinstance(await scene.fails(timeout_ms=LONG_MS, pool=1), ConnectionLost)
        await first
        await asyncio.sleep(0)
        assert scene.health.silence(scene.server.addr) is not None

    play(story)


def test_only_servers_of_the_cluster_are_asked() -> None:
    async def story(scene: Scene) -> None:
        other = HangingServer()
        async with other.server:
            for _ in range(2):
                with pytest.raises(NotRegistered, match="not asked: no name server lists it"):
                    await scene.pools[0].request(other.addr, READ, timeout_ms=LIMIT_MS)
        assert other.counts == {}
        asked = scene.name_server.requests
        await scene.request()
        await scene.request()
        assert scene.name_server.requests == asked  # the address is known

    play(story)


def test_without_a_name_server_unknown_servers_are_not_asked() -> None:
    async def story(scene: Scene) -> None:
        await scene.name_server.server.__aexit__(None, None, None)
        error = await scene.fails()
        assert isinstance(error, ConnectionLost)
        assert "no name server responded" in str(error)
        assert scene.server.counts == {}

    play(story)
