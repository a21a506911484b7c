"""`ariane collect` as a process: the topic is created once, samples are stored, the process stops on a signal."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ariane.client.lite_pull_consumer import LitePullConsumer
from ariane.client.producer import Producer
from ariane.metrics_collector.sample import Sample
from ariane.model.message import Message
from ariane.model.topic import SAMPLES_TOPIC
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.routing import RouteRequest, TopicRoute
from ariane.testing import LocalCluster
from ariane.testing.java import free_port

T = TypeVar("T")

COMMAND = [sys.executable, "-m", "ariane.cli", "collect"]


def collected(*options: str, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=limit_s, check=False)


async def stored(namesrv: str, topic: str, count: int) -> list[Sample]:
    results: list[Sample] = []
    async with LitePullConsumer(namesrv, "R", {topic: "*"}, start="first") as consumer:
        while len(results) < count:
            results += [msgspec.json.decode(message.body, type=Sample) for message in await consumer.poll(timeout=5)]
    return results


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 60))


def test_with_once_each_run_publishes_one_round(tmp_path: Path) -> None:
    async def send(namesrv: str) -> None:
        async with Producer(namesrv, "P") as producer:
            await producer.send(Message(topic="T", body=b"x"))

    async def queues(namesrv: str) -> int:
        async with ConnectionPool() as peers:
            answer = await peers.request_ok(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(SAMPLES_TOPIC))
        return sum(topic.write_queue_nums for topic in fastjson.decode(answer.body, TopicRoute).queue_datas)

    with LocalCluster(tmp_path) as servers:
        run(send(servers.namesrv))
        for _ in range(2):
            done = collected("-n", servers.namesrv, "--once", "--name", "mine")
            assert done.returncode == 0, done.stderr
            assert "brokers 1  groups 0  requests " in done.stdout
        first, second = run(stored(servers.namesrv, SAMPLES_TOPIC, 2))
        assert run(queues(servers.namesrv)) == 1
    assert (first.collector, first.broker, first.addr, first.error, first.failed_requests) == (
        "mine", "broker-a", servers.broker.addr, None, ()
    )  # fmt: skip
    (ends,) = (topic for topic in first.topics if topic.topic == "T")
    assert sum(last for _, _, last in ends.queues) == 1
    # It looks at its own topic, too.
    assert {topic.topic for topic in second.topics} == {"T", SAMPLES_TOPIC}


def test_collect_runs_until_it_is_stopped(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        options = ["-n", servers.namesrv, "--interval", "1", "--topic", "OTHER"]
        with subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, text=True) as process:
            samples = run(stored_when_there(servers.namesrv))
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert [sample.round for sample in samples] == [1, 2, 3]
    # A line for the first round; nothing new was seen in the others.
    assert output.count("brokers 1") == 1


async def stored_when_there(namesrv: str) -> list[Sample]:
    """Return the first three samples of a collector that is starting."""
    async with ConnectionPool() as peers:
        while (await peers.request(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest("OTHER"))).code != 0:
            await asyncio.sleep(0.1)
    return (await stored(namesrv, "OTHER", 3))[:3]


def test_a_missing_cluster_is_reported_immediately() -> None:
    began = time.monotonic()
    done = collected("-n", f"127.0.0.1:{free_port()}", "--once")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: connection to 127.0.0.1:")
    assert time.monotonic() - began < 30
