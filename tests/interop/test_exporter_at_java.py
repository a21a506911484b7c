"""The exporter at a Java 4.9.4 cluster: every series has a value; compared with Apache's exporter if that is installed.

Apache's rocketmq-exporter is not on Maven Central. Set ARIANE_APACHE_EXPORTER to its executable jar to run the comparison; without
it `tests/unit/test_exporter_comparison.py` compares a recording.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from test_exporter_comparison import MOVING, UNKNOWN, WRONG_AT_APACHE, Series, parse

from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer
from ariane.metrics.exporter import ExporterSource
from ariane.metrics.polling.cluster_poller import ClusterPoller
from ariane.metrics.serving.endpoint import MetricsEndpoint
from ariane.model.message import Message, ReceivedMessage
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.testing import java

pytestmark = pytest.mark.long(
    "tests/unit/test_exporter_comparison.py::test_every_series_of_apache_has_its_counterpart",
    "tests/interop/test_java_statistics.py::test_both_brokers_return_the_same_structure",
)


JAR = os.environ.get("ARIANE_APACHE_EXPORTER", "")
DEADLINE_S = 120
EVERY_5_S = "0/5 * * * * ?"
TASKS = (
    "collectTopicOffset", "collectProducer", "collectConsumerOffset", "collectBrokerStatsTopic", "collectBrokerStats",
    "collectBrokerRuntimeStats",
)  # fmt: skip


async def ignore(message: ReceivedMessage) -> None:
    """Consume without work."""


async def scrape(url: str) -> Series:
    def read() -> bytes:
        with urllib.request.urlopen(url, timeout=30) as response:
            content: bytes = response.read()
            return content

    return parse((await asyncio.to_thread(read)).decode())


@asynccontextmanager
async def exporter(namesrv: str) -> AsyncIterator[str]:
    async with ConnectionPool() as peers:
        poller = ClusterPoller(peers, [namesrv], detail_wait_s=30)
        async with MetricsEndpoint(ExporterSource(poller), "127.0.0.1", 0) as endpoint:
            yield endpoint.url
        await poller.close()


@asynccontextmanager
async def traffic(namesrv: str) -> AsyncIterator[None]:
    """Send to T, consume it in the group G, and leave messages to the group H, which has left."""
    async with Producer(namesrv, "P") as producer:

        async def send(count: int) -> None:
            for _ in range(count):
                await producer.send(Message(topic="T", body=b"x" * 100))

        await send(20)
        async with PushConsumer(namesrv, "G", {"T": "*"}, ignore, start="first"):
            async with PushConsumer(namesrv, "H", {"T": "*"}, ignore, start="first"):
                await wait(namesrv, "H", 20)
            await send(30)
            await wait(namesrv, "G", 50)
            yield


async def wait(namesrv: str, group: str, offset: int) -> Series:
    """Return a scrape in which a group has committed this offset, and the minute statistics have their first sample."""
    key = ("rocketmq_consumer_offset", labels(cluster="DefaultCluster", broker="broker-a", topic="T", group=group))
    rate = ("rocketmq_producer_tps", labels(cluster="DefaultCluster", broker="broker-a", topic="T"))
    async with exporter(namesrv) as url, asyncio.timeout(DEADLINE_S):
        while (series := await scrape(url)).get(key) != offset or not series.get(rate):
            await asyncio.sleep(0.2)
    return series


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


def test_a_java_cluster(tmp_path: Path) -> None:
    async def run(namesrv: str, addr: str) -> None:
        async with traffic(namesrv), exporter(namesrv) as url:
            series = await scrape(url)
        at = {"cluster": "DefaultCluster", "broker": "broker-a"}
        assert series["ariane_broker_up", labels(**at, broker_id="0", addr=addr)] == 1
        assert series["ariane_name_server_up", labels(addr=namesrv)] == 1
        assert (
            series["rocketmq_group_diff", labels(group="H", topic="T", countOfOnlineConsumers="0", msgModel="1")] == 30
        )
        assert (
            series["rocketmq_group_diff", labels(group="G", topic="T", countOfOnlineConsumers="1", msgModel="1")] == 0
        )
        assert 0 < series["rocketmq_group_get_latency_by_storetime", labels(**at, topic="T", group="H")] < 600_000
        assert series["rocketmq_producer_offset", labels(**at, topic="T")] == 50
        assert series["rocketmq_producer_count", labels(**at, group="P")] == 1
        assert series["ariane_group_consumers", labels(group="G")] == 1
        assert series["ariane_exporter_failed_requests_total", frozenset()] == 0
        pulled = {dict(found)["topic"] for name, found in series if name == "rocketmq_client_consumer_pull_tps"}
        assert pulled == {"T", "%RETRY%G"}
        runtime = {name for name, _ in series if name.startswith("rocketmq_brokeruntime_")}
        assert len(runtime) > 30  # without the rates and put times of a minute that has not passed yet

    with java.name_server(tmp_path / "ns") as names, java.broker(tmp_path / "broker", names.addr) as broker:
        asyncio.run(asyncio.wait_for(run(names.addr, broker.addr), 2 * DEADLINE_S))


@pytest.mark.skipif(not JAR, reason="ARIANE_APACHE_EXPORTER is not the jar of Apache's rocketmq-exporter")
def test_apaches_exporter_has_the_same_values(tmp_path: Path) -> None:
    port = java.free_port()

    async def run(namesrv: str) -> tuple[Series, Series]:
        async with traffic(namesrv), exporter(namesrv) as url, asyncio.timeout(DEADLINE_S):
            while True:
                await asyncio.sleep(1)
                try:
                    theirs = await scrape(f"http://127.0.0.1:{port}/metrics")
                except OSError:
                    continue
                # Its tasks run one after the other: the last one has polled the runtime information.
                if any(name == "rocketmq_client_consume_rt" for name, _ in theirs) and len(theirs) > 100:
                    return theirs, await scrape(url)

    with java.name_server(tmp_path / "ns") as names, java.broker(tmp_path / "broker", names.addr):
        options = [f"--server.port={port}", "--server.address=127.0.0.1", f"--grpc.server.port={java.free_port()}"]
        options += [
            f"--rocketmq.config.namesrvAddr={names.addr}",
            *(f"--task.{task}.cron={EVERY_5_S}" for task in TASKS),
        ]
        with (tmp_path / "exporter.log").open("w") as log:
            command = ["java", "-Xmx256m", f"-Duser.home={tmp_path}", "-jar", JAR, *options]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            theirs, ours = asyncio.run(run(names.addr))
        finally:
            process.terminate()
            process.wait(30)
    tolerated = {*MOVING, *UNKNOWN, *WRONG_AT_APACHE}
    missing = {name for name, found in theirs if (name, found) not in ours} - tolerated
    assert missing == set()
    compared = {key: value for key, value in theirs.items() if key in ours and key[0] not in tolerated}
    different = {
        key: (value, ours[key]) for key, value in compared.items() if ours[key] != pytest.approx(value, rel=0.5, abs=5)
    }
    assert len(compared) > 60
    assert different == {}
