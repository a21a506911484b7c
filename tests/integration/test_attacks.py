"""A client that behaves well is answered during every attack of `attacks`, on the ports of real servers.

All servers share one event loop in a process of their own, the attacker is another process. The table of durations is printed:

    ARIANE_ATTACK_S=10 pytest -s tests/integration/test_attacks.py
"""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from ariane.net.pools import connection_pool
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.admin import TopicRef
from ariane.protocol.requests.routing import RouteRequest
from attacks import ATTACK_S, ATTACKS, trusting

HERE = Path(__file__).resolve().parent
PAUSE_S = 0.01
ANSWERED_MIN = 3  # pings of each kind
TOPIC_OF_BROKER = TopicRef("TBW102"), RequestCode.GET_TOPIC_CONFIG, ResponseCode.SUCCESS
NO_ROUTE = RouteRequest("None"), RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.TOPIC_NOT_EXIST
CPU_MAX_S = 20.0  # of the servers during an attack, and until the pings after it are answered: far more than it takes


class Program:
    """A process that is asked line by line, and answers with lines."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def ask(self, line: str = "") -> str:
        """Write a line, if there is one, and return the next line of the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if line:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer, f"{self._process.args} has ended:\n{self._log.read_text()[-4000:]}"
        return answer

    def cpu_s(self) -> float:
        """Return the CPU time that the process has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


class Attacked(NamedTuple):
    """The servers, and who attacks them."""

    ports: dict[str, int]
    servers: Program
    attacker: Program
    durations_ms: dict[tuple[str, str], list[float]]
    """Of the pings, by attack and kind."""


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    home = tmp_path_factory.mktemp("attacked")
    servers = Program(home / "servers.log", str(HERE / "attacked_servers.py"), str(home))
    attacker = Program(home / "attacker.log", str(HERE.parent / "attacks.py"))
    try:
        ports = servers.ask()
        assert attacker.ask(ports) == "ready"
        result = Attacked(json.loads(ports), servers, attacker, {})
        yield result
        print_table(result.durations_ms)
    finally:
        attacker.stop()
        servers.stop()


def print_table(durations_ms: dict[tuple[str, str], list[float]]) -> None:
    print(f"\n{'attack':40} {'ping':14} {'count':>6} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}")
    for (attack, kind), durations in durations_ms.items():
        p50, p99 = (sorted(durations)[math.ceil(share * len(durations)) - 1] for share in (0.5, 0.99))
        print(f"{attack:40} {kind:14} {len(durations):6} {p50:8.1f} {p99:8.1f} {max(durations):8.1f}")


async def measure(ping: Callable[[], Awaitable[None]], is_over: threading.Event) -> list[float]:
    """Ping until the attack is over, and some times at least. Return the durations."""
    loop, durations = asyncio.get_running_loop(), []
    while not is_over.is_set() or len(durations) < ANSWERED_MIN:
        started = loop.time()
        await ping()
        durations.append((loop.time() - started) * 1000)
        await asyncio.sleep(PAUSE_S)
    return durations


@pytest.mark.parametrize("name", ATTACKS)
def test_pings_are_answered_during_an_attack(name: str, attacked: Attacked, monkeypatch: pytest.MonkeyPatch) -> None:
    if ATTACKS[name].renegotiates and shutil.which("openssl") is None:
        pytest.skip("openssl not found on the PATH: it requests the handshakes")
    ports, is_over = attacked.ports, threading.Event()

    def attack() -> None:
        try:
            assert attacked.attacker.ask(name) == name
        finally:
            is_over.set()

    def get(port: int, path: str, status: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path)
        assert connection.getresponse().status == status
        connection.close()

    # A machine may be busier than any client would wait for.
    monkeypatch.setattr(connection_pool, "CONNECT_TIMEOUT_MS", 60_000)

    async def work() -> None:
        async with ConnectionPool() as plain, ConnectionPool(tls=trusting()) as encrypted:
            broker, names = f"127.0.0.1:{ports['broker']}", f"127.0.0.1:{ports['names']}"

            async def remoting(
                peers: ConnectionPool, addr: str, request: msgspec.Struct, code: int, expected: int
            ) -> None:
                assert (await peers.request(addr, code, request, timeout_ms=60_000)).code == expected

            async def reconnect() -> None:
                async with ConnectionPool() as peers:
                    await remoting(peers, broker, *TOPIC_OF_BROKER)

            pings: dict[str, Callable[[], Awaitable[Any]]] = {
                "broker": lambda: remoting(plain, broker, *TOPIC_OF_BROKER),
                "broker, TLS": lambda: remoting(encrypted, broker, *TOPIC_OF_BROKER),
                "new connection": reconnect,
                "name server": lambda: remoting(plain, names, *NO_ROUTE),
            }
            if ATTACKS[name].port in ("console", "metrics"):
                path = "/login" if ATTACKS[name].port == "console" else "/metrics"
                pings[ATTACKS[name].port] = lambda: asyncio.to_thread(get, ports[ATTACKS[name].port], path, 200)
            for ping in pings.values():  # connections that exist before the attack
                await ping()
            cpu_s = attacked.servers.cpu_s()
            attacking = asyncio.to_thread(attack)
            results = await asyncio.gather(attacking, *(measure(ping, is_over) for ping in pings.values()))
            for kind, durations in zip(pings, results[1:], strict=True):
                assert durations is not None
                attacked.durations_ms[name, kind] = durations
            assert attacked.servers.cpu_s() - cpu_s < CPU_MAX_S + ATTACK_S

    asyncio.run(asyncio.wait_for(work(), 120))
