"""The connector's reads during server failures, without Spark: a slave replaces its master, a lost broker is retried."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from ariane.broker.broker import Broker
from ariane.client import Producer
from ariane.errors import ArianeError
from ariane.model.message import Message, MessageQueue
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import OffsetResponse, QueueRef
from ariane.protocol.requests.routing import TopicTable
from ariane.spark.read import pull_client, queue_bounds, read_task
from ariane.spark.read.offset_ranges import OffsetRange
from ariane.spark.read.source_options import SourceOptions, parse
from ariane.testing.cluster_servers import broker_config

QUICK = {"ha_send_heartbeat_interval": 100, "ha_housekeeping_interval": 2000}
COUNT = 40


def bodies(cluster: pull_client.BlockingCluster, options: SourceOptions, found: queue_bounds.QueueBounds) -> list[int]:
    parts = [OffsetRange(queue, found.first[queue], last) for queue, last in found.end.items()]
    rows = (batch for part in parts for batch in read_task.read_range(cluster, part, options, ["body"]))
    return sorted(int(body) for batch in rows for body in batch["body"].to_pylist())


def measured(cluster: pull_client.BlockingCluster) -> queue_bounds.QueueBounds:
    return queue_bounds.fetch_bounds(cluster, cluster.retry("routes", cluster.queues, "T"))


async def send(namesrv: str, count: int) -> None:
    async with Producer(namesrv, "P") as producer:
        for number in range(count):
            await producer.send(Message(topic="T", body=b"%d" % number))


async def copied(addr: str, queues: list[MessageQueue]) -> None:
    """Wait until the slave at `addr` has the topic and all messages."""
    async with ConnectionPool() as peers:

        async def end(queue: MessageQueue) -> int:
            answer = await peers.request(addr, RequestCode.GET_MAX_OFFSET, QueueRef(queue.topic, queue.queue_id))
            return decode_header(answer, OffsetResponse).offset if answer.code == ResponseCode.SUCCESS else 0

        async def knows() -> bool:
            answer = await peers.request_ok(addr, RequestCode.GET_ALL_TOPIC_CONFIG)
            return "T" in fastjson.decode(answer.body, TopicTable).topic_config_table

        while not await knows() or sum([await end(item) for item in queues]) < COUNT:
            await asyncio.sleep(0.05)


def names_config(home: Path) -> NameServerConfig:
    return NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(home / "kv.json"))


def test_a_slave_is_read_while_its_master_is_unavailable(tmp_path: Path) -> None:
    async def run() -> None:
        async with NameServer(names_config(tmp_path)) as names:
            namesrv = f"127.0.0.1:{names.addr.rpartition(':')[2]}"
            options = parse({"namesrv": namesrv, "topic": "T", "retries": "20"})
            cluster = pull_client.BlockingCluster(options)
            own = {**QUICK, "broker_role": "SLAVE", "broker_id": 1}
            async with contextlib.AsyncExitStack() as slaves:
                async with Broker(broker_config(tmp_path / "master", namesrv, **QUICK)):
                    await send(namesrv, COUNT)
                    before = await asyncio.to_thread(measured, cluster)
                    assert before.from_slaves == frozenset()
                    # It copies the topics when it starts, and then only now and then.
                    slave = await slaves.enter_async_context(Broker(broker_config(tmp_path / "slave", namesrv, **own)))
                    await copied(slave.addr, list(before.end))
                after = await asyncio.to_thread(measured, cluster)
                assert (after.first, after.end) == (before.first, before.end)
                assert after.from_slaves == frozenset(after.end)
                assert await asyncio.to_thread(bodies, cluster, options, after) == list(range(COUNT))
            cluster.close()

    asyncio.run(asyncio.wait_for(run(), 90))


def test_a_broker_lost_during_a_read_is_retried_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_task, "BATCH_ROWS", 1)  # every pull comes out at once

    async def run() -> None:
        async with NameServer(names_config(tmp_path)) as names:
            namesrv = f"127.0.0.1:{names.addr.rpartition(':')[2]}"
            patient = parse({"namesrv": namesrv, "topic": "T", "pullBatchSize": "1", "retries": "60"})
            cluster = pull_client.BlockingCluster(patient, sleep=lambda _: slept(waits))
            waits: list[int] = []
            settings = broker_config(tmp_path / "store", namesrv)
            async with Broker(settings):
                await send(namesrv, COUNT)
                result = await asyncio.to_thread(measured, cluster)
                queue = max(result.end, key=lambda one: result.end[one])
                part = OffsetRange(queue, 0, result.end[queue])
                rows = rows_of(cluster, patient, part)
                first = await asyncio.to_thread(next, rows)
            rest = asyncio.create_task(asyncio.to_thread(list, rows))
            while not waits:
                await asyncio.sleep(0.02)
            async with Broker(settings):
                assert [first, *await rest] == list(range(part.end))
                hasty = pull_client.BlockingCluster(
                    parse({"namesrv": namesrv, "topic": "T", "pullBatchSize": "1", "retries": "1"}),
                    sleep=lambda _: None,
                )
                rows = rows_of(hasty, patient, part)
                await asyncio.to_thread(next, rows)
            named = rf"T queue {queue.queue_id} of broker-a, offsets 0 to {part.end - 1}: .*\(tried 2 times\)"
            with pytest.raises(ArianeError, match=named):
                await asyncio.to_thread(list, rows)
            cluster.close()
            hasty.close()

    asyncio.run(asyncio.wait_for(run(), 90))


def slept(waits: list[int]) -> None:
    waits.append(1)
    time.sleep(0.05)


def rows_of(cluster: pull_client.BlockingCluster, options: SourceOptions, part: OffsetRange) -> Iterator[int]:
    """Yield queue offsets in the order in which they are read."""
    for batch in read_task.read_range(cluster, part, options, ["queue_offset"]):
        yield from batch["queue_offset"].to_pylist()
