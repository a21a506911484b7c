"""PUBLIC: a name server and a broker in this process, on free ports of 127.0.0.1, for application tests.

    async with cluster(tmp_path) as servers:                      # in the running event loop
        async with Producer(servers.namesrv, "g") as producer: ...

    with cluster_in_thread(tmp_path) as servers:                  # for synchronous tests: runs in a thread of its own
        ...

The broker's store is the directory `store` in the given directory, or a temporary one that is removed afterwards. The pytest
fixture `ariane_cluster` (ariane.testing.plugin) is `cluster_in_thread` in the test's tmp_path.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from ariane.broker.broker import Broker
from ariane.broker.config import BrokerConfig
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer

LOOPBACK = "127.0.0.1"
START_S = 30.0
SMALL_FILES = {"mapped_file_size_commit_log": 16 * 1024 * 1024, "mapped_file_size_consume_queue": 60_000}


class LocalCluster(NamedTuple):
    """Addresses of the servers, as `host:port`."""

    namesrv: str
    broker: str


class ReplicatedCluster(NamedTuple):
    """Addresses of a cluster with slaves; `broker` is their master."""

    namesrv: str
    broker: str
    slaves: tuple[str, ...]


@contextlib.asynccontextmanager
async def cluster(home: Path | None = None, **settings: Any) -> AsyncIterator[LocalCluster]:
    """Run a name server and a broker until the end of the block.

    Args:
        home: Directory for the store; a temporary one if omitted.
        settings: Fields of BrokerConfig.

    Yields:
        The addresses. The broker is registered.
    """
    async with replicated_cluster(home, slaves=0, **settings) as servers:
        yield LocalCluster(servers.namesrv, servers.broker)


@contextlib.asynccontextmanager
async def replicated_cluster(
    home: Path | None = None, *, slaves: int = 1, **settings: Any
) -> AsyncIterator[ReplicatedCluster]:
    """Run a name server, a master and `slaves` slaves, which have the settings of the master."""
    with contextlib.ExitStack() as directories:
        if home is None:
            home = Path(directories.enter_context(tempfile.TemporaryDirectory(prefix="ariane-cluster-")))
        names = NameServerConfig(bind_address=LOOPBACK, listen_port=0, kv_config_path=str(home / "kvConfig.json"))
        async with NameServer(names) as name_server:
            namesrv = f"{LOOPBACK}:{name_server.addr.rpartition(':')[2]}"
            async with contextlib.AsyncExitStack() as brokers:
                master = await brokers.enter_async_context(Broker(broker_config(home / "store", namesrv, **settings)))
                followers = []
                for number in range(1, slaves + 1):
                    slave_settings = {**settings, "broker_role": "SLAVE", "broker_id": number}
                    config = broker_config(home / f"slave{number}", namesrv, **slave_settings)
                    followers.append(await brokers.enter_async_context(Broker(config)))
                yield ReplicatedCluster(namesrv, master.addr, tuple(follower.addr for follower in followers))


def broker_config(store: Path, namesrv: str, **settings: Any) -> BrokerConfig:
    """Return the configuration of a test broker: small files, any free port of 127.0.0.1; `settings` are BrokerConfig fields."""
    values = {
        **SMALL_FILES,
        "broker_name": "broker-a",
        "bind_address": LOOPBACK,
        "broker_ip1": LOOPBACK,
        "listen_port": 0,
        "store_path_root_dir": str(store),
        "namesrv_addr": namesrv,
        **settings,
    }
    return BrokerConfig(**values)


@contextlib.contextmanager
def cluster_in_thread(home: Path | None = None, **settings: Any) -> Iterator[LocalCluster]:
    """Run a cluster as `cluster` does, with an event loop in its own thread. Errors of start and stop are raised here."""
    started: Future[LocalCluster] = Future()
    stop: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    faults: list[BaseException] = []

    async def run() -> None:
        stop_requested = asyncio.Event()
        stop.set_result((asyncio.get_running_loop(), stop_requested))
        async with cluster(home, **settings) as servers:
            started.set_result(servers)
            await stop_requested.wait()

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            if started.done():
                faults.append(error)
            else:
                started.set_exception(error)

    thread = threading.Thread(target=main, name="ariane-cluster", daemon=True)
    thread.start()
    try:
        yield started.result(START_S)
    finally:
        loop, stop_requested = stop.result(START_S)
        if thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop may end between the two lines
                loop.call_soon_threadsafe(stop_requested.set)
        thread.join(START_S)
    if faults:
        raise faults[0]
