"""A cluster of Java 4.9.4 moves to Ariane in place, server by server, and back, as docs/operations.md describes it.

Two name servers, a master and its slave. All files, ports and configurations stay; only the programs change. After each step
clients of Java send, consume as one group, and read everything that was ever sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from interop_servers import consume, produce, pull_all

from ariane import Admin
from ariane.errors import ArianeError
from ariane.store.check.check_report import ERROR
from ariane.store.check.store_check import check
from ariane.testing import java

SENDS, DELAYED = 40, 4
# A broker of Java registers every 10 s at the most often; a start takes a replaced name server that long to list it.
SETTINGS = {"registerNameServerPeriod": "10000", "mappedFileSizeCommitLog": str(1 << 20), "bindAddress": "127.0.0.1"}
WAIT_S = 90.0


class Place:
    """A server's directory, port and configuration, where the program of Java or of Ariane runs."""

    def __init__(self, home: Path, port: int, namesrv: str = "", properties: dict[str, str] | None = None) -> None:
        self.addr = f"127.0.0.1:{port}"
        self.store = home / "store"
        self._home, self._port, self._namesrv, self._properties = home, port, namesrv, properties or {}
        self._running = contextlib.ExitStack()

    def run_java(self) -> None:
        """Replace the program by that of Java."""
        self.stop()
        bound = {"bindAddress": "127.0.0.1"}
        server = (
            java.broker(self._home, self._namesrv, port=self._port, properties={**SETTINGS, **self._properties})
            if self._namesrv
            else java.name_server(self._home, port=self._port, properties=bound, orderly=True)
        )
        self._running.enter_context(server)

    def run_ariane(self) -> None:
        """Replace the program by that of Ariane, with the configuration of Java's."""
        self.stop()
        self._running.enter_context(self._ariane())

    def stop(self) -> None:
        """Stop the program in order."""
        self._running.close()

    @contextlib.contextmanager
    def _ariane(self) -> Iterator[None]:
        command = [sys.executable, "-m", "ariane.cli", "broker" if self._namesrv else "namesrv", "--compatible"]
        with (self._home / "ariane.log").open("ab") as output:
            process = subprocess.Popen(
                [*command, "-c", str(self._home / "conf" / "server.conf")], stdout=output, stderr=output
            )
        try:
            yield
        finally:
            process.terminate()
            status = process.wait(60)
        assert status == 0, (self._home / "ariane.log").read_text()[-4000:]


class MovedCluster:
    """The servers, and everything that clients sent."""

    def __init__(self, home: Path) -> None:
        ports = [java.free_port() for _ in range(4)]
        self.names = [Place(home / f"ns{number}", ports[number]) for number in range(2)]
        self.namesrv = ";".join(name.addr for name in self.names)
        self.master = Place(home / "master", ports[2], self.namesrv, {"brokerRole": "ASYNC_MASTER"})
        self.slave = Place(home / "slave", ports[3], self.namesrv, {"brokerRole": "SLAVE", "brokerId": "1"})
        self._sent: set[tuple[Any, ...]] = set()
        self._delayed: set[object] = set()  # keys of messages that are due during the next step
        self._rounds = 0

    def check(self) -> None:
        """Send and consume messages, and compare everything that is stored and copied with what was sent."""
        self._rounds += 1
        self._wait_servers()
        sent = produce(self.namesrv, SENDS, f"keys=round{self._rounds}")
        self._sent |= {_identity(message) for message in sent}
        keys = {message["key"] for message in sent} | self._delayed
        consumed = consume(self.namesrv, "G", "*", len(keys))
        assert {message["key"] for message in consumed} == keys, "the group goes on at its offsets"
        stored = pull_all(self.namesrv, "T")
        self._sent |= {_identity(message) for message in stored if message["key"] in self._delayed}
        self._delayed = set()
        assert {_identity(message) for message in stored} == self._sent
        self._run(self._until_copied)

    def send_delayed(self) -> None:
        """Send messages that are due in 10 s, when the master is another program."""
        sent = produce(self.namesrv, DELAYED, "delay=3", f"keys=delayed{self._rounds}")
        self._delayed = {message["key"] for message in sent}

    def drain(self) -> None:
        """Remove the write permission of the master. Producers of Java need 35 s to see it; none runs now."""

        async def work(admin: Admin) -> None:
            await admin.set_broker_writable("broker-a", False)

        self._run(work)

    def put_order_conf(self) -> None:
        """Store something in the name servers that brokers do not register again."""

        async def work(admin: Admin) -> None:
            await admin.put_order_conf("ordered", "broker-a:4")

        self._run(work)

    def stop(self) -> None:
        """Stop all programs; the stores must be sound then."""
        for place in (self.slave, self.master, *self.names):
            place.stop()

    def _wait_servers(self) -> None:
        for name in self.names:

            async def is_complete(admin: Admin) -> bool:
                servers = await admin.select_brokers(with_slaves=True)
                return {server.broker_id for server in servers} == {0, 1} and await _is_writable(admin)

            async def until_complete(
                admin: Admin, is_complete: Callable[[Admin], Awaitable[bool]] = is_complete
            ) -> None:
                await _until(admin, is_complete)
                assert await admin.fetch_order_conf("ordered") == "broker-a:4"

            self._run(until_complete, name.addr)

    async def _until_copied(self, admin: Admin) -> None:
        async def is_copied(admin: Admin) -> bool:
            runtimes = await admin.fetch_runtimes()
            return len({runtime.table["commitLogMaxOffset"] for _, runtime in runtimes.values}) == 1

        await _until(admin, is_copied)

    def _run(self, work: Callable[[Admin], Awaitable[None]], namesrv: str = "") -> None:
        async def limited() -> None:
            async with asyncio.timeout(WAIT_S), Admin(namesrv or self.namesrv) as admin:
                await work(admin)

        asyncio.run(limited())


async def _is_writable(admin: Admin) -> bool:
    return all(data.perm & 2 for data in (await admin.fetch_route("TBW102")).queue_datas)


async def _until(admin: Admin, condition: Callable[[Admin], Awaitable[bool]]) -> None:
    while True:
        with contextlib.suppress(ArianeError):
            if await condition(admin):
                return
        await asyncio.sleep(0.2)


def _identity(message: dict[str, Any]) -> tuple[Any, ...]:
    return message["msgId"], message["queueId"], message["queueOffset"], message["key"]


@pytest.mark.long(
    "tests/interop/test_store_directory.py::test_a_store_opened_by_java_then_ours_then_java",
    "tests/interop/test_java_replication.py::test_our_slave_replicates_a_java_master",
)
def test_a_java_cluster_moves_in_place_and_back(tmp_path: Path) -> None:
    cluster = MovedCluster(tmp_path)
    try:
        for place in (*cluster.names, cluster.master, cluster.slave):
            place.run_java()
        cluster.put_order_conf()
        cluster.check()

        for name in cluster.names:
            name.run_ariane()
            cluster.check()
        cluster.slave.run_ariane()
        cluster.check()
        cluster.send_delayed()
        cluster.drain()
        cluster.master.run_ariane()
        cluster.check()

        cluster.send_delayed()
        cluster.drain()
        cluster.master.run_java()
        cluster.check()
        cluster.slave.run_java()
        cluster.check()
        for name in cluster.names:
            name.run_java()
            cluster.check()
    finally:
        cluster.stop()
    for place in (cluster.master, cluster.slave):
        assert [finding for finding in check(str(place.store)) if finding.severity == ERROR] == []
