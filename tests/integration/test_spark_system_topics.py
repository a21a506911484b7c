"""System topics read by name, without Spark: the brokers return the queues, as name servers have no route."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from ariane.client.instance.hooks import LocalState
from ariane.client.transaction_producer import TransactionProducer
from ariane.model.message import Message
from ariane.model.topic import HALF_TOPIC
from ariane.spark.read import pull_client, queue_bounds, read_task
from ariane.spark.read.offset_ranges import OffsetRange
from ariane.spark.read.source_options import parse
from ariane.testing import LocalCluster


def send_halves(namesrv: str, count: int) -> None:
    """Send half messages whose transactions stay open."""

    async def work() -> None:
        async with TransactionProducer(namesrv, "shop", check=lambda _: LocalState.UNKNOWN) as producer:
            for number in range(count):
                await producer.send_in_transaction(
                    Message(topic="T", body=b"%d" % number), lambda _: LocalState.UNKNOWN
                )

    asyncio.run(asyncio.wait_for(work(), 60))


def halves(namesrv: str) -> list[tuple[bytes, str]]:
    options = parse({"namesrv": namesrv, "topic": HALF_TOPIC, "retries": "0"})
    cluster = pull_client.BlockingCluster(options)
    result = queue_bounds.fetch_bounds(cluster, cluster.queues(HALF_TOPIC))
    parts = [OffsetRange(queue, result.first[queue], last) for queue, last in result.end.items()]
    rows = [
        (row["body"], dict(row["properties"])["REAL_TOPIC"])
        for part in parts
        for batch in read_task.read_range(cluster, part, options, ["body", "properties"])
        for row in batch.to_pylist()
    ]
    cluster.close()
    return sorted(rows)


def test_half_messages_of_open_transactions_are_readable(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        send_halves(servers.namesrv, 3)
        assert halves(servers.namesrv) == [(b"%d" % number, "T") for number in range(3)]
