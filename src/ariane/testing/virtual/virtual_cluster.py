"""A whole cluster in virtual time: the real name server, broker and clients on a simulated network and disk.

    async def scenario(world: VirtualCluster) -> None:
        await world.start()                                      # name server and broker
        shop = world.process("shop")

        async def sell() -> None:
            async with world.instance(shop) as instance, Producer(instance, "shop") as producer:
                await producer.send(Message(topic="Orders", body=b"one"))

        await shop.start(sell())                                 # its result; raises ProcessKilled if it is killed
        world.broker.kill()                                      # or stop(), lose_power(); then start() with the same disk
        await asyncio.sleep(3600)                                # takes no real time

    with virtual_cluster(seed=1) as world:
        world.run(scenario(world))

No socket, no thread, no real sleep, and the same seed repeats the same run. Each program runs in a `VirtualProcess` that can be
paused, resumed and killed; code that uses the network must run in one. `world.network` delays and drops messages, `world.disk`
fails (`FakeDisk.fail`), `world.rng` is the scenario's random generator. Listeners are coroutine functions, which may sleep; a
plain function runs without taking virtual time.
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
from ariane.broker.config.broker_config import BrokerConfig
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.settings import ClientSettings
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.testing.disk import FakeDisk, SurvivingData
from ariane.testing.virtual.virtual_network import VirtualNetwork
from ariane.testing.virtual.virtual_time import VirtualClock, VirtualLoop, VirtualProcess

T = TypeVar("T")

LIMIT_S = 7 * 24 * 3600.0  # virtual; a scenario that takes longer waits for an event that never happens
SMALL_FILES = {  # a FakeDisk keeps whole files in memory and copies them when a broker is killed
    "mapped_file_size_commit_log": 1024 * 1024,
    "mapped_file_size_consume_queue": 60_000,
    "max_hash_slot_num": 1_000,
    "max_index_num": 4_000,
}
STORE = "/store"


@contextlib.contextmanager
def virtual_cluster(seed: int = 0, **settings: Any) -> Iterator[VirtualCluster]:
    """Create a cluster without running servers; `VirtualCluster.start` starts them with these fields of BrokerConfig.

    The seed determines every random choice, so that a run can be repeated.
    """
    before = random.getstate()
    random.seed(seed)  # the broker selects queues with the generator of the `random` module
    with tempfile.TemporaryDirectory(prefix="ariane-virtual-") as home:
        world = VirtualCluster(seed, Path(home), settings)
        try:
            yield world
        finally:
            world.close()
            random.setstate(before)


class VirtualCluster:
    """A simulated cluster; created by `virtual_cluster`."""

    def __init__(self, seed: int, home: Path, settings: dict[str, Any]) -> None:
        self.rng = Random(seed)  # noqa: S311 - repeats a run, guards nothing
        # Runs name server, broker and clients in one thread and in virtual time.
        self.loop = VirtualLoop()
        self.network = VirtualNetwork(self.loop, Random(self.rng.random()))  # noqa: S311
        self.loop.network = self.network
        self.clock = VirtualClock(self.loop)  # virtual time, for code of the test
        self.disk = FakeDisk()  # the broker's disk, which survives the broker
        self.namesrv = "10.0.0.1:9876"  # address for clients; a machine of the virtual network
        self._home = home  # real directory of the name server's file, which is not on the fake disk
        self._numbers = itertools.count()  # gives each process an address of its own
        names = NameServerConfig(
            bind_address="10.0.0.1", insecure=True, listen_port=9876, kv_config_path=str(home / "kvConfig.json")
        )
        self.name_server = VirtualProgram(
            self, "name server", "10.0.0.1", lambda: NameServer(names, clock=VirtualClock(self.loop))
        )
        # On a machine of its own: losing its power does not take the name server away.
        self.broker = VirtualProgram(self, "broker", "10.0.0.2", lambda: self._broker(settings))

    def run(self, work: Coroutine[Any, Any, T], limit_s: float = LIMIT_S) -> T:
        """Run `work`, which controls all processes from outside, and return its result. Fails after `limit_s` virtual seconds."""

        async def limited() -> T:
            async with asyncio.timeout(limit_s):
                return await work

        return self.loop.run_until_complete(limited())

    async def start(self) -> None:
        """Start the name server and the broker."""
        await self.name_server.start()
        await self.broker.start()

    def process(self, name: str) -> VirtualProcess:
        """Create a process on a machine of its own."""
        number = next(self._numbers)
        return self.loop.process(name, f"10.{number // 62_500 + 1}.{number // 250 % 250}.{number % 250 + 1}")

    def instance(
        self, process: VirtualProcess, name: str = "", settings: ClientSettings | None = None
    ) -> ClientInstance:
        """Return the ClientInstance of `process`, to be opened in it. `name` distinguishes several on one machine."""
        client_settings = settings or ClientSettings(client_ip=process.ip, instance_name=name or process.name)
        return ClientInstance(self.namesrv, client_settings, clock=self.clock, rng=Random(self.rng.random()))  # noqa: S311

    def close(self) -> None:
        """Kill all processes."""
        self.loop.close()

    def _broker(self, settings: dict[str, Any]) -> Broker:
        values = {
            **SMALL_FILES,
            "broker_name": "broker-a",
            "bind_address": "10.0.0.2",
            "insecure": True,
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
        self.process: VirtualProcess | None = None  # None before the first start; a new one after each kill
        self._world = world  # loop, network and disk
        self._name = name  # for error messages
        self._ip = ip  # stays the same over restarts, as a machine's does
        self._make = make  # builds the server again for each start, because a killed one cannot be reused
        self._stop_requested: asyncio.Event | None = None  # set by `stop`; None while the program is not running
        self._serving: asyncio.Future[None] | None = None  # done when the server has stopped; raises what ended it

    async def start(self) -> None:
        """Start the server and wait until it serves requests."""
        self.process = self._world.loop.process(self._name, self._ip)
        opened = self._world.loop.create_future()
        stop_requested = self._stop_requested = asyncio.Event()

        async def serve() -> None:
            try:
                async with self._make():
                    opened.set_result(None)
                    await stop_requested.wait()
            except BaseException as error:
                if not opened.done():
                    opened.set_exception(error)
                raise

        self._serving = self.process.start(serve())
        await opened

    async def stop(self) -> None:
        """Stop the server in an orderly way: it unregisters and saves its state."""
        assert self._stop_requested is not None and self._serving is not None
        self._stop_requested.set()
        await self._serving

    def kill(self) -> None:
        """Kill the server (SIGKILL); everything it has written stays on the disk."""
        if self.process is not None:
            self._world.disk = self._world.disk.after_kill()
            self.process.kill()

    def lose_power(self, surviving: SurvivingData = SurvivingData.SOME) -> None:
        """Take the machine away: peers are not notified, and of unflushed changes only `surviving` ones stay on the disk."""
        if self.process is not None:
            self._world.disk = self._world.disk.after_power_loss(surviving, self._world.rng)
            self._world.network.vanish(self.process)
