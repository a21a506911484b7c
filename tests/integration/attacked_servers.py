"""Program: a name server, a broker, its metrics and a console in one event loop, until the standard input ends.

    python tests/integration/attacked_servers.py DIRECTORY

Prints the ports as a JSON object. One loop serves all of them, so an attack on one may delay the others.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import uvloop

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.lifecycle.ports import HA_PORT_OFFSET
from ariane.cli.servers.process.metrics_endpoint import broker_source
from ariane.console.security.accounts.accounts import ConsoleAccounts
from ariane.console.security.roles import ConsoleRole
from ariane.console.server.http_server import ConsoleServer
from ariane.console.settings import ConsoleSettings
from ariane.metrics.serving.endpoint import MetricsEndpoint
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer

PASSWORD = "a long enough password"


async def run(home: Path) -> None:
    names = NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(home / "kv.json")))
    async with names:
        config = BrokerConfig(
            bind_address="127.0.0.1",
            broker_ip1="127.0.0.1",
            broker_name="broker-a",
            listen_port=0,
            namesrv_addr=names.addr,
            store_path_root_dir=str(home / "store"),
            mapped_file_size_commit_log=16 << 20,
            enable_property_filter=True,
        )
        ConsoleAccounts(home / "console").add("ann", ConsoleRole.ADMIN, PASSWORD)
        settings = ConsoleSettings(namesrv=names.addr, data_dir=home / "console", port=0, is_login_required=True)
        async with (
            Broker(config) as broker,
            MetricsEndpoint(broker_source(broker), "127.0.0.1", 0) as metrics,
            ConsoleServer(settings) as console,
        ):
            port = int(broker.addr.rpartition(":")[2])
            ports = {"broker": port, "replication": port + HA_PORT_OFFSET, "names": names.port, "metrics": metrics.port}
            print(json.dumps({**ports, "console": int(console.url.rpartition(":")[2])}), flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(Path(sys.argv[1])))
