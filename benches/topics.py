"""Many topics: creation, latency of other requests meanwhile, sends to many topics, memory, restart and registration.

    python benches/topics.py [--server ariane|java] [--topics 100000] [--queues 4] [--more 1000] [--sent 10000] [--json]

A name server and a broker of the same kind, each in a process of its own, on a fresh store:
  create      N topics by UPDATE_AND_CREATE_TOPIC, 16 in flight
  more        1,000 topics one after the other; meanwhile a connection of its own asks the broker for an offset every few ms
              ("ping"), and another one the name server for a route
  send        one message to each of 10,000 topics, 64 in flight, with pings
  idle        10 s of pings alone: what the periodic tasks of a broker with N topics cost
  restart     an orderly stop, then the time until a message is accepted, and until the name server routes the last topic
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import servers
from ariane.errors import ArianeError
from ariane.model.topic import AUTO_CREATE_TOPIC, PERM_READ, PERM_WRITE
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import CreateTopic
from ariane.protocol.requests.messaging import QueueRef, SendMessage
from ariane.protocol.requests.routing import RouteRequest
from ariane.testing import java

CREATING = 16
SENDING = 64
IDLE_S = 10.0
PING_EVERY_S = 0.002
TIMEOUT_MS = 120_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", choices=("ariane", "java"), default="ariane")
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--more", type=int, default=1_000)
    parser.add_argument("--sent", type=int, default=10_000)
    parser.add_argument("--json", action="store_true", help="print the result as the last line")
    args = parser.parse_args()
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="ariane-bench-") as place:
        home = Path(place)
        with name_server(args.server, home / "ns") as (namesrv, ns_pid):
            broker_home = home / "broker"
            broker_home.mkdir()
            with servers.started(args.server, namesrv, broker_home) as broker:
                asyncio.run(load(broker.addr, namesrv, args, result))
                result["broker_rss_mib"] = servers.memory_mib(broker.pid)["VmRSS"]
                result["broker_peak_mib"] = servers.memory_mib(broker.pid)["VmHWM"]
                result["name_server_rss_mib"] = servers.memory_mib(ns_pid)["VmRSS"]
                began = time.perf_counter()
            result["stop_s"] = time.perf_counter() - began
            began = time.perf_counter()
            with servers.started(args.server, namesrv, broker_home) as broker:
                result["start_s"] = broker.start_s
                asyncio.run(routed(namesrv, f"T{args.topics - 1}"))
                result["start_to_last_route_s"] = time.perf_counter() - began
                result["restarted_rss_mib"] = servers.memory_mib(broker.pid)["VmRSS"]
    for name, value in result.items():
        print(f"{name:34} {value:12,.2f}")
    if args.json:
        print(json.dumps(result))


@contextlib.contextmanager
def name_server(kind: str, home: Path) -> Iterator[tuple[str, int]]:
    """Yield the address and the process id of a name server."""
    home.mkdir()
    if kind == "java":
        with java.name_server(home, jvm_args=("-Xms512m", "-Xmx2g")) as server:
            yield server.addr, server.pid
        return
    port = java.free_port()
    conf = home / "namesrv.conf"
    conf.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\nkvConfigPath={home}/kv.json\n")
    process = subprocess.Popen([sys.executable, "-m", "ariane.cli", "namesrv", "-c", str(conf)])
    try:
        yield f"127.0.0.1:{port}", process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def load(addr: str, namesrv: str, args: argparse.Namespace, result: dict[str, float]) -> None:
    async with ConnectionPool() as peers:

        async def create(number: int) -> None:
            header = CreateTopic(f"T{number}", AUTO_CREATE_TOPIC, args.queues, args.queues, PERM_READ | PERM_WRITE)
            await peers.request_ok(addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout_ms=TIMEOUT_MS)

        async def send(number: int) -> None:
            header = SendMessage("bench", f"T{number}", "TBW102", args.queues, 0, 0, int(time.time() * 1000), 0)
            await peers.request_ok(addr, RequestCode.SEND_MESSAGE_V2, header, b"x" * 128, timeout_ms=TIMEOUT_MS)

        began = time.perf_counter()
        await in_flight(create, range(args.topics), CREATING)
        result["create_per_s"] = args.topics / (time.perf_counter() - began)
        await routed(namesrv, f"T{args.topics - 1}")
        result["create_to_last_route_s"] = time.perf_counter() - began

        async with pings(addr, namesrv, "more", result):
            waits = []
            for number in range(args.topics, args.topics + args.more):
                began = time.perf_counter()
                await create(number)
                waits.append(time.perf_counter() - began)
        put(result, "more_create", waits)

        async with pings(addr, namesrv, "send", result):
            began = time.perf_counter()
            await in_flight(send, range(min(args.sent, args.topics)), SENDING)
            result["send_per_s"] = min(args.sent, args.topics) / (time.perf_counter() - began)

        async with pings(addr, namesrv, "idle", result):
            await asyncio.sleep(IDLE_S)


async def in_flight(work: Callable[[int], Awaitable[None]], numbers: range, count: int) -> None:
    """Do `work` for each number, `count` of them at a time."""
    pending = iter(numbers)

    async def worker() -> None:
        for number in pending:
            await work(number)

    await asyncio.gather(*(worker() for _ in range(count)))


@contextlib.asynccontextmanager
async def pings(addr: str, namesrv: str, name: str, result: dict[str, float]):  # type: ignore[no-untyped-def]
    """Ask the broker and the name server all the time while the block runs; record the times of the answers."""
    times: tuple[list[float], list[float]] = ([], [])
    done = asyncio.Event()

    async def ping(target: str, code: RequestCode, header: object, into: list[float]) -> None:
        async with ConnectionPool() as peers:
            while not done.is_set():
                began = time.perf_counter()
                await peers.request(target, code, header, timeout_ms=TIMEOUT_MS)  # type: ignore[arg-type]
                into.append(time.perf_counter() - began)
                await asyncio.sleep(PING_EVERY_S)

    tasks = [
        asyncio.ensure_future(ping(addr, RequestCode.GET_MAX_OFFSET, QueueRef("T0", 0), times[0])),
        asyncio.ensure_future(ping(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest("T0"), times[1])),
    ]
    try:
        yield
    finally:
        done.set()
        await asyncio.gather(*tasks)
    put(result, f"{name}_ping", times[0])
    put(result, f"{name}_route", times[1])


def put(result: dict[str, float], name: str, times: list[float]) -> None:
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    result[f"{name}_p50_ms"] = cuts[49] * 1000
    result[f"{name}_p99_ms"] = cuts[98] * 1000
    result[f"{name}_max_ms"] = max(times) * 1000


async def routed(namesrv: str, topic: str) -> None:
    """Wait until the name server routes the topic."""
    async with ConnectionPool() as peers:
        while True:
            with contextlib.suppress(ArianeError):
                await peers.request_ok(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic))
                return
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    main()
