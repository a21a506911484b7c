"""Program: a name server, a broker, its metrics and a console in one event loop, until the standard input ends.

    python tests/integration/attacked_servers.py DIRECTORY

A second broker has the native transport of the gRPC port. Prints the ports as a JSON object, then for each line of the input
the longest turn of the loop since the line before, in milliseconds. One loop serves all of them, so an attack on one may
delay the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import sys
import time
from pathlib import Path

import uvloop
from msgspec import structs

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.lifecycle.ports import HA_PORT_OFFSET
from ariane.cli.servers.process.garbage_collection import FrozenSurvivors
from ariane.cli.servers.process.metrics_endpoint import broker_source
from ariane.console.security.accounts.accounts import ConsoleAccounts
from ariane.console.security.roles import ConsoleRole
from ariane.console.server.http_server import ConsoleServer
from ariane.console.settings import ConsoleSettings
from ariane.kernels.implementation import selected
from ariane.metrics.serving.endpoint import MetricsEndpoint
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.net.listening.fixed_ports import choose_free_port
from ariane.net.listening.server_tls import ServerTlsOptions

PASSWORD = "a long enough password"
PROBE_S = 0.001


class TurnProbe:
    """Measures turns of the running event loop in CPU time of its thread, which depends less on other work of the machine."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._before_s = time.thread_time()
        self._longest_s = 0.0
        self._measure()

    def take_ms(self) -> float:
        """Return the longest turn since the last call."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s * 1000

    def _measure(self) -> None:
        now_s = time.thread_time()
        self._longest_s = max(self._longest_s, now_s - self._before_s)
        self._before_s = now_s
        self._loop.call_later(PROBE_S, self._measure)


def free_port() -> int:
    """Return a port for a broker. Attacks leave those that the system chooses, or their neighbours, in TIME_WAIT."""
    return choose_free_port((-2, 0, 1))


async def run(home: Path) -> None:
    names = NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(home / "kv.json")))
    async with names:
        config = BrokerConfig(
            bind_address="127.0.0.1",
            broker_ip1="127.0.0.1",
            broker_name="broker-a",
            listen_port=free_port(),
            namesrv_addr=names.addr,
            store_path_root_dir=str(home / "store"),
            mapped_file_size_commit_log=16 << 20,
            enable_property_filter=True,
            grpc_server_enable=importlib.util.find_spec("grpc") is not None,
            grpc_server_port=0,
        )
        ConsoleAccounts(home / "console").add("ann", ConsoleRole.ADMIN, PASSWORD)
        settings = ConsoleSettings(
            namesrv=names.addr, data_dir=home / "console", port=0, is_login_required=True, tls=ServerTlsOptions()
        )
        async with (
            Broker(config) as broker,
            MetricsEndpoint(broker_source(broker), "127.0.0.1", 0, tls=broker.tls) as metrics,
            ConsoleServer(settings) as console,
            contextlib.AsyncExitStack() as others,
        ):
            port = int(broker.addr.rpartition(":")[2])
            ports = {"broker": port, "replication": port + HA_PORT_OFFSET, "names": names.port, "metrics": metrics.port}
            ports["console"] = int(console.url.rpartition(":")[2])
            if broker.proxy is not None:
                ports["grpc"] = broker.proxy.port
                if selected().open_grpc_port is not None:
                    own = {"store_path_root_dir": str(home / "native"), "namesrv_addr": "", "listen_port": free_port()}
                    native = Broker(structs.replace(config, **own, grpc_transport="native"))
                    await others.enter_async_context(native)
                    assert native.proxy is not None
                    ports["native grpc"] = native.proxy.port
            print(json.dumps(ports), flush=True)
            FrozenSurvivors().start()  # as the programs do
            probe = TurnProbe()
            while await asyncio.to_thread(sys.stdin.readline):
                print(f"{probe.take_ms():.1f}", flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(Path(sys.argv[1])))
