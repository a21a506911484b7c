"""A broker process that is killed again and again under clients of 4.x and 5.x, of the same topics (`mixed_client_load`).

No acknowledged send is lost; no message is delivered after its acknowledgement was answered; message groups stay in order. The
proxy of Java 5.3.3 with its broker is killed under the same clients: our broker delivers at most as many messages twice.

ARIANE_CI=long ARIANE_KILLS=100 pytest -s tests/integration/test_mixed_client_kills.py       kills the broker 100 times in each test
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="the extra grpc is not installed")

from ariane.cluster.admin import Admin
from ariane.errors import ArianeError
from ariane.model.topic import SubscriptionGroupConfig
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from failover_processes import BrokerProcess, broker_ports
from grpc_load_clients import CallClients, OfficialClients
from grpc_transports import TRANSPORTS
from mixed_client_load import FIFO, MIXED, ORDERED, Load
from rocketmq5_peers import JAVA_CLIENT, JavaProxyProcess, proxy_jars

KILLS = int(os.environ.get("ARIANE_KILLS") or 20)
JAVA = "5.3.3"
CALLS, OFFICIAL = "calls", "official client for Java"

pytestmark = [
    pytest.mark.long(
        "tests/simulation/test_pop_kills.py::test_kills_lose_no_message_and_bring_no_consumed_one_back",
        "tests/integration/test_local_cluster_kill.py::test_acknowledged_messages_survive_a_kill_under_load",
    ),
    pytest.mark.timeout(600 + 120 * KILLS),  # a start of Java's takes a minute on a busy machine
]


async def play(home: Path, server: str, clients: str) -> Load:
    """Return the load of a server that was killed KILLS times: JAVA, or our broker with this transport."""
    home.mkdir()
    names = NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(home / "kvConfig.json"))
    port, grpc_port = broker_ports(2)
    rng = random.Random(KILLS)
    async with NameServer(names) as name_server:
        namesrv = f"127.0.0.1:{name_server.port}"
        settings: dict[str, object] = {
            "brokerName": "broker-a", "brokerIP1": "127.0.0.1", "listenPort": port, "namesrvAddr": namesrv,
            "storePathRootDir": home / "store", "grpcServerEnable": "true", "grpcServerPort": grpc_port,
            "grpcTransport": server,
        }  # fmt: skip
        broker = (
            JavaProxyProcess(home, port, grpc_port, namesrv)
            if server == JAVA
            else BrokerProcess(home, "broker", port, settings)
        )
        broker.start()
        try:
            await create_topics(namesrv)
            endpoints = f"127.0.0.1:{grpc_port}"
            load = Load(
                namesrv,
                CallClients(endpoints)
                if clients == CALLS
                else OfficialClients(endpoints, proxy_jars() / JAVA_CLIENT, home),
            )
            async with load.running():
                for _ in range(KILLS):
                    await load.wait_for_sends(20, 5)  # on a busy machine the broker takes long to start
                    await asyncio.sleep(rng.uniform(0, 2))
                    await asyncio.to_thread(broker.kill)
                    await asyncio.sleep(rng.uniform(0, 0.5))
                    broker.start()
        finally:
            broker.kill()
    print(f"{server}, {clients}: {KILLS} kills, {load.report()}")
    return load


async def create_topics(namesrv: str) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(ArianeError):
                async with Admin(namesrv) as admin:
                    for topic in (MIXED, FIFO):
                        await admin.create_topic(topic, queues=4)
                    config = SubscriptionGroupConfig(group_name=ORDERED, consume_message_orderly=True)
                    await admin.save_group(config)
                    return
            await asyncio.sleep(0.2)


def assert_kept(load: Load) -> None:
    """Assert what our broker promises."""
    assert {group: lost for group, lost in load.missing().items() if lost} == {}
    assert list(load.faults()) == []


@pytest.mark.parametrize("clients", [CALLS, OFFICIAL])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_kills_lose_no_send_bring_no_consumed_message_back_and_keep_order(
    transport: str, clients: str, tmp_path: Path
) -> None:
    assert_kept(asyncio.run(play(tmp_path / "broker", transport, clients)))


@pytest.mark.parametrize("clients", [CALLS, OFFICIAL])
def test_kills_deliver_at_most_as_many_messages_twice_as_java(clients: str, tmp_path: Path) -> None:
    java = asyncio.run(play(tmp_path / "java", JAVA, clients))
    ours = asyncio.run(play(tmp_path / "broker", "aio", clients))
    assert_kept(ours)
    assert ours.total("duplicates") <= java.total("duplicates")
