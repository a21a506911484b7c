"""Load by Java's own clients: the benchmark programs of rocketmq-example on the 4.9.4 client, through a name server.

The newest example jar on Maven Central is 4.7.0; the programs are the same, the client they run on is 4.9.4's. The producer
prints its rate every 10 s. The consumer's rate is read off the offsets that its pulls commit: a backlog is over long
before it has printed twice.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time

from ariane.errors import ReplyError
from ariane.net.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import OffsetResponse, QueryConsumerOffset
from ariane.testing import java
from servers import Running, cpu_s

LINE = re.compile(r"Send TPS: (\d+)")
PRINT_EVERY_S = 10  # of the Java producer
CONSUMER = "org.apache.rocketmq.example.benchmark.Consumer"
POLL_S = 0.1
COUNTED_FROM, COUNTED_TO = (
    0.2,
    0.9,
)  # of the backlog: the first part warms up, the last has queues that are empty already


def produced(running: Running, threads: int, size: int, seconds: int) -> tuple[float, float]:
    """The median of the rates that the producer prints after its first, and the broker's CPU time per message in µs."""
    args = ["-n", running.namesrv, "-w", str(threads), "-s", str(size)]
    with java.start(java.BENCHMARK_PRODUCER, args) as producer:
        deadline = time.monotonic() + max(seconds, 2 * PRINT_EVERY_S) + 5
        rates: list[float] = []
        used: list[float] = []
        for line in producer.lines(deadline):
            if match := LINE.search(line):
                rates.append(float(match.group(1)))
                used.append(cpu_s(running.pid))
    if len(rates) < 2:
        raise SystemExit(f"the Java producer printed {len(rates)} rates, at least 2 are needed")
    sent = sum(rates[1:]) * PRINT_EVERY_S
    return statistics.median(rates[1:]), (used[-1] - used[0]) / sent * 1e6


def consumed(running: Running, topic: str, queues: int, count: int, patience_s: float) -> tuple[float, float]:
    """Messages a second that the benchmark consumer took of a backlog of `count`, and the broker's CPU per message in µs."""
    group = (
        f"bench-{time.time_ns()}"  # an unknown group starts at the oldest message of a topic without deleted messages
    )
    with java.start(CONSUMER, ["-n", running.namesrv, "-t", topic, "-g", group, "-p", "false"]) as consumer:
        points = asyncio.run(progress(running, topic, group, queues, count, patience_s))
        if consumer.process.poll() is not None:
            raise SystemExit(f"the Java consumer ended with {consumer.process.returncode}")
    (began, first, cpu_first), (ended, last, cpu_last) = points
    return (last - first) / (ended - began), (cpu_last - cpu_first) / (last - first) * 1e6


async def progress(
    running: Running, topic: str, group: str, queues: int, count: int, patience_s: float
) -> tuple[tuple[float, int, float], tuple[float, int, float]]:
    """Time, messages consumed and CPU time of the broker, at the two points of the backlog between which is counted."""
    first: tuple[float, int, float] | None = None
    deadline = time.monotonic() + patience_s
    async with ConnectionPool() as peers:
        while time.monotonic() < deadline:
            done = sum(
                await asyncio.gather(*(committed(peers, running.addr, topic, group, queue) for queue in range(queues)))
            )
            now = (time.perf_counter(), done, cpu_s(running.pid))
            if first is None and done >= count * COUNTED_FROM:
                first = now
            elif first is not None and done >= count * COUNTED_TO:
                return first, now
            await asyncio.sleep(POLL_S)
    raise SystemExit(f"the Java consumer took {done} of {count} messages of {topic} within {patience_s:.0f} s")


async def committed(peers: ConnectionPool, addr: str, topic: str, group: str, queue: int) -> int:
    header = QueryConsumerOffset(group, topic, queue)
    try:
        answer = await peers.request_ok(addr, RequestCode.QUERY_CONSUMER_OFFSET, header, timeout_ms=10_000)
    except ReplyError as error:
        if error.code == ResponseCode.QUERY_NOT_FOUND:  # nothing committed yet
            return 0
        raise
    return decode_header(answer, OffsetResponse).offset
