"""How long a page waits for a broker that hangs, at whatever moment it stops. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ariane.console.live.guarded_pool import LIMIT_MS, GuardedPool
from ariane.errors import ArianeError
from ariane.net.connection import Peer, Reply
from ariane.net.pools.fail_fast_pool import FORGET_S, PROBE_PAUSE_S
from ariane.net.pools.server_health import ServerHealth
from ariane.net.server import RemotingServer
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.testing.virtual.virtual_cluster import VirtualCluster, virtual_cluster
from ariane.testing.virtual.virtual_time import VirtualProcess

QUICK = RequestCode.GET_BROKER_RUNTIME_INFO
SLOW = RequestCode.GET_CONSUMER_RUNNING_INFO  # the broker waits for a client, which does not respond
TIMEOUT_MS = 10_000.0  # of requests: without probes they would take this long
LIMIT_S = LIMIT_MS / 1000
ROUND_TRIP_S = 0.01


class Scene:
    """A broker that can be paused, and a pool of a page that asks it."""

    def __init__(self, world: VirtualCluster) -> None:
        self.loop = world.loop
        self.broker: VirtualProcess = world.process("broker")
        self.addr = f"{self.broker.ip}:10911"
        self.health = ServerHealth(world.clock)
        # The broker is given as a name server, so that no list of brokers is needed. Their probe has another code.
        self.probes = 0
        self.pool = GuardedPool([self.addr], health=self.health, clock=world.clock)

    async def serve(self) -> None:
        async def answer(command: Command, peer: Peer) -> Reply:
            self.probes += command.code == RequestCode.GET_BROKER_CLUSTER_INFO
            if command.code == SLOW:
                await asyncio.Event().wait()
            return Reply()

        codes = (QUICK, SLOW, RequestCode.GET_BROKER_CLUSTER_INFO)
        server = RemotingServer(dict.fromkeys(codes, answer), self.broker.ip, 10911)
        await server.__aenter__()

    async def failure_s(self, code: int) -> float:
        """Return the time after which a request fails."""
        started_s = self.loop.time()
        with pytest.raises(ArianeError):
            await self.pool.request(self.addr, code, timeout_ms=TIMEOUT_MS)
        return self.loop.time() - started_s


def play(story: Callable[[Scene], Awaitable[None]]) -> None:
    with virtual_cluster() as world:
        scene = Scene(world)

        async def page() -> None:
            async with scene.pool:
                await story(scene)

        async def scenario() -> None:
            await scene.broker.start(scene.serve())
            await world.process("console").start(page())

        world.run(scenario(), limit_s=120)


@pytest.mark.parametrize("after_ms", [0, 1, 3, 20, 200, 400, 2_500])
def test_a_broker_that_stops_during_a_request_delays_it_by_little_more_than_a_second(after_ms: int) -> None:
    async def story(scene: Scene) -> None:
        await scene.pool.request(scene.addr, QUICK)
        scene.loop.call_later(after_ms / 1000, scene.broker.pause)
        taken_s = await scene.failure_s(SLOW)
        assert taken_s <= after_ms / 1000 + LIMIT_S + PROBE_PAUSE_S + ROUND_TRIP_S

    play(story)


def test_a_response_that_another_thread_decodes_late_delays_by_one_more_second() -> None:
    async def story(scene: Scene) -> None:
        scene.broker.pause()
        scene.loop.call_later(0.9, scene.health.report_response, scene.addr)
        assert await scene.failure_s(QUICK) <= 2 * LIMIT_S + ROUND_TRIP_S

    play(story)


def test_a_broker_that_still_hangs_when_its_silence_is_forgotten_delays_by_one_second() -> None:
    async def story(scene: Scene) -> None:
        scene.broker.pause()
        await scene.failure_s(QUICK)
        await asyncio.sleep(FORGET_S)
        assert await scene.failure_s(QUICK) <= LIMIT_S + ROUND_TRIP_S
        assert await scene.failure_s(QUICK) == 0

    play(story)


def test_a_broker_that_waits_for_a_client_is_probed_a_few_times_per_second() -> None:
    async def story(scene: Scene) -> None:
        assert await scene.failure_s(SLOW) == pytest.approx(TIMEOUT_MS / 1000)
        assert scene.health.silence(scene.addr) is None
        assert scene.probes == pytest.approx(TIMEOUT_MS / 1000 / PROBE_PAUSE_S, abs=2)

    play(story)
