"""PUBLIC: a whole cluster in virtual time: the real name server, broker and clients, a network and a disk in memory.

    async def scenario(world: World) -> None:
        await world.start()                                      # name server and broker
        shop = world.process("shop")

        async def sell() -> None:
            async with world.instance(shop) as instance, Producer("shop", instance=instance) as producer:
                await producer.send(Message(topic="Orders", body=b"one"))

        await shop.start(sell())                                 # its result; ProcessKilled when it was killed
        world.broker.kill()                                      # or stop(), lose_power(); then start() on what is on its disk
        await asyncio.sleep(3600)                                # takes no time

    with virtual_cluster(seed=1) as world:
        world.run(scenario(world))

No socket, no thread, no real sleep, and the same seed is the same run. Each program lives in a `Process` that can be paused,
resumed and killed; what touches the network has to run in one. `world.network` delays and loses, `world.disk` fails
(`FakeDisk.fail`), `world.chance` draws. Listeners are coroutine functions, which may sleep; a plain function runs at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from ariane.broker.broker import Broker
from ariane.broker.config import BrokerConfig
from ariane.client.client_instance import ClientInstance
from ariane.client.settings import ClientSettings
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.testing.disk import FakeDisk, SurvivingData
from ariane.testing.virtual_network import VirtualNetwork
from ariane.testing.virtual_time import VirtualClock, VirtualLoop, VirtualProcess

T = TypeVar("T")

LIMIT_S = 7 * 24 * 3600.0  # virtual; a scenario that takes longer waits for something that does not come
SMALL_FILES = {  # a FakeDisk keeps whole files in memory and copies them when a broker is killed
    "mapped_file_size_commit_log": 1024 * 1024,
    "mapped_file_size_consume_queue": 60_000,
    "max_hash_slot_num": 1_000,
    "max_index_num": 4_000,
}
STORE = "/store"


@contextlib.contextmanager
def virtual_cluster(seed: int = 0, **settings: Any) -> Iterator[VirtualCluster]:
    """A world that has nothing in it yet (`World.start`). `settings` are fields of BrokerConfig."""
    before = random.getstate()
    random.seed(seed)  # the broker draws queues with the module's own generator
    with tempfile.TemporaryDirectory(prefix="ariane-virtual-") as home:
        world = VirtualCluster(seed, Path(home), settings)
        try:
            yield world
        finally:
            world.close()
            random.setstate(before)


class VirtualCluster:
    """Made by `virtual_cluster`."""

    def __init__(self, seed: int, home: Path, settings: dict[str, Any]) -> None:
        self.rng = Random(seed)  # noqa: S311 - repeats a run, guards nothing
        self.loop = VirtualLoop()
        self.network = VirtualNetwork(self.loop, Random(self.rng.random()))  # noqa: S311
        self.loop.network = self.network
        self.clock = VirtualClock(self.loop)
        self.disk = FakeDisk()
        """The broker's, which outlives it."""
        self.namesrv = "10.0.0.1:9876"
        self._home = home
        self._numbers = itertools.count()
        names = NameServerConfig(bind_address="10.0.0.1", listen_port=9876, kv_config_path=str(home / "kvConfig.json"))
        self.name_server = VirtualProgram(
            self, "name server", "10.0.0.1", lambda: NameServer(names, clock=VirtualClock(self.loop))
        )
        self.broker = VirtualProgram(self, "broker", "10.0.0.2", lambda: self._broker(settings))

    def run(self, work: Coroutine[Any, Any, T], limit_s: float = LIMIT_S) -> T:
        """Until `work` is done, which sees and moves everything from outside of all processes."""

        async def limited() -> T:
            async with asyncio.timeout(limit_s):
                return await work

        return self.loop.run_until_complete(limited())

    async def start(self) -> None:
        """Start the name server and the broker."""
        await self.name_server.start()
        await self.broker.start()

    def process(self, name: str) -> VirtualProcess:
        """A new process on a machine of its own."""
        number = next(self._numbers)
        return self.loop.process(name, f"10.{number // 62_500 + 1}.{number // 250 % 250}.{number % 250 + 1}")

    def instance(
        self, process: VirtualProcess, name: str = "", settings: ClientSettings | None = None
    ) -> ClientInstance:
        """What the clients of `process` share; to be opened in it. `name` tells several of one machine apart."""
        given = settings or ClientSettings(client_ip=process.ip, instance_name=name or process.name)
        return ClientInstance(self.namesrv, given, clock=self.clock, rng=Random(self.rng.random()))  # noqa: S311

    def close(self) -> None:
        """Kill what still runs."""
        self.loop.close()

    def _broker(self, settings: dict[str, Any]) -> Broker:
        values = {
            **SMALL_FILES,
            "broker_name": "broker-a",
            "bind_address": "10.0.0.2",
            "broker_ip1": "10.0.0.2",
            "listen_port": 10911,
            "store_path_root_dir": STORE,
            "stats_log_dir": str(self._home / "stats"),
            "namesrv_addr": self.namesrv,
            **settings,
        }
        return Broker(BrokerConfig(**values), disk=self.disk, clock=VirtualClock(self.loop))


class VirtualProgram:
    """A server that can be started again after it was stopped, killed, or lost with its machine."""

    def __init__(
        self, world: VirtualCluster, name: str, ip: str, make: Callable[[], AbstractAsyncContextManager[object]]
    ) -> None:
        self.process: VirtualProcess | None = None
        self._world = world
        self._name = name
        self._ip = ip
        self._make = make
        self._stop_requested: asyncio.Event | None = None
        self._is_serving: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Returns when it serves."""
        self.process = self._world.loop.process(self._name, self._ip)
        opened = self._world.loop.create_future()
        told = self._stop_requested = asyncio.Event()

        async def serve() -> None:
            try:
                async with self._make():
                    opened.set_result(None)
                    await told.wait()
            except BaseException as error:
                if not opened.done():
                    opened.set_exception(error)
                raise

        self._is_serving = self.process.start(serve())
        await opened

    async def stop(self) -> None:
        """In order: it says goodbye, and saves what it has to."""
        assert self._stop_requested is not None and self._is_serving is not None
        self._stop_requested.set()
        await self._is_serving

    def kill(self) -> None:
        """SIGKILL: what it wrote is there."""
        if self.process is not None:
            self._world.disk = self._world.disk.after_kill()
            self.process.kill()

    def lose_power(self, surviving: SurvivingData = SurvivingData.SOME) -> None:
        """Its machine is gone: nobody is told, and what was not flushed is lost in part (`kept`)."""
        if self.process is not None:
            self._world.disk = self._world.disk.after_power_loss(surviving, self._world.rng)
            self._world.network.vanish(self.process)
