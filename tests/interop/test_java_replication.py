"""Replication between a Java 4.9.4 broker and ours, with either as the master: the logs are equal and readable on both sides.

Both masters are SYNC_MASTER: SEND_OK means that the other side acknowledged the record.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from interop_servers import consume, mqadmin, produce

from ariane.broker.broker import Broker
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.records import properties
from ariane.protocol.requests.messaging import (
    SUBSCRIPTION,
    PullMessage,
    QueryConsumerOffset,
    SendMessage,
    UpdateConsumerOffset,
)
from ariane.protocol.requests.routing import RouteRequest
from ariane.testing import AsyncLocalCluster, java
from ariane.testing.cluster_servers import broker_config

SIZE = 1 << 20  # of a commit log file: the messages of a test fill several
SMALL = {"mapped_file_size_commit_log": SIZE, "mapped_file_size_consume_queue": 20_000}
JAVA_SMALL = {"mappedFileSizeCommitLog": str(SIZE), "mappedFileSizeConsumeQueue": "20000"}
COUNT = 700


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not what():
            await asyncio.sleep(0.05)


async def until_replicated(peers: ConnectionPool, master: str) -> int:
    """Send until a slave is connected (code 0 instead of 11). Return the number of messages sent."""
    header = SendMessage("P", "T", "TBW102", 4, 0, 0, 1, 0, properties.encode({"KEYS": "first"}))
    for count in range(1, 200):
        if (await peers.request(master, RequestCode.SEND_MESSAGE_V2, header, b"x", timeout_ms=10_000)).code == 0:
            return count
        await asyncio.sleep(0.2)
    raise AssertionError("no slave came")


def files(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((store / "commitlog").iterdir())}


def same_log(master: Path, slave: Path) -> int:
    """Return the number of equal bytes in both logs; preallocated files of a Java broker are ignored."""
    item, other = files(master), files(slave)
    common = sorted(set(item) & set(other))
    assert all(item[name] == other[name] for name in common)
    assert not any(data.strip(b"\0") for name, data in [*item.items(), *other.items()] if name not in common)
    return sum(len(item[name]) for name in common)


def test_our_slave_replicates_a_java_master(tmp_path: Path) -> None:
    async def run(namesrv: str, stop_master: Callable[[], None], master: str) -> None:
        settings = broker_config(tmp_path / "slave", namesrv, **SMALL, broker_role="SLAVE", broker_id=1)
        async with Broker(settings) as slave, ConnectionPool() as peers:
            store = slave._store
            first = await until_replicated(peers, master)
            sent = await asyncio.to_thread(produce, namesrv, COUNT, "size=3000")
            await asyncio.to_thread(consume, namesrv, "G", "*", COUNT)
            await until(lambda: sum(store.max_offset("T", queue) for queue in range(4)) == first + COUNT)
            # Its topics, groups and offsets follow within two rounds.
            await until(lambda: slave._state.topics.get("T") is not None and slave._state.groups.get("G") is not None)
            assert same_log(tmp_path / "master" / "store", tmp_path / "slave") >= 3 * SIZE
            await asyncio.to_thread(stop_master)
            result = await asyncio.to_thread(consume, namesrv, "G2", "*", COUNT)
            assert {item["msgId"] for item in sent} <= {item["msgId"] for item in result}

    properties = {**JAVA_SMALL, "brokerRole": "SYNC_MASTER"}
    with java.name_server(tmp_path / "ns") as name_server, contextlib.ExitStack() as master:
        broker = master.enter_context(java.broker(tmp_path / "master", name_server.addr, properties=properties))
        asyncio.run(asyncio.wait_for(run(name_server.addr, master.close, broker.addr), 200))


@pytest.mark.long(
    "tests/interop/test_java_replication.py::test_our_slave_replicates_a_java_master",
)
def test_our_slave_replicates_plain_from_a_java_master_that_accepts_tls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Java's replication is never encrypted, although its request port takes the slave's TLS connections."""

    async def run(namesrv: str, master: str) -> None:
        role = {"broker_role": "SLAVE", "broker_id": 1, "tls_enable": "true"}
        async with Broker(broker_config(tmp_path / "slave", namesrv, **SMALL, **role)), ConnectionPool() as peers:
            await until_replicated(peers, master)

    properties, jvm = (
        {**JAVA_SMALL, "brokerRole": "SYNC_MASTER"},
        java.quick_start(),
    )  # with TLS: the default is without
    with (
        java.name_server(tmp_path / "ns", jvm_args=jvm) as names,
        java.broker(tmp_path / "master", names.addr, properties=properties, jvm_args=jvm) as broker,
    ):
        asyncio.run(asyncio.wait_for(run(names.addr, broker.addr), 100))
    assert f"Replication from the master {broker.addr} is not encrypted" in caplog.text


def test_a_java_slave_replicates_our_master(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            AsyncLocalCluster(tmp_path, **SMALL, broker_role="SYNC_MASTER") as servers,
            ConnectionPool() as peers,
        ):
            # Before the slave comes: with an empty log it gets these, too.
            await asyncio.to_thread(not_replicated, servers.namesrv)
            slave_is = {**JAVA_SMALL, "brokerRole": "SLAVE", "brokerId": "1"}
            with contextlib.ExitStack() as stack:
                place = java.broker(tmp_path / "slave", servers.namesrv, properties=slave_is)
                slave = await asyncio.to_thread(stack.enter_context, place)
                await until_replicated(peers, servers.broker.addr)
                sent = await asyncio.to_thread(produce, servers.namesrv, COUNT, "size=3000")
                assert same_log(tmp_path / "store", tmp_path / "slave" / "store") >= 3 * SIZE
                keys = await until_served(peers, slave.addr)
                assert keys > 0
                await peers.request_ok(
                    servers.broker.addr, RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("G", "T", 0, 7)
                )
                assert await until_offset(peers, slave.addr) == 7
                assert len({event["msgId"] for event in sent}) == COUNT
                await asyncio.to_thread(stack.close)

    def not_replicated(namesrv: str) -> None:
        lines = java.run("ariane.peers.Produce", [namesrv, "T", "P", "400", "size=3000"])
        assert {event["status"] for event in java.events(lines)} == {"SLAVE_NOT_AVAILABLE"}

    async def until_served(peers: ConnectionPool, slave: str) -> int:
        """Wait until the Java slave has the topic and serves the first messages. Return their bytes."""
        header = PullMessage("G", "T", 0, 0, 32, SUBSCRIPTION, 0, 0, "*", 0, None)
        for _ in range(100):
            answer = await peers.request(slave, RequestCode.PULL_MESSAGE, header)
            if answer.code == 0:
                return len(answer.body)
            await asyncio.sleep(0.3)
        raise AssertionError(f"the slave answers {answer.code}: {answer.remark}")

    async def until_offset(peers: ConnectionPool, slave: str) -> int:
        """Return the group's offset as copied by the Java slave."""
        header = QueryConsumerOffset("G", "T", 0)
        for _ in range(100):
            answer = await peers.request(slave, RequestCode.QUERY_CONSUMER_OFFSET, header)
            if answer.code == 0 and (offset := int(answer.field_map()["offset"])):
                return offset
            await asyncio.sleep(0.3)
        raise AssertionError(f"the slave answers {answer.code}: {answer.remark}")

    asyncio.run(asyncio.wait_for(run(), 200))


def test_mqadmin_deletes_a_topic_of_a_cluster_with_a_slave(tmp_path: Path) -> None:
    """On a cluster of Java brokers the command fails, as the slave rejects the request."""

    async def run() -> None:
        async with AsyncLocalCluster(tmp_path / "master", **SMALL) as servers, ConnectionPool() as peers:
            settings = broker_config(tmp_path / "slave", servers.namesrv, **SMALL, broker_role="SLAVE", broker_id=1)
            async with Broker(settings) as slave:
                header = SendMessage("P", "T", "TBW102", 1, 0, 0, 1, 0, None)
                assert (await peers.request(servers.broker.addr, RequestCode.SEND_MESSAGE_V2, header, b"x")).code == 0
                await until(lambda: slave._state.topics.get("T") is not None)
                (output,) = await asyncio.to_thread(mqadmin, servers.namesrv, "deleteTopic -c DefaultCluster -t T")
                assert "delete topic [T] from NameServer success" in output, output
                assert slave._state.topics.get("T") is None
                route = await peers.request(servers.namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest("T"))
                assert route.code == ResponseCode.TOPIC_NOT_EXIST

    asyncio.run(asyncio.wait_for(run(), 100))


def test_mqadmin_triggers_file_deletion_at_our_broker(tmp_path: Path) -> None:
    async def run() -> None:
        settings = {**SMALL, "mapped_file_size_commit_log": 4096, "delete_when": "", "file_reserved_time": 0}
        async with AsyncLocalCluster(tmp_path, **settings) as servers, ConnectionPool() as peers:
            header = SendMessage("P", "T", "TBW102", 1, 0, 0, 1, 0, None)
            for _ in range(40):
                assert (
                    await peers.request(servers.broker.addr, RequestCode.SEND_MESSAGE_V2, header, bytes(500))
                ).code == 0
            arguments = ["deleteExpiredCommitLog", "-n", servers.namesrv, "-b", servers.broker.addr]
            output = await asyncio.to_thread(java.run, java.ADMIN, arguments)
            assert any("success" in line for line in output), output

    asyncio.run(asyncio.wait_for(run(), 100))
