"""Limits of our servers with Java clients: which sends are repeated, which are raised, and consumers that go on."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import signing
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.signing import Credentials
from ariane.testing import AsyncLocalCluster, LocalCluster, java

COUNT = 8
PATIENCE_S = 180
ACCOUNTS = """
accounts:
- {accessKey: administrator, secretKey: an-admin-secret, admin: true}
- {accessKey: the-producer, secretKey: producer-secret, defaultTopicPerm: PUB|SUB}
- {accessKey: other-producer, secretKey: producer-secret, defaultTopicPerm: PUB|SUB}
- {accessKey: the-consumer, secretKey: consumer-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
"""
OPERATOR = Credentials("administrator", "an-admin-secret")
PRODUCER, CONSUMER = "account=the-producer:producer-secret", "account=the-consumer:consumer-secret"
OTHER_PRODUCER = "account=other-producer:producer-secret"  # those that have failed live on, and send heartbeats
CLIENT_LOG = Path("logs", "rocketmqlogs", "rocketmq_client.log")  # of 4.9.4, in its home


def ports(sent: list[dict[str, Any]]) -> set[int]:
    """Return the ports of the brokers that stored messages."""
    return {int(item["offsetMsgId"][8:16], 16) for item in sent}


def test_java_clients_at_limits_of_connections_and_requests() -> None:
    if reason := java.V5.available():
        pytest.skip(f"Java peers: {reason}")

    async def work() -> None:
        async with AsyncLocalCluster(brokers=2) as cluster, ConnectionPool() as operator:
            await cluster.create_topic("T")
            first, second = (broker.addr for broker in cluster.brokers)
            port_of = {addr: int(addr.rpartition(":")[2]) for addr in (first, second)}

            async def change(addr: str, setting: str) -> None:
                response = await operator.request(addr, RequestCode.UPDATE_BROKER_CONFIG, body=setting.encode())
                assert response.code == ResponseCode.SUCCESS, response.remark

            async def produce(release: java.JavaRelease, count: int = COUNT, status: int = 0) -> list[str]:
                arguments = [cluster.namesrv, "T", "P", str(count)]
                return await asyncio.to_thread(release.run, "ariane.peers.Produce", arguments, status=status)

            for addr in (first, second):  # connects the operator, who could not do so later
                await change(addr, "serverConnectionsMax=1000")
            with java.start("ariane.peers.Consume", [cluster.namesrv, "T", "G", "*", "0", str(PATIENCE_S)]) as consumer:
                received = consumer.events(time.monotonic() + PATIENCE_S)
                await cluster.send("T", b"before the limits")
                await asyncio.to_thread(next, received)

                await change(second, "serverConnectionsMax=1")
                at_first = java.events(await produce(java.V4))
                assert len(at_first) == COUNT
                assert ports(at_first) == {port_of[first]}

                await change(second, "serverConnectionsMax=1000")
                await change(first, "serverRequestsPerSecond=5")
                raised, repeated = await asyncio.gather(produce(java.V4, 100, status=2), produce(java.V5))
                remark = "CODE: 2  DESC: [QUOTA]serverRequestsPerSecond: this server has "
                assert any(remark in line for line in raised), raised
                assert len(java.events(repeated)) == COUNT

                await change(first, "serverRequestsPerSecond=0")
                at_both = java.events(await produce(java.V4))
                assert ports(at_both) == set(port_of.values())
                sent = [*at_first, *java.events(raised), *java.events(repeated), *at_both]
                missing = {item["msgId"] for item in sent}
                while missing:
                    missing.discard((await asyncio.to_thread(next, received))["msgId"])

    asyncio.run(work())


class Servers(NamedTuple):
    """A cluster of one broker with access control, and its operator."""

    namesrv: str
    broker: str

    def operate(self, addr: str, code: int, body: bytes = b"") -> bytes:
        async def request() -> bytes:
            async with ConnectionPool(sign=functools.partial(signing.sign, OPERATOR)) as pool:
                response = await pool.request(addr, code, None, body)
                assert response.code == ResponseCode.SUCCESS, response.remark
                return response.body

        return asyncio.run(request())

    def limit(self, **limits: int) -> None:
        """Change limits of the broker."""
        lines = "\n".join(f"{key}={value}" for key, value in limits.items())
        self.operate(self.broker, RequestCode.UPDATE_BROKER_CONFIG, lines.encode())

    def exceeded(self) -> set[str]:
        """Return the limits of the broker that were exceeded."""
        table = json.loads(self.operate(self.broker, RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
        return {entry.partition(" ")[0] for entry in table["exceededLimits"].split(", ")}

    def produce(
        self, topic: str, count: int, *options: str, release: java.JavaRelease = java.V4, status: int = 0
    ) -> list[str]:
        """Return what a Java producer prints that ends with a status: 2 after an exception."""
        arguments = [self.namesrv, topic, "P", str(count), *(options or [PRODUCER])]
        return release.run("ariane.peers.Produce", arguments, status=status)

    def raised(self, topic: str, *options: str, count: int = 1) -> str:
        """Return what a Java producer prints that cannot send all messages."""
        return "\n".join(self.produce(topic, count, *options, status=2))


@pytest.mark.long(
    "tests/integration/test_limits.py::test_each_limit_is_changed_exceeded_answered_and_counted",
    "tests/interop/test_limits_with_java.py::test_java_clients_at_limits_of_connections_and_requests",
)
def test_java_clients_at_limits_of_objects_accounts_and_bytes(tmp_path: Path) -> None:
    if reason := java.V5.available():
        pytest.skip(f"Java peers: {reason}")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    with LocalCluster(tmp_path, acl_enable=True, rocketmq_home=str(tmp_path)) as cluster:
        servers = Servers(cluster.namesrv, cluster.broker.addr)
        sent = servers.produce("T", 4)
        servers.limit(serverSubscriptionsMax=1)
        arguments = [servers.namesrv, "T", "G", "*", "0", str(PATIENCE_S), CONSUMER]
        with java.start("ariane.peers.Consume", arguments, home=tmp_path) as consumer:
            wait_for_refused_heartbeat(tmp_path / CLIENT_LOG, consumer)  # repeated every 30 s; meanwhile:
            check_topics(servers)
            sent += check_requests(servers)
            servers.limit(serverSubscriptionsMax=0)
            check_bytes(servers)
            check_routes(servers)
            exceeded = servers.exceeded()
            missing = {item["msgId"] for item in java.events(sent)}
            received = consumer.events(time.monotonic() + PATIENCE_S)
            while missing:
                missing.discard(next(received)["msgId"])
    assert exceeded == {
        "serverSubscriptionsMax", "serverTopicsMax", "accountTopicsPerHour", "accountConnectionsMax",
        "accountRequestsPerSecond", "accountBytesInPerSecond", "accountBytesOutPerSecond",
    }  # fmt: skip


@pytest.mark.long(
    "tests/interop/test_limits_with_java.py::test_java_clients_at_limits_of_connections_and_requests",
    "tests/integration/test_limits.py::test_each_limit_is_changed_exceeded_answered_and_counted",
)
def test_java_consumers_at_limits_of_groups(tmp_path: Path) -> None:
    """Groups cannot be created in total, then not by an address. Consumers join when the limits are raised."""
    if reason := java.V4.available():
        pytest.skip(f"Java peers: {reason}")
    with LocalCluster(tmp_path) as cluster:
        servers = Servers(cluster.namesrv, cluster.broker.addr)
        sent = servers.produce("T", 4)

        def consume(group: str) -> AbstractContextManager[java.JavaProgram]:
            return java.start(
                "ariane.peers.Consume", [servers.namesrv, "T", group, "*", "4", str(PATIENCE_S)], home=tmp_path / group
            )

        servers.limit(serverGroupsMax=1)
        with consume("G") as first:
            wait_for_refused_heartbeat(
                tmp_path / "G" / CLIENT_LOG, first, "serverGroupsMax: cannot create the consumer group"
            )
            servers.limit(serverGroupsMax=1_000, addressGroupsPerHour=1)
            servers.operate(servers.broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"O"}')
            with consume("H") as second:
                wait_for_refused_heartbeat(
                    tmp_path / "H" / CLIENT_LOG, second, "addressGroupsPerHour: address 127.0.0.1 has 1 groups"
                )
                servers.limit(addressGroupsPerHour=0)
                expected = {item["msgId"] for item in java.events(sent)}
                for consumer in (first, second):
                    received = {item["msgId"] for item in consumer.events(time.monotonic() + PATIENCE_S)}
                    assert received == expected
        assert servers.exceeded() == {"serverGroupsMax", "addressGroupsPerHour"}


@pytest.mark.long(
    "tests/interop/test_limits_with_java.py::test_java_clients_at_limits_of_connections_and_requests",
    "tests/integration/test_limits.py::test_each_limit_is_changed_exceeded_answered_and_counted",
)
def test_java_orderly_consumers_at_limits_of_requests(tmp_path: Path) -> None:
    """Locks of queues are refused; the consumer repeats them, and receives everything once they are granted."""
    if reason := java.V4.available():
        pytest.skip(f"Java peers: {reason}")
    with LocalCluster(tmp_path) as cluster:
        servers = Servers(cluster.namesrv, cluster.broker.addr)
        sent = servers.produce("T", 8)
        servers.limit(addressRequestsPerSecond=1)
        arguments = [servers.namesrv, "T", "G", "*", "8", str(PATIENCE_S), "orderly"]
        with java.start("ariane.peers.Consume", arguments, home=tmp_path) as consumer:
            refusal = "lockBatchMQ exception", "CODE: 2  DESC: [QUOTA]addressRequestsPerSecond: address 127.0.0.1 has "
            wait_for_log(tmp_path / CLIENT_LOG, consumer, *refusal)
            servers.limit(addressRequestsPerSecond=0)
            received = {item["msgId"] for item in consumer.events(time.monotonic() + PATIENCE_S)}
        assert received == {item["msgId"] for item in java.events(sent)}


def wait_for_refused_heartbeat(
    log: Path,
    consumer: java.JavaProgram,
    remark: str = "serverSubscriptionsMax: this server has 0 subscriptions, 1 are allowed",
) -> None:
    """Wait until the client has logged the refusal. Its application sees no error."""
    wait_for_log(log, consumer, f"CODE: 1  DESC: [QUOTA]{remark}")


def wait_for_log(log: Path, consumer: java.JavaProgram, *texts: str) -> None:
    """Wait until the client has logged all texts."""
    deadline = time.monotonic() + PATIENCE_S
    while not (log.exists() and all(text in log.read_text() for text in texts)):
        assert consumer.process.poll() is None
        assert time.monotonic() < deadline, f"not in {log}: {texts}"
        time.sleep(0.1)


def check_topics(servers: Servers) -> None:
    servers.limit(serverTopicsMax=1)
    raised = servers.raised("A")
    assert "MQClientException: Send [3] times, still failed" in raised
    assert "MQBrokerException: CODE: 1  DESC: [QUOTA]serverTopicsMax: topic[A] not created" in raised
    servers.limit(serverTopicsMax=1_000, accountTopicsPerHour=1)
    servers.produce("A", 1)
    raised = servers.raised("B")
    assert "CODE: 1  DESC: [QUOTA]accountTopicsPerHour: account the-producer has 1 topics" in raised
    servers.limit(accountTopicsPerHour=0)


def check_requests(servers: Servers) -> list[str]:
    """Return what the producers of accepted messages have printed."""
    servers.limit(accountConnectionsMax=1)
    raised = servers.raised("T", CONSUMER)
    assert "CODE: 2  DESC: [QUOTA]accountConnectionsMax: account the-consumer has 1 connections" in raised
    servers.limit(accountConnectionsMax=0, accountRequestsPerSecond=5)
    raised = servers.raised("T", count=100)
    assert "MQBrokerException: CODE: 2  DESC: [QUOTA]accountRequestsPerSecond: account the-producer has" in raised
    repeated = servers.produce("T", COUNT, OTHER_PRODUCER, release=java.V5)
    assert len(java.events(repeated)) == COUNT
    servers.limit(accountRequestsPerSecond=0)
    return [*raised.splitlines(), *repeated]


def check_bytes(servers: Servers) -> None:
    """Send and receive 400,000 bytes. Batches are not compressed."""
    servers.limit(accountBytesInPerSecond=100_000)
    assert len(java.events(servers.produce("B", 40, PRODUCER, "size=10000", "batch=10"))) == 40
    servers.limit(accountBytesInPerSecond=0, accountBytesOutPerSecond=100_000)
    java.run("ariane.peers.Consume", [servers.namesrv, "B", "H", "*", "40", "60", CONSUMER])
    servers.limit(accountBytesOutPerSecond=0)


def check_routes(servers: Servers) -> None:
    """Use up a rate of the name server while a producer starts that has no route yet."""

    async def produce_without_route() -> str:
        async with ConnectionPool() as pool:

            async def request(count: int) -> list[Command | BaseException]:
                requests = [pool.request(servers.namesrv, RequestCode.GET_BROKER_CLUSTER_INFO) for _ in range(count)]
                return await asyncio.gather(*requests, return_exceptions=True)

            answers = [answer for answer in await request(100) if isinstance(answer, Command)]
            assert ResponseCode.SYSTEM_BUSY in {answer.code for answer in answers}
            producing = asyncio.create_task(asyncio.to_thread(servers.raised, "T"))
            while not producing.done():  # a busy machine takes seconds to start it
                await asyncio.wait([producing, asyncio.create_task(request(2))], timeout=0.2)
            return await producing

    servers.operate(servers.namesrv, RequestCode.UPDATE_NAMESRV_CONFIG, b"serverRequestsPerSecond=1")
    raised = asyncio.run(produce_without_route())
    assert "No route info of this topic" in raised or "RemotingTimeoutException" in raised
    servers.operate(servers.namesrv, RequestCode.UPDATE_NAMESRV_CONFIG, b"serverRequestsPerSecond=0")
