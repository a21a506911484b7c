"""Load by Java's own clients: the benchmark programs of rocketmq-example on the 4.9.4 client, through a name server.

The newest example jar on Maven Central is 4.7.0; the programs are the same, the client they run on is 4.9.4's. They print every
10 s only, so progress is read from the broker: the ends of queues for the producer, committed offsets for the consumer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from ariane.errors import ReplyError
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import OffsetResponse, QueryConsumerOffset, QueueRef
from ariane.testing import java
from servers import Running, cpu_s

CONSUMER = "org.apache.rocketmq.example.benchmark.Consumer"
CLIENT_JVM = ("-Xms1g", "-Xmx1g", "-Xmn256m")  # as in the runclass.sh of the benchmark programs
POLL_S = 0.1
START_S = 60  # until the producer's first message
# Of the backlog: a consumer warms up with the first part of it, and reads the last part when some queues are already empty.
COUNTED_FROM, COUNTED_TO = 0.2, 0.9


class Progress(NamedTuple):
    at: float  # time.perf_counter()
    messages: int
    cpu_s: float  # of the broker


class Topic(NamedTuple):
    name: str
    queues: int


def produced(
    running: Running, topic: Topic, options: list[str], warm_s: float, measured_s: float, jvm_args: Sequence[str] = ()
) -> tuple[float, float]:
    """Return the rate of the benchmark Producer after `warm_s`, and the broker's CPU time per message in µs."""
    args = ["-n", running.namesrv, "-t", topic.name, *options]
    with java.start(java.BENCHMARK_PRODUCER, args, jvm_args=[*CLIENT_JVM, *jvm_args]) as producer:
        points = asyncio.run(production(running, topic, warm_s, measured_s))
        if producer.process.poll() is not None:
            raise SystemExit(f"the Java producer ended with {producer.process.returncode}")
    return between(*points)


def consumed(running: Running, topic: Topic, count: int, limit_s: float) -> tuple[float, float]:
    """Return the rate of the benchmark Consumer in a backlog of `count`, and the broker's CPU time per message in µs."""
    group = (
        f"bench-{time.time_ns()}"  # an unknown group starts at the oldest message of a topic without deleted messages
    )
    args = ["-n", running.namesrv, "-t", topic.name, "-g", group, "-p", "false"]
    with java.start(CONSUMER, args, jvm_args=CLIENT_JVM) as consumer:
        points = asyncio.run(consumption(running, topic, group, count, limit_s))
        if consumer.process.poll() is not None:
            raise SystemExit(f"the Java consumer ended with {consumer.process.returncode}")
    return between(*points)


def between(first: Progress, last: Progress) -> tuple[float, float]:
    """Return messages per second and the broker's CPU time per message in µs between two points."""
    messages = last.messages - first.messages
    if messages <= 0:
        raise SystemExit(f"no progress of the Java client in {last.at - first.at:.1f} s")
    return messages / (last.at - first.at), (last.cpu_s - first.cpu_s) / messages * 1e6


async def production(running: Running, topic: Topic, warm_s: float, measured_s: float) -> tuple[Progress, Progress]:
    """Return the points between which the producer is measured."""
    async with ConnectionPool() as peers:

        async def messages() -> int:
            return await total(topic, lambda queue: end_of(peers, running.addr, topic.name, queue))

        before, deadline = await messages(), time.monotonic() + START_S
        while await messages() == before:
            if time.monotonic() > deadline:
                raise SystemExit(f"the Java producer sent nothing to {topic.name} within {START_S} s")
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(warm_s)
        first = Progress(time.perf_counter(), await messages(), cpu_s(running.pid))
        await asyncio.sleep(measured_s)
        return first, Progress(time.perf_counter(), await messages(), cpu_s(running.pid))


async def consumption(
    running: Running, topic: Topic, group: str, count: int, limit_s: float
) -> tuple[Progress, Progress]:
    """Return the points of the backlog between which the consumer is measured."""
    first: Progress | None = None
    deadline = time.monotonic() + limit_s
    async with ConnectionPool() as peers:
        while time.monotonic() < deadline:
            done = await total(
                topic, lambda queue: committed(peers, running.addr, QueryConsumerOffset(group, topic.name, queue))
            )
            point = Progress(time.perf_counter(), done, cpu_s(running.pid))
            if first is None and done >= count * COUNTED_FROM:
                first = point
            elif first is not None and done >= count * COUNTED_TO:
                return first, point
            await asyncio.sleep(POLL_S)
    raise SystemExit(f"the Java consumer read {done} of {count} messages of {topic.name} within {limit_s:.0f} s")


async def total(topic: Topic, offset: Callable[[int], Awaitable[int]]) -> int:
    """Return the sum of an offset over all queues."""
    return sum(await asyncio.gather(*(offset(queue) for queue in range(topic.queues))))


async def end_of(peers: ConnectionPool, addr: str, topic: str, queue: int) -> int:
    answer = await peers.request_ok(addr, RequestCode.GET_MAX_OFFSET, QueueRef(topic, queue), timeout_ms=10_000)
    return decode_header(answer, OffsetResponse).offset


async def committed(peers: ConnectionPool, addr: str, header: QueryConsumerOffset) -> int:
    try:
        answer = await peers.request_ok(addr, RequestCode.QUERY_CONSUMER_OFFSET, header, timeout_ms=10_000)
    except ReplyError as error:
        if error.code == ResponseCode.QUERY_NOT_FOUND:  # nothing committed yet
            return 0
        raise
    return decode_header(answer, OffsetResponse).offset
