"""Measures how changes of a broker's state delay other requests: queue locks with committed offsets, new topics with many topics.

    python benches/state.py locks  [--offsets 10000] [--count 300] [--load] [--sync] [--json]
    python benches/state.py topics [--topics 100000] [--count 1000] [--sync] [--json]

`locks`: LOCK_BATCH_MQ of one queue after another by one client while `--offsets` consumer offsets are stored and committed again
at 200 a second; `--load` adds 64 pipelined sends at a time on another connection. `topics`: `--count` new topics, one request
at a time, at a broker that has `--topics`; meanwhile a ping (GET_MAX_OFFSET on another connection) every 2 ms. The broker runs in
a process of its own and registers nowhere. Latencies are those of the client, in ms; the last line is JSON with --json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from ariane.errors import ArianeError
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import CreateTopic
from ariane.protocol.requests.clients import LockBatch, WireQueue
from ariane.protocol.requests.messaging import QueueRef, SendMessage, UpdateConsumerOffset
from servers import Running, make_topic, started

OFFSET_PAUSE_S = 0.005
PING_PAUSE_S = 0.002
LOAD_DEPTH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("locks", "topics"))
    parser.add_argument("--offsets", type=int, default=10_000, help="queues with a committed offset")
    parser.add_argument("--topics", type=int, default=100_000, help="topics that exist before")
    parser.add_argument("--count", type=int, help="locks or topics that are measured (300, 1,000)")
    parser.add_argument("--load", action="store_true", help="send messages meanwhile")
    parser.add_argument("--sync", action="store_true", help="flushDiskType=SYNC_FLUSH")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ariane-bench-") as home:
        place = Path(home)
        if given.what == "topics":
            write_topics(place / "store" / "config", given.topics)
        settings = {"bindAddress": "127.0.0.1", **({"flushDiskType": "SYNC_FLUSH"} if given.sync else {})}
        with started("ariane", "", place, settings) as running:
            if given.what == "locks":
                figures = asyncio.run(locks(running, given.offsets, given.count or 300, load=given.load))
            else:
                figures = asyncio.run(topics(running, given.count or 1_000))
    for name, value in figures.items():
        print(f"{name:24} {value:10.3f}")
    if given.json:
        print(json.dumps(figures))


def write_topics(config: Path, count: int) -> None:
    """A topics.json with so many topics, as a broker writes it."""
    topic = {"order": False, "perm": 6, "readQueueNums": 4, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
    names = (f"bench-{number:06d}" for number in range(count))
    table = {name: {**topic, "topicName": name, "writeQueueNums": 4} for name in names}
    config.mkdir(parents=True)
    text = json.dumps({"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": table}, indent="\t")
    (config / "topics.json").write_text(text)


async def locks(running: Running, offsets: int, count: int, *, load: bool) -> dict[str, float]:
    await asyncio.to_thread(make_topic, running.addr, "orders", 16)
    async with ConnectionPool() as peers, ConnectionPool() as committing, ConnectionPool() as sending:
        pending: set[asyncio.Task[object]] = set()
        for number in range(offsets):
            pending.add(asyncio.create_task(_commit(committing, running.addr, number)))
            if len(pending) >= LOAD_DEPTH:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*pending)
        others = [asyncio.create_task(_commit_on(committing, running.addr, offsets))]
        if load:
            others += [asyncio.create_task(_send_on(sending, running.addr)) for _ in range(LOAD_DEPTH)]
        await asyncio.sleep(1)
        took = []
        for number in range(count):
            body = LockBatch("one", "billing", (WireQueue("broker-a", number, "orders"),))
            began = time.perf_counter()
            await peers.request_ok(running.addr, RequestCode.LOCK_BATCH_MQ, None, fastjson.write(body))
            took.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(0.01)
        await _stop(others)
    return _figures("lock", took)


async def topics(running: Running, count: int) -> dict[str, float]:
    async with ConnectionPool() as peers, ConnectionPool() as pinging:
        pings: list[float] = []
        pinger = asyncio.create_task(_ping_on(pinging, running.addr, pings))
        await asyncio.sleep(1)
        pings.clear()
        took, began = [], time.perf_counter()
        for number in range(count):
            header = CreateTopic(f"new-{number:06d}", "TBW102", 4, 4, 6)
            started_at = time.perf_counter()
            await peers.request_ok(running.addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout_ms=60_000)
            took.append((time.perf_counter() - started_at) * 1000)
        all_s = time.perf_counter() - began
        await asyncio.sleep(1)
        await _stop([pinger])
    return {**_figures("ping", pings), **_figures("create", took), "creations/s": count / all_s}


async def _commit(peers: ConnectionPool, addr: str, number: int) -> None:
    header = UpdateConsumerOffset(f"group-{number % 100}", f"topic-{number // 100}", 0, number + int(time.time()))
    await peers.request_ok(addr, RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout_ms=60_000)


async def _commit_on(peers: ConnectionPool, addr: str, offsets: int) -> None:
    number = 0
    while True:
        await _commit(peers, addr, number % offsets)
        number += 1
        await asyncio.sleep(OFFSET_PAUSE_S)


async def _send_on(peers: ConnectionPool, addr: str) -> None:
    while True:
        header = SendMessage("bench", "orders", "TBW102", 4, 0, 0, int(time.time() * 1000), 0)
        await peers.request_ok(addr, RequestCode.SEND_MESSAGE_V2, header, b"x" * 128, timeout_ms=60_000)


async def _ping_on(peers: ConnectionPool, addr: str, pings: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await peers.request_ok(addr, RequestCode.GET_MAX_OFFSET, QueueRef("bench-000000", 0), timeout_ms=60_000)
        pings.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(PING_PAUSE_S)


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel; an error of one ends the bench."""
    for task in tasks:
        if task.done() and isinstance(task.exception(), ArianeError):
            task.result()
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _figures(name: str, took: list[float]) -> dict[str, float]:
    ordered = sorted(took)
    return {
        f"{name} p50 ms": ordered[len(ordered) // 2],
        f"{name} p99 ms": ordered[len(ordered) * 99 // 100],
        f"{name} max ms": ordered[-1],
    }


if __name__ == "__main__":
    main()
