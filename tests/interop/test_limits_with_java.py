"""Limits of our brokers with Java clients: which sends are repeated elsewhere, which are raised, and a consumer that goes on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.testing import AsyncLocalCluster, java

COUNT = 8
PATIENCE_S = 180


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
