"""The connector's requests at Java 4.9.4 servers, without Spark: TLS, system topics, times, limits, a group that mqadmin sees."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from interop_servers import RELEASES, mqadmin, produce

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from ariane.client.instance.hooks import LocalState
from ariane.client.transaction_producer import TransactionProducer
from ariane.errors import ConfigError, ConnectionLost
from ariane.model.message import Message, MessageQueue
from ariane.model.topic import HALF_TOPIC
from ariane.protocol.records import record
from ariane.spark.read import pull_client, queue_bounds, read_task
from ariane.spark.read.group_offsets import GroupOffsets
from ariane.spark.read.offset_ranges import OffsetRange
from ariane.spark.read.source_options import parse
from ariane.testing import java

# A Java broker has no settings of the topic of half messages, and so no pulls of it, before it looks at it first.
CHECKED = {"transactionCheckInterval": "1000"}
PATIENCE_S = 120.0


class Peers(NamedTuple):
    namesrv: str
    stored: dict[MessageQueue, list[int]]
    """Return the store times of topic T."""


def cluster(namesrv: str, **options: str) -> pull_client.BlockingCluster:
    return pull_client.BlockingCluster(
        parse({"namesrv": namesrv, "topic": "T", "retries": "1", **options}), sleep=lambda _: None
    )


def stored(namesrv: str) -> dict[MessageQueue, list[int]]:
    blocking_cluster = cluster(namesrv)
    result = queue_bounds.fetch_bounds(blocking_cluster, blocking_cluster.queues("T"))
    return {
        queue: [
            stored_record.store_ms
            for position in range(0, last, 32)
            for stored_record in record.decode_all(blocking_cluster.pull(queue, [position])[0].body)
        ]
        for queue, last in result.end.items()
    }


@pytest.fixture(scope="module", params=RELEASES, ids=lambda release: release.version)
def peers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    release: java.JavaRelease = request.param
    if reason := release.available():
        pytest.skip(f"Java peers: {reason}")
    home = tmp_path_factory.mktemp("java")
    with_tls = release.quick_start()
    with (
        release.name_server(home / "ns", jvm_args=with_tls) as names,
        release.broker(home / "b", names.addr, properties=CHECKED, jvm_args=with_tls),
    ):
        produce(names.addr, 60)
        time.sleep(0.1)
        produce(names.addr, 60)
        produce(names.addr, 3, "delay=18")
        yield Peers(names.addr, stored(names.addr))


def test_permissive_servers_are_read_over_tls(peers: Peers) -> None:
    """Start servers with Java's default: plain and TLS on one port, with a generated certificate."""
    encrypted = cluster(peers.namesrv, useTls="true", tlsVerify="false")
    result = queue_bounds.fetch_bounds(encrypted, encrypted.queues("T"))
    assert sum(result.end.values()) == 120
    queue, last = next(iter(result.end.items()))
    options = parse({"namesrv": peers.namesrv, "topic": "T"})
    batches = list(read_task.read_range(encrypted, OffsetRange(queue, 0, last), options, ["queue_offset"]))
    assert [position for batch in batches for position in batch["queue_offset"].to_pylist()] == list(range(last))
    for verify in ("true", "ca"):
        with pytest.raises(ConnectionLost, match="certificate verify failed.*tlsVerify"):
            cluster(peers.namesrv, useTls="true", tlsVerify=verify).queues("T")


@pytest.mark.long(
    "tests/interop/test_spark_on_java.py::test_permissive_servers_are_read_over_tls",
)
def test_the_server_certificate_is_verified(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    openssl = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=names.example"]
    subprocess.run([*openssl, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    own = [
        "-Dtls.test.mode.enable=false", "-Dtls.server.mode=enforcing", f"-Dtls.server.keyPath={key}",
        f"-Dtls.server.certPath={certificate}", f"-Dtls.config.file={tmp_path / 'none'}",
    ]  # fmt: skip
    with java.name_server(tmp_path / "ns", jvm_args=[*java.quick_start(), *own]) as names:
        trusting = {"useTls": "true", "tlsCaFile": str(certificate)}
        assert "TBW102" not in cluster(names.addr, **trusting, tlsVerify="ca").topics()
        with pytest.raises(ConnectionLost, match="TLS: .*(mismatch|not valid)"):
            cluster(names.addr, **trusting).topics()
        with pytest.raises(ConnectionLost):
            cluster(names.addr).topics()
    with pytest.raises(ConfigError, match="tlsCertFile.*PEM"):
        cluster(names.addr, **trusting, tlsCertFile=str(tmp_path / "missing.pem"))


def test_system_topics_are_readable_by_name(peers: Peers) -> None:
    blocking_cluster = cluster(peers.namesrv)
    queues = blocking_cluster.queues("SCHEDULE_TOPIC_XXXX")
    assert len(queues) == 18
    result = queue_bounds.fetch_bounds(blocking_cluster, queues)
    assert {queue.queue_id: last for queue, last in result.end.items() if last} == {17: 3}
    options = parse({"namesrv": peers.namesrv, "topic": "SCHEDULE_TOPIC_XXXX"})
    part = OffsetRange(MessageQueue("SCHEDULE_TOPIC_XXXX", "broker-a", 17), 0, 3)
    (batch,) = read_task.read_range(blocking_cluster, part, options, ["properties"])
    assert [dict(item)["REAL_TOPIC"] for item in batch["properties"].to_pylist()] == ["T"] * 3
    assert queue_bounds.matching_topics(".*", False, blocking_cluster.topics(), blocking_cluster.brokers()) == ["T"]


def test_half_messages_of_open_transactions_are_readable(peers: Peers) -> None:
    async def work() -> None:
        async with TransactionProducer(peers.namesrv, "shop", check=lambda _: LocalState.UNKNOWN) as producer:
            await producer.send_in_transaction(Message(topic="T", body=b"half"), lambda _: LocalState.UNKNOWN)

    asyncio.run(asyncio.wait_for(work(), 60))
    blocking_cluster = cluster(peers.namesrv)
    ends_s = time.monotonic() + PATIENCE_S
    while not (queues := blocking_cluster.queues(HALF_TOPIC)):
        assert time.monotonic() < ends_s
        time.sleep(0.2)
    options = parse({"namesrv": peers.namesrv, "topic": HALF_TOPIC})
    (batch,) = read_task.read_range(blocking_cluster, OffsetRange(queues[0], 0, 1), options, ["body"])
    assert batch["body"].to_pylist() == [b"half"]


def test_offsets_by_time_are_exact(peers: Peers) -> None:
    blocking_cluster = cluster(peers.namesrv)
    result = queue_bounds.fetch_bounds(blocking_cluster, list(peers.stored))
    every = sorted({ms for times in peers.stored.values() for ms in times})
    for ms in (0, every[0], every[0] + 1, every[len(every) // 2], every[len(every) // 2] + 1, every[-1], every[-1] + 1):
        first = queue_bounds.find_offsets_by_time(blocking_cluster, dict.fromkeys(peers.stored, ms), result)
        assert first == {queue: sum(item < ms for item in times) for queue, times in peers.stored.items()}


@pytest.mark.long(
    "tests/spark/test_source_operations.py::test_offsets_are_committed_to_the_group_including_the_last_batch"
)
def test_mqadmin_shows_the_lag_of_a_query_that_commits_offsets(peers: Peers) -> None:
    blocking_cluster = cluster(peers.namesrv, groupId="spark-query")
    group = GroupOffsets("spark-query")
    assert group.commit(blocking_cluster, {queue: len(times) - 2 for queue, times in peers.stored.items()}) == {}
    ends_s = time.monotonic() + PATIENCE_S
    while "%RETRY%spark-query" not in blocking_cluster.topics():
        assert time.monotonic() < ends_s
        time.sleep(0.2)
    (reported,) = mqadmin(peers.namesrv, "consumerProgress -g spark-query")
    assert f"Diff Total: {2 * len(peers.stored)}" in reported
