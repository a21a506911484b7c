"""Broker sets of real processes with failover, on 127.0.0.1: a name server and clients are in this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.routing import KvTableBody

TTL_S = 5
BROKER_NAME = "broker-a"


def broker_ports(count: int) -> list[int]:
    """Return ports for brokers, with their neighbours: below those that the system takes for connections."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(12_000, 32_000)
        with contextlib.ExitStack() as held:
            try:
                for neighbour in (port - 2, port, port + 1):
                    held.enter_context(socket.create_server(("127.0.0.1", neighbour)))
            except OSError:
                continue
        if all(abs(port - other) > 3 for other in ports):
            ports.append(port)
    return ports


class BrokerProcess:
    """One member."""

    def __init__(self, home: Path, name: str, port: int, settings: dict[str, object]) -> None:
        self.name = name
        self.addr = f"127.0.0.1:{port}"
        self.store = home / name
        self.log = home / f"{name}.log"
        self._config = home / f"{name}.conf"
        self._config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        command = [sys.executable, "-m", "ariane.cli", "broker", "-c", str(self._config), *options]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ.copy())

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        process, self.process = self.process, None  # first: a supervisor starts a process again that ends by itself
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> int:
        """Stop in order; return the exit status."""
        process, self.process = self.process, None
        assert process is not None
        process.terminate()
        try:
            return process.wait(30)
        except subprocess.TimeoutExpired:
            self.process = process
            raise


class BrokerSet:
    """The members of one set."""

    def __init__(
        self, home: Path, namesrv: str, endpoints: dict[str, list[str]], peers: ConnectionPool, **settings: object
    ) -> None:
        self.peers = peers
        names = sorted(endpoints)
        ports = dict(zip(names, broker_ports(len(names)), strict=True))
        self.members: dict[str, BrokerProcess] = {}
        for number, name in enumerate(names, 1):
            values: dict[str, object] = {
                "brokerName": BROKER_NAME,
                "brokerId": number,
                "brokerRole": "SYNC_MASTER",
                "bindAddress": "127.0.0.1",
                "listenPort": ports[name],
                "namesrvAddr": namesrv,
                "storePathRootDir": home / name,
                "mappedFileSizeCommitLog": 1 << 20,
                "maxHashSlotNum": 1000,
                "maxIndexNum": 4000,
                "memberName": name,
                "failoverMembers": ";".join(f"{member}=127.0.0.1:{port}" for member, port in ports.items()),
                "failoverEndpoints": ";".join(endpoints[name]),
                "failoverPrefix": f"/ariane{home}",
                "failoverTtl": TTL_S,
                "haSendHeartbeatInterval": 200,
                **settings,
            }
            self.members[name] = BrokerProcess(home, name, ports[name], values)

    async def describe(self, name: str) -> dict[str, str]:
        """Return the runtime info of a member; empty if it does not answer."""
        try:
            response = await self.peers.request(
                self.members[name].addr, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms=500
            )
            return dict(fastjson.decode(response.body, KvTableBody).table)
        except Exception:
            return {}

    async def master(self, *, limit_s: float = 120, other_than: str = "") -> str:
        """Wait for a master, and return its name."""
        async with asyncio.timeout(limit_s):
            while True:
                for name, member in self.members.items():
                    if member.process is None or name == other_than:
                        continue
                    if (await self.describe(name)).get("failoverRole") == "MASTER":
                        return name
                await asyncio.sleep(0.1)

    async def complete(self, count: int, *, limit_s: float = 120) -> str:
        """Wait for a master whose in-sync set has `count` members, and return its name."""
        async with asyncio.timeout(limit_s):
            while True:
                for name, member in self.members.items():
                    if member.process is not None:
                        info = await self.describe(name)
                        if info.get("failoverRole") == "MASTER" and len(info["failoverSet"].split(",")) == count:
                            return name
                await asyncio.sleep(0.1)

    def stop(self) -> None:
        for member in self.members.values():
            if member.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    member.signal(signal.SIGCONT)
                member.kill()


@contextlib.asynccontextmanager
async def broker_set(
    home: Path,
    endpoints: list[str] | dict[str, list[str]],
    *,
    name_server_settings: dict[str, Any] | None = None,
    tls: ssl.SSLContext | None = None,
    **settings: object,
) -> AsyncIterator[tuple[BrokerSet, str]]:
    """Yield three started members a, b, c, all in the in-sync set, and the address of a name server."""
    home.mkdir(exist_ok=True)
    by_member = endpoints if isinstance(endpoints, dict) else dict.fromkeys("abc", endpoints)
    names = NameServerConfig(
        bind_address="127.0.0.1", listen_port=0, kv_config_path=str(home / "kv.json"), **(name_server_settings or {})
    )
    async with NameServer(names) as name_server, ConnectionPool(tls=tls) as peers:
        namesrv = f"127.0.0.1:{name_server.addr.rpartition(':')[2]}"
        brokers = BrokerSet(home, namesrv, by_member, peers, **settings)
        try:
            for index, member in enumerate(brokers.members.values()):
                member.start(*(["--new-broker-set"] if index == 0 else []))
            await brokers.complete(len(brokers.members))
            yield brokers, namesrv
        finally:
            brokers.stop()
