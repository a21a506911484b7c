"""The background poll at servers of ours: rows, a broker that stops, and no poll without readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ariane.broker.broker import Broker
from ariane.console.live import cluster_watch
from ariane.console.live.cluster_watch import IDLE_S, INTERVAL_S, ClusterWatch
from ariane.console.live.live_cluster import LiveCluster
from ariane.console.live.live_snapshot import LiveSnapshot
from ariane.console.live.name_server_reports import NameServerReports
from ariane.console.live.snapshot_builder import name_server_rows
from ariane.errors import ConnectionLost
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.net.pools.server_health import ServerHealth
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.routing import ClusterInfo
from ariane.testing.clock import FakeClock
from ariane.testing.cluster_servers import LOOPBACK, broker_config

DEADLINE_S = 60.0


async def until(live: LiveCluster, condition: Callable[[LiveSnapshot], bool]) -> LiveSnapshot:
    async with asyncio.timeout(DEADLINE_S):
        while not condition(snapshot := await live.snapshot()):
            await asyncio.sleep(0.02)
    return snapshot


def test_a_broker_that_stops_stays_in_the_lists_as_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_watch, "INTERVAL_S", 0.05)

    async def run() -> None:
        names = NameServerConfig(bind_address=LOOPBACK, listen_port=0, kv_config_path=str(tmp_path / "kv.json"))
        async with NameServer(names) as name_server:
            namesrv = f"{LOOPBACK}:{name_server.addr.rpartition(':')[2]}"
            async with LiveCluster([namesrv, "127.0.0.1:1"], health=ServerHealth()) as live:
                async with Broker(broker_config(tmp_path / "store", namesrv)):
                    up = await until(live, lambda snapshot: snapshot.rates_as_of_ms is not None)
                down = await until(
                    live, lambda snapshot: not snapshot.brokers[0].is_up and snapshot.topics[0].is_partial
                )
        (broker,) = up.brokers
        assert (broker.broker, broker.is_up, broker.version, broker.tps_in is None) == (
            "broker-a",
            True,
            "V4_9_4",
            True,
        )
        assert {row.addr: row.is_up for row in up.name_servers} == {namesrv: True, "127.0.0.1:1": False}
        assert [text.split(" did")[0] for text in up.unavailable] == ["Name server 127.0.0.1:1"]
        test_topic, tools = up.topic("SELF_TEST_TOPIC"), up.group("TOOLS_CONSUMER")
        assert test_topic is not None and (test_topic.queues, test_topic.tps_in) == (1, 0.0)
        assert tools is not None and (tools.clients, tools.tps, tools.is_system) == (0, 0.0, True)
        (broker,) = down.brokers
        assert (broker.is_up, broker.is_registered, broker.version) == (False, False, None)
        assert "Broker broker-a" in down.unavailable[1]
        assert [row.topic for row in down.topics] == [row.topic for row in up.topics]
        assert [row.group for row in down.groups] == [row.group for row in up.groups]
        assert all(row.queues is None and row.tps_in is None for row in down.topics)
        assert all(row.clients is None and row.tps is None for row in down.groups)

    asyncio.run(run())


def test_without_a_name_server_the_snapshot_says_so() -> None:
    async def run() -> None:
        async with LiveCluster(["127.0.0.1:1"], health=ServerHealth()) as live:
            snapshot = await until(live, lambda snapshot: bool(snapshot.name_servers))
            assert (snapshot.is_loaded, snapshot.brokers, snapshot.totals.tps_in) == (False, (), None)
            assert snapshot.unavailable == ("Name server 127.0.0.1:1 did not respond",)

    asyncio.run(run())


class EmptyCluster:
    """A name server without brokers. Counts its requests."""

    def __init__(self) -> None:
        self.requests = 0

    async def request(
        self, addr: str, code: int, header: msgspec.Struct | None = None, body: bytes = b"", *, timeout_ms: float = 3000
    ) -> Command:
        self.requests += 1
        return Command(ResponseCode.SUCCESS, body=fastjson.write(ClusterInfo({})))


class LastSnapshot:
    """Keeps the newest snapshot."""

    def __init__(self) -> None:
        self.snapshot: LiveSnapshot | None = None

    def publish(self, snapshot: LiveSnapshot, *, is_base: bool, round_s: float) -> None:
        self.snapshot = snapshot


class ReportingNameServer:
    """Reports the expiry of its certificate, or refuses the connection."""

    def __init__(self) -> None:
        self.days: int | None = 12  # None: it refuses
        self.requests = 0

    async def request(
        self, addr: str, code: int, header: msgspec.Struct | None = None, body: bytes = b"", *, timeout_ms: float = 3000
    ) -> Command:
        assert code == RequestCode.GET_NAMESRV_CONFIG
        self.requests += 1
        if self.days is None:
            raise ConnectionLost(addr, "refused")
        return Command(ResponseCode.SUCCESS, body=f"listenPort=1\ncertificateRemainingDays={self.days}\n".encode())


def test_name_servers_are_asked_for_their_certificates_once_a_minute() -> None:
    async def run() -> None:
        server, clock = ReportingNameServer(), FakeClock()
        reports = NameServerReports(server, ["ns", "ns"], timeout_ms=1, clock=clock)
        seen = []
        for days in (12, 11, None, 400):
            server.days = days
            for _ in range(2):  # the second call is within the minute
                await reports.refresh()
            seen.append(name_server_rows({"ns": True}, reports.by_addr)[0].certificate_days)
            clock.advance(60.0)
        # One that does not respond keeps its report, and its row says that its state is unknown.
        assert (seen, server.requests) == ([12, 11, 11, 400], 4)
        assert name_server_rows({"ns": False}, reports.by_addr)[0].certificate_days is None

    asyncio.run(run())


def test_polling_stops_without_readers_and_starts_with_the_next() -> None:
    async def run() -> None:
        cluster, clock, last = EmptyCluster(), FakeClock(), LastSnapshot()
        watch = ClusterWatch(peers=cluster, paced=cluster, name_servers=["ns"], subscriber=last, clock=clock)
        watching = asyncio.create_task(watch.run())

        async def pass_time(seconds: float) -> int:
            before = cluster.requests
            for _ in range(int(seconds / INTERVAL_S)):
                clock.advance(INTERVAL_S)
                for _ in range(50):
                    await asyncio.sleep(0)
            return cluster.requests - before

        assert await pass_time(60) == 0
        watch.want()
        assert await pass_time(IDLE_S) >= 2 * IDLE_S / INTERVAL_S  # both polls ask it
        await pass_time(IDLE_S)
        assert await pass_time(600) == 0
        watch.want()
        assert await pass_time(INTERVAL_S) > 0
        assert last.snapshot is not None and last.snapshot.is_loaded
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
