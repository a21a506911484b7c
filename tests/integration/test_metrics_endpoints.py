"""/metrics of a broker, a name server and the exporter over HTTP: formats, equal values, deleted topics and groups."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.cli.servers.process.metrics_endpoint import broker_faults, broker_source, name_server_source, with_metrics
from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer
from ariane.errors import ConfigError, StoreFull
from ariane.metrics.broker.broker_metrics import BROKER_METRICS
from ariane.metrics.broker.opentelemetry_names import OPENTELEMETRY_METRICS
from ariane.metrics.exporter import ExporterSource
from ariane.metrics.families import Family, Metric
from ariane.metrics.polling.cluster_poller import ClusterPoller
from ariane.metrics.serving import endpoint
from ariane.metrics.serving.endpoint import LIMITS, MetricsEndpoint
from ariane.model.message import Message, ReceivedMessage
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import DeleteGroup, TopicRef
from ariane.protocol.requests.messaging import UpdateConsumerOffset

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]

DEADLINE_S = 60
# Labels and values that depend on the connection or the time of the poll.
VOLATILE = (
    "_tps",
    "rocketmq_broker_",
    "rocketmq_client_",
    "rocketmq_brokeruntime_",
    "latency",
    "message_size",
    "send_back",
)


class Scrape(NamedTuple):
    """A response over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes


class Servers(NamedTuple):
    """The endpoints of one cluster."""

    namesrv: str
    broker: Broker
    broker_port: int
    name_server_port: int
    exporter_port: int


async def get(port: int, path: str = "/metrics", *, method: str = "GET", **headers: str) -> Scrape:
    def send() -> Scrape:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        response = connection.getresponse()
        return Scrape(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())

    return await asyncio.to_thread(send)


async def scraped(port: int) -> Series:
    body = (await get(port)).body.decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(body)
        for sample in family.samples
    }


def labels(series: Series, name: str) -> list[dict[str, str]]:
    return [dict(result) for item, result in series if item == name]


async def until(condition: Callable[[Series], bool], port: int) -> Series:
    async with asyncio.timeout(DEADLINE_S):
        while not condition(series := await scraped(port)):
            await asyncio.sleep(0.05)
    return series


@asynccontextmanager
async def started(home: Path) -> AsyncIterator[Servers]:
    settings = {"bind_address": "127.0.0.1", "listen_port": 0}
    names = NameServer(NameServerConfig(kv_config_path=str(home / "kv.json"), **settings))
    async with names, MetricsEndpoint(name_server_source(names), "127.0.0.1", 0) as name_server_endpoint:
        config = BrokerConfig(
            namesrv_addr=names.addr,
            broker_name="broker-a",
            broker_ip1="127.0.0.1",
            store_path_root_dir=str(home / "store"),
            **settings,
        )
        async with Broker(config) as broker, ConnectionPool() as peers:
            poller = ClusterPoller(peers, [names.addr], detail_wait_s=DEADLINE_S)
            async with (
                MetricsEndpoint(
                    broker_source(broker), "127.0.0.1", 0, faults=lambda: broker_faults(broker)
                ) as broker_endpoint,
                MetricsEndpoint(ExporterSource(poller), "127.0.0.1", 0) as exporter_endpoint,
            ):
                yield Servers(
                    names.addr, broker, broker_endpoint.port, name_server_endpoint.port, exporter_endpoint.port
                )
            await poller.close()


async def ignore(message: ReceivedMessage) -> None:
    """Consume without work."""


def test_a_cluster_with_traffic(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path) as servers:
            async with Producer(servers.namesrv, "P") as producer:
                for number in range(20):
                    await producer.send(Message(topic="T", body=b"%d" % number))
                async with PushConsumer(servers.namesrv, "G", {"T": "*"}, ignore, start="first"):
                    await until(lambda one: one.get(consumer_offset("G")) == 20, servers.broker_port)
                    await check_equal(servers)
            await check_ages(servers)
            await check_own_metrics(servers)
            await check_deletion(servers)

    asyncio.run(asyncio.wait_for(run(), 3 * DEADLINE_S))


def consumer_offset(group: str) -> tuple[str, frozenset[tuple[str, str]]]:
    where = {"cluster": "DefaultCluster", "broker": "broker-a", "topic": "T", "group": group}
    return "rocketmq_consumer_offset", frozenset(where.items())


async def check_equal(servers: Servers) -> None:
    """The exporter, which sends requests, and the broker, which reads its tables, have the same values."""

    of_broker = {metric.name for metric in OPENTELEMETRY_METRICS}  # which a broker alone has

    def stable(series: Series) -> Series:
        return {
            key: value
            for key, value in series.items()
            if key[0] not in of_broker
            and key[0].startswith(("rocketmq_", "ariane_group_", "ariane_topic_"))
            and not any(part in key[0] for part in VOLATILE)
        }

    own, polled = await scraped(servers.broker_port), await scraped(servers.exporter_port)
    assert stable(own) == stable(polled)
    assert len(stable(own)) > 30
    assert own["rocketmq_group_diff", frozenset(group_labels("1").items())] == 0
    assert {label["topic"] for label in labels(polled, "rocketmq_client_consume_ok_msg_tps")} == {"T", "%RETRY%G"}
    assert labels(polled, "ariane_broker_up") == [
        {"cluster": "DefaultCluster", "broker": "broker-a", "broker_id": "0", "addr": servers.broker.addr}
    ]


def group_labels(consumers: str) -> dict[str, str]:
    return {"group": "G", "topic": "T", "countOfOnlineConsumers": consumers, "msgModel": "1"}


async def check_ages(servers: Servers) -> None:
    """A group that has consumed nothing lags behind by as much as its oldest message is old, for both."""
    async with ConnectionPool() as peers:
        for queue in range(4):
            header = UpdateConsumerOffset("late", "T", queue, 0)
            await peers.request_ok(servers.broker.addr, RequestCode.UPDATE_CONSUMER_OFFSET, header)
    where = {"cluster": "DefaultCluster", "broker": "broker-a", "topic": "T", "group": "late"}
    key = ("rocketmq_group_get_latency_by_storetime", frozenset(where.items()))
    for port in (servers.broker_port, servers.exporter_port):
        series = await until(lambda one: key in one, port)
        assert 0 < series[key] < DEADLINE_S * 1000
        assert series["ariane_group_lag_messages", key[1]] == 20
        queues = [one["queue"] for one in labels(series, "ariane_group_queue_lag_messages") if one["group"] == "late"]
        assert sorted(queues) == ["0", "1", "2", "3"]


async def check_own_metrics(servers: Servers) -> None:
    series = await scraped(servers.broker_port)
    at = frozenset({"cluster": "DefaultCluster", "broker": "broker-a", "broker_id": "0"}.items())
    assert series["ariane_broker_put_duration_seconds_count", at] >= 20
    assert 0 < series["ariane_broker_put_duration_seconds_sum", at] < DEADLINE_S
    assert series["ariane_broker_pull_duration_seconds_count", at] >= 1
    assert series["ariane_broker_failed_puts_total", at] == 0
    families = {name.removesuffix("_count") for name, _ in series}
    # This broker has no slaves, no failover, no certificate and no audit log, and is not open to other machines.
    absent = {
        "ariane_broker_slave_lag_bytes", "ariane_broker_certificate_remaining_days", "ariane_broker_insecure",
        "ariane_broker_audit_write_failures_total", "ariane_broker_audit_pending_records",
        "ariane_broker_audit_lost_records_total",
    }  # fmt: skip
    absent |= {metric.name for metric in BROKER_METRICS if "_failover_" in metric.name}
    assert {metric.name for metric in BROKER_METRICS} - absent <= families
    node = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
    sent = {**node, "topic": "T", "message_type": "normal", "is_system": "false"}
    assert series["rocketmq_messages_in_total", frozenset(sent.items())] == 20
    late = {**node, "consumer_group": "late", "topic": "T", "is_retry": "false", "is_system": "false"}
    lags = [
        series[f"rocketmq_consumer_{name}_messages", frozenset(late.items())] for name in ("lag", "inflight", "ready")
    ]
    assert lags == [20, 0, 20]
    names = await scraped(servers.name_server_port)
    assert names["ariane_nameserver_brokers", frozenset({("cluster", "DefaultCluster")})] == 1
    assert labels(names, "ariane_nameserver_registration_age_seconds")[0]["addr"] == servers.broker.addr
    assert names["process_resident_memory_bytes", frozenset()] > 1_000_000


async def check_deletion(servers: Servers) -> None:
    def mentions(series: Series, text: str) -> bool:
        return any(text in value for _, result in series for _, value in result)

    ports = (servers.broker_port, servers.exporter_port)
    for port in ports:
        await until(lambda one: ("rocketmq_group_diff", frozenset(group_labels("0").items())) in one, port)
    async with ConnectionPool() as peers:
        addr = servers.broker.addr
        await peers.request_ok(addr, RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("G", remove_offset=True))
        await peers.request_ok(addr, RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("late", remove_offset=True))
        for topic in ("T", "%RETRY%G"):
            await peers.request_ok(addr, RequestCode.DELETE_TOPIC_IN_BROKER, TopicRef(topic))
    for port in ports:
        series = await scraped(port)
        assert not mentions(series, "%RETRY%G")
        assert labels(series, "rocketmq_group_diff") == []
        assert "T" not in {one["topic"] for one in labels(series, "rocketmq_producer_offset")}


def test_http(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path) as servers:
            port = servers.broker_port
            plain = await get(port)
            assert (plain.status, plain.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
            strict = await get(port, Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
            assert strict.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
            assert len(list(parse_openmetrics(strict.body.decode()))) > 60
            packed = await get(port, Accept_Encoding="gzip, deflate")
            assert packed.headers["content-encoding"] == "gzip"
            assert b"ariane_broker_connections" in gzip.decompress(packed.body)
            head = await get(port, method="HEAD")
            assert (head.status, head.body) == (200, b"")
            assert b'href="/metrics"' in (await get(port, "/")).body
            assert [(await get(port, "/x")).status, (await get(port, method="POST")).status] == [404, 405]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16\x03\x01\x02\x00\r\n\r\n")
            assert b"400 Bad Request" in await reader.read()
            writer.close()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_health_checks_say_what_a_broker_lacks(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path) as servers:
            port, registration = servers.broker_port, servers.broker.services.registration
            assert [(await get(port, path)).body for path in ("/healthz", "/readyz")] == [b"ok\n", b"ok\n"]
            assert (await get(servers.name_server_port, "/readyz")).status == 200
            servers.broker.services.store.refusal = StoreFull("97 % of the disk are used")
            registration._links[0].failed = True  # as after a name server that did not respond
            late = await get(port, "/readyz")
            assert (late.status, late.body.decode().splitlines()) == (
                503,
                [
                    "messages are refused: 97 % of the disk are used",
                    f"not registered with any name server of {servers.namesrv}",
                ],
            )
            assert (await get(port, "/healthz")).status == 200
            servers.broker.services.store.refusal = None
            await registration.register_now()
            assert (await get(port, "/readyz")).status == 200

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_a_client_that_leaves_does_not_end_the_endpoint(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path) as servers:
            for request in (b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\n\r\n"):
                _, writer = await asyncio.open_connection("127.0.0.1", servers.broker_port)
                writer.write(request)
                writer.close()
            assert (await get(servers.broker_port)).status == 200

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


class LargeSource:
    """More text than the buffers of a connection contain."""

    async def families(self, timeout_s: float | None) -> list[Family]:
        return [(Metric("ariane_large", "gauge", "x" * 1000), [((), 1.0)])] * 20_000


def test_half_sent_requests_do_not_keep_scrapes_out() -> None:
    async def run() -> None:
        async with MetricsEndpoint(LargeSource(), "127.0.0.1", 0) as metrics:
            half_sent = [await asyncio.open_connection("127.0.0.1", metrics.port) for _ in range(2 * LIMITS.total)]
            for _, writer in half_sent:
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: ")
            assert (await get(metrics.port, "/")).status == 200

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_a_client_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "WRITE_TIMEOUT_S", 0.2)

    async def run() -> None:
        async with MetricsEndpoint(LargeSource(), "127.0.0.1", 0) as metrics:
            reader, writer = await asyncio.open_connection("127.0.0.1", metrics.port, limit=1024)
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            with pytest.raises(ConnectionError):
                while True:
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.05)
            assert reader.exception() is not None

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_a_setting_starts_the_endpoint(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json"))

    async def run() -> None:
        async with with_metrics(NameServer(config), name_server_source, "127.0.0.1", port):
            assert b"ariane_nameserver_connections" in (await get(port)).body
            with pytest.raises(ConfigError, match=f"'127.0.0.1:{port}': not available"):
                async with with_metrics(NameServer(config), name_server_source, "127.0.0.1", port):
                    pass
        async with with_metrics(NameServer(config), name_server_source, "127.0.0.1", 0):
            with pytest.raises(ConnectionRefusedError):
                await get(port)

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
