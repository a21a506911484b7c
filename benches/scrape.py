"""A scrape of many consumer groups: of the broker's own /metrics, and of `ariane exporter`.

    python benches/scrape.py [--groups 10000] [--queues 8] [--topics 100] [--scrapes 5] [--json]

A name server, a broker and an exporter of ours, each in a process of its own, on a fresh store. Every group has committed offsets
in all queues of one topic and lags behind in each of them, which is the expensive case: the age of the next message is read from
the log.
  broker      time, series and bytes of a scrape; memory of the broker before and after; meanwhile a connection asks the broker
              for an offset every few ms ("ping"), to be compared with the pings without a scrape
  exporter    the same for the exporter: its first scrape, and one with details
The client reads without compression, like curl, and parses nothing. On a machine with other work compare the CPU times, to which
the pings and, for the exporter, the detail round that runs at the same time contribute.
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
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import servers
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.messaging import QueueRef, SendMessage, UpdateConsumerOffset
from ariane.testing import java

COMMITTING = 256
PING_EVERY_S = 0.002
TIMEOUT_MS = 120_000
DETAILS_WAIT_S = 180


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--scrapes", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the result as the last line")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ariane-bench-") as place:
        result = measure(Path(place), args)
    for name, value in result.items():
        print(f"{name:40} {value:14,.3f}")
    if args.json:
        print(json.dumps(result))


def measure(home: Path, args: argparse.Namespace) -> dict[str, float]:
    port, metrics = java.free_port(), java.free_port()
    (home / "broker").mkdir()
    conf = home / "namesrv.conf"
    conf.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\nkvConfigPath={home}/kv.json\n")
    properties = {"bindAddress": "127.0.0.1", "metricsPort": str(metrics)}
    with (
        program("namesrv", "-c", str(conf)),
        servers.started("ariane", f"127.0.0.1:{port}", home / "broker", properties) as broker,
    ):
        for number in range(args.topics):
            servers.make_topic(broker.addr, topic_name(number), args.queues)
        began = time.perf_counter()
        asyncio.run(fill(broker.addr, args))
        print(f"filled in {time.perf_counter() - began:.1f} s", file=sys.stderr)
        result = asyncio.run(measure_broker(broker, f"http://127.0.0.1:{metrics}/metrics", args.scrapes))
        return result | measure_exporter(f"127.0.0.1:{port}", args.scrapes)


def topic_name(number: int) -> str:
    return f"topic-{number:05}"


@contextlib.contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-m", "ariane.cli", *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # the server is ready
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def fill(addr: str, args: argparse.Namespace) -> None:
    """Send two messages to every queue, and commit the offset 1 of every group in the queues of its topic."""
    limit = asyncio.Semaphore(COMMITTING)

    async with ConnectionPool() as peers:

        async def send(topic: str, queue: int) -> None:
            now_ms = int(time.time() * 1000)
            async with limit:
                header = SendMessage("bench", topic, "TBW102", args.queues, queue, 0, now_ms, 0)
                await peers.request_ok(addr, RequestCode.SEND_MESSAGE_V2, header, b"x" * 100, timeout_ms=TIMEOUT_MS)

        async def commit(group: int, queue: int) -> None:
            async with limit:
                header = UpdateConsumerOffset(f"group-{group:05}", topic_name(group % args.topics), queue, 1)
                await peers.request_ok(addr, RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout_ms=TIMEOUT_MS)

        for _ in range(2):
            await asyncio.gather(
                *(send(topic_name(number), queue) for number in range(args.topics) for queue in range(args.queues))
            )
        for first in range(0, args.groups, 1000):
            groups = range(first, min(first + 1000, args.groups))
            await asyncio.gather(*(commit(group, queue) for group in groups for queue in range(args.queues)))


async def ping(addr: str, until: asyncio.Event) -> list[float]:
    """Return the durations of requests in ms."""
    took = []
    async with ConnectionPool() as peers:
        while not until.is_set():
            began = time.perf_counter()
            await peers.request_ok(addr, RequestCode.GET_MAX_OFFSET, QueueRef(topic_name(0), 0), timeout_ms=TIMEOUT_MS)
            took.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(PING_EVERY_S)
    return took


async def measure_broker(broker: servers.Running, url: str, scrapes: int) -> dict[str, float]:
    before = servers.memory_mib(broker.pid)
    idle = await pings_during(broker.addr, asyncio.sleep(3))
    took: list[float] = []
    sizes: list[tuple[int, int]] = []

    async def scrape_all() -> None:
        for _ in range(scrapes):
            seconds, series, size = await asyncio.to_thread(scrape, url)
            took.append(seconds)
            sizes.append((series, size))

    cpu_s = servers.cpu_s(broker.pid)
    busy = await pings_during(broker.addr, scrape_all())
    cpu_s = servers.cpu_s(broker.pid) - cpu_s
    after = servers.memory_mib(broker.pid)
    return {
        "broker_series": sizes[-1][0],
        "broker_mb": sizes[-1][1] / 1e6,
        "broker_first_scrape_s": took[0],
        "broker_scrape_s": statistics.median(took),
        "broker_cpu_per_scrape_s": cpu_s / scrapes,
        "broker_rss_before_mib": before["VmRSS"],
        "broker_peak_rss_mib": after["VmHWM"],
        **spread("ping_idle", idle),
        **spread("ping_scraped", busy),
    }


async def pings_during(addr: str, work: object) -> list[float]:
    until = asyncio.Event()
    pinging = asyncio.create_task(ping(addr, until))
    await work  # type: ignore[misc]
    until.set()
    return await pinging


def spread(name: str, values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        f"{name}_p50_ms": statistics.median(ordered),
        f"{name}_p99_ms": ordered[int(len(ordered) * 0.99)],
        f"{name}_max_ms": ordered[-1],
    }


def measure_exporter(namesrv: str, scrapes: int) -> dict[str, float]:
    port = java.free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    with program("exporter", "-n", namesrv, "--port", str(port)) as process:
        first_s, first_series, _ = scrape(url)
        began = time.perf_counter()
        while value(url, "ariane_exporter_details_age_seconds") is None:
            if time.perf_counter() - began > DETAILS_WAIT_S:
                raise SystemExit(f"no details within {DETAILS_WAIT_S} s")
        details_s = first_s + time.perf_counter() - began
        cpu_s = servers.cpu_s(process.pid)
        results = [scrape(url) for _ in range(scrapes)]
        cpu_s = servers.cpu_s(process.pid) - cpu_s
        return {
            "exporter_series": results[-1][1],
            "exporter_mb": results[-1][2] / 1e6,
            "exporter_first_scrape_s": first_s,
            "exporter_first_series": first_series,
            "exporter_details_after_s": details_s,
            "exporter_scrape_s": statistics.median(seconds for seconds, _, _ in results),
            "exporter_cpu_per_scrape_s": cpu_s / scrapes,
            "exporter_slowest_scrape_s": max(seconds for seconds, _, _ in results),
            "exporter_peak_rss_mib": servers.memory_mib(process.pid)["VmHWM"],
        }


def scrape(url: str) -> tuple[float, int, int]:
    """Return duration, number of series and bytes."""
    began = time.perf_counter()
    series = size = 0
    with urllib.request.urlopen(url, timeout=DETAILS_WAIT_S) as response:
        for line in response:
            size += len(line)
            series += not line.startswith(b"#")
    return time.perf_counter() - began, series, size


def value(url: str, name: str) -> float | None:
    with urllib.request.urlopen(url, timeout=DETAILS_WAIT_S) as response:
        for line in response:
            if line.startswith(name.encode() + b" "):
                return float(line.split()[-1])
    return None


if __name__ == "__main__":
    main()
