"""Metrics of the pipeline, the collector, name servers and clients from their state; the endpoint in a thread."""

from __future__ import annotations

import asyncio
import socket
import ssl
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ariane.access.public_ports import Gap, PortProtection
from ariane.audit.server_audit_log import AuditState
from ariane.cli.servers.collect_command import _metrics_state
from ariane.cli.servers.process.public_http import HttpPort, serve_metrics
from ariane.errors import ConfigError
from ariane.metrics.broker.broker_metrics import BROKER_METRICS
from ariane.metrics.broker.broker_source import failover_state
from ariane.metrics.client_collector import ClientCollector
from ariane.metrics.collector_metrics import COLLECTOR_METRICS, CollectorSource
from ariane.metrics.families import Family, MetricTable, read
from ariane.metrics.name_server_source import NAME_SERVER_METRICS, RegisteredBroker, ScrapedNameServer
from ariane.metrics.port_metrics import WithPort
from ariane.metrics.serving.endpoint import LOOPBACK, serve_in_thread
from ariane.metrics_collector.publisher import PollingRound
from ariane.metrics_collector.sample import Sample
from ariane.model.clock_offset import ClockOffset
from ariane.net.listening.server_tls import CertificateFiles, ServerTls, ServerTlsOptions
from ariane.pipeline.pipeline_metrics import PIPELINE_METRICS, PipelineSource, PipelineState
from ariane.protocol.requests.callbacks import ConsumeStatus
from ariane.reports.tables.pipeline_status import Freshness, SourceStatus, write_status
from ariane.tables.table_format import DataFile, TableVersion
from tls_files import TestAuthority


def values(table: MetricTable, state: object) -> dict[str, dict[tuple[str, ...], object]]:
    return {metric.name: dict(samples) for metric, samples in read(table, state)}


def test_the_pipeline() -> None:
    ready = SourceStatus("trace", at_ms=5_000, batch=3, batch_ms=250, pending=7, unavailable=None)
    waiting = SourceStatus("samples", at_ms=6_000, batch=None, batch_ms=None, pending=None, unavailable="b:1")
    ready = msgspec.structs.replace(ready, caught_up_ms=4_000)
    files = (DataFile("a", "b", 5, 700, 1, None, None), DataFile("c", "b", 2, 300, 1, None, None))
    state = PipelineState(
        {"trace": ready, "samples": waiting},
        {"journeys": Freshness(4_500, ("late",))},
        {"journeys": TableVersion(1, 5, 7, 4_500, files), "trace_rejects": TableVersion(1, 1, 2, 4_500, ())},
        {"journeys": 3},
    )
    assert values(PIPELINE_METRICS, state) == {
        "ariane_pipeline_table_as_of_timestamp_seconds": {("journeys",): 4.5},
        "ariane_pipeline_table_complete": {("journeys",): 0},
        "ariane_pipeline_source_pending_messages": {("trace",): 7},
        "ariane_pipeline_source_available": {("trace",): 1, ("samples",): 0},
        "ariane_pipeline_source_updated_timestamp_seconds": {("trace",): 5.0, ("samples",): 6.0},
        "ariane_pipeline_source_batch_duration_seconds": {("trace",): 0.25},
        "ariane_pipeline_source_caught_up_timestamp_seconds": {("trace",): 4.0},
        "ariane_pipeline_source_rejected_records": {("traces",): 2},
        "ariane_pipeline_table_rows": {("journeys",): 7, ("trace_rejects",): 2},
        "ariane_pipeline_table_files": {("journeys",): 2, ("trace_rejects",): 0},
        "ariane_pipeline_table_bytes": {("journeys",): 1000, ("trace_rejects",): 0},
        "ariane_pipeline_retries_total": {("journeys",): 3},
    }


def test_a_member_of_a_broker_set() -> None:
    reported = {
        "failoverRole": "MASTER", "failoverEpoch": "7", "failoverSet": "a,c", "failoverRefusal": "", "failoverLeaseSeconds": "6.5",
        "failoverOffsetsRefused": "3", "failoverOffsetsBackward": "4",
    }  # fmt: skip
    former = reported | {"failoverRole": "RECONCILING", "failoverRefusal": "late", "failoverLeaseSeconds": ""}
    names = (
        "master", "promotable", "epoch", "refused_offset_commits_total", "backward_offset_commits_total",
        "in_sync_members", "lease_seconds",
    )  # fmt: skip
    expectations = ((reported, (1, 1, 7, 3, 4, 2, 6.5)), (former, (0, 0, 7, 3, 4, None, None)), ({}, (None,) * 7))
    for runtime, expected in expectations:
        state = SimpleNamespace(labels=("C", "broker-a", "0"), failover=failover_state(runtime))
        table = {metric: rows for metric, rows in BROKER_METRICS.items() if "_failover_" in metric.name}
        found = values(table, state)
        assert tuple(found[f"ariane_broker_failover_{name}"].get(state.labels) for name in names) == expected


def sample(broker: str, error: str | None) -> Sample:
    return Sample(
        collector="c", round=1, at_ms=1, interval_ms=5, duration_ms=1, requests=10, cluster="c", broker=broker, broker_id=0,
        addr=f"{broker}:1", error=error,
    )  # fmt: skip


def test_the_collector() -> None:
    polled = PollingRound([sample("a", None), sample("b", "timeout")], pending=3, dropped=2, error=None)
    state = _metrics_state(_metrics_state(None, polled), polled)
    found = values(COLLECTOR_METRICS, state)
    assert found.pop("ariane_collector_last_round_timestamp_seconds")[()] == state.at_ms / 1000
    assert found == {
        "ariane_collector_rounds_total": {(): 2},
        "ariane_collector_brokers": {("responding",): 1, ("unavailable",): 1},
        "ariane_collector_round_requests": {(): 20},
        "ariane_collector_pending_samples": {(): 3},
        "ariane_collector_dropped_samples_total": {(): 2},
    }


def test_the_name_server() -> None:
    brokers = (RegisteredBroker("c", "a", 0, "a:1", 1.5), RegisteredBroker("c", "a", 1, "s:1", 2.5))
    found = values(
        NAME_SERVER_METRICS,
        ScrapedNameServer(brokers, {("c", "a"): 12}, 4, 12.5, ("encryption",), audit=AuditState(3, 20, 1)),
    )
    assert found == {
        "ariane_nameserver_brokers": {("c",): 2},
        "ariane_nameserver_topics": {("c", "a"): 12},
        "ariane_nameserver_registration_age_seconds": {("c", "a", "0", "a:1"): 1.5, ("c", "a", "1", "s:1"): 2.5},
        "ariane_nameserver_connections": {(): 4},
        "ariane_nameserver_certificate_remaining_days": {(): 12.5},
        "ariane_nameserver_insecure": {("encryption",): 1},
        "ariane_nameserver_limit": {},
        "ariane_nameserver_limit_used": {},
        "ariane_nameserver_limit_exceeded_total": {},
        "ariane_nameserver_audit_write_failures_total": {(): 3},
        "ariane_nameserver_audit_pending_records": {(): 20},
        "ariane_nameserver_audit_lost_records_total": {(): 1},
    }


class NoFamilies:
    async def families(self, timeout_s: float | None) -> list[Family]:
        return []


@pytest.mark.parametrize("days", [20, -1, None])
def test_a_program_reports_the_state_of_its_own_port(days: int | None, tmp_path: Path) -> None:
    tls = None
    if days is not None:
        tls = ServerTls(ServerTlsOptions(is_test=False, files=TestAuthority(tmp_path).files("metrics", days=days)))
        tls.load()
    gaps = [Gap("access", "anyone can read it", "accounts"), Gap("encryption", "connections are plain", "TLS")]
    source = WithPort(NoFamilies(), "ariane_exporter", PortProtection(tls, gaps))
    found = {metric.name: dict(samples) for metric, samples in asyncio.run(source.families(None))}
    assert found.pop("ariane_exporter_insecure") == {("access",): 1, ("encryption",): 1}
    (remaining,) = found.values()
    assert [round(value) for value in remaining.values() if isinstance(value, float)] == (
        [] if days is None else [days]
    )


class Consumer:
    group = "G"
    client_id = "10.0.0.9@1"
    trace = None

    def __init__(self) -> None:
        self.status = {"T": ConsumeStatus(consume_ok_tps=2.5, consume_failed_msgs=3)}

    def rates(self) -> dict[str, ConsumeStatus]:
        return self.status


def test_a_consumer_in_the_registry_of_an_application() -> None:
    registry, consumer = CollectorRegistry(), Consumer()
    registry.register(ClientCollector(consumer))
    text = generate_latest(registry).decode()
    labels = '{clientAddr="",clientId="10.0.0.9@1",group="G",topic="T"}'
    assert f"rocketmq_client_consume_ok_msg_tps{labels} 2.5" in text
    assert f"rocketmq_client_consume_fail_msg_count{labels} 3.0" in text
    consumer.status = {}
    assert "clientId" not in generate_latest(registry).decode()


def test_the_trace_counters_of_a_producer() -> None:
    offsets = {"10.0.0.1:10911": ClockOffset(-1_203, -1_197)}
    producer = SimpleNamespace(
        group="P", trace=SimpleNamespace(sent=5, dropped=1, failed=2, spilled=3, clock_offsets=offsets)
    )
    registry = CollectorRegistry()
    registry.register(ClientCollector(producer))  # type: ignore[arg-type]
    text = generate_latest(registry).decode()
    for outcome, count in (("sent", 5), ("dropped", 1), ("failed", 2)):
        assert f'ariane_client_trace_records_total{{group="P",outcome="{outcome}"}} {count}.0' in text
    assert 'ariane_client_trace_spilled_records{group="P"} 3.0' in text
    assert 'ariane_client_clock_offset_seconds{broker="10.0.0.1:10911",group="P"} -1.2' in text
    assert 'ariane_client_clock_offset_error_seconds{broker="10.0.0.1:10911",group="P"} 0.003' in text
    producer.trace = None
    assert "ariane_client_trace" not in generate_latest(registry).decode()


def test_the_endpoint_in_a_thread(tmp_path: Path) -> None:
    write_status(tmp_path, SourceStatus("trace", at_ms=5_000, batch=3, batch_ms=250, pending=7, unavailable=None))
    port = HttpPort("pipeline", LOOPBACK, 0, None, ())
    with serve_in_thread(serve_metrics(port, PipelineSource(tmp_path))) as url:
        with urllib.request.urlopen(url, timeout=60) as response:
            assert b'ariane_pipeline_source_pending_messages{source="trace"} 7\n' in response.read()
        with (
            socket.socket() as probe,
            pytest.raises(ConfigError, match="choose another port"),
        ):
            probe.bind((LOOPBACK, 0))
            with serve_in_thread(serve_metrics(port._replace(port=probe.getsockname()[1]), CollectorSource())):
                pass
    missing = ServerTlsOptions(is_test=False, files=CertificateFiles("tls.server", str(tmp_path / "missing.pem")))
    for fault, faulty in (
        ("specify an address of this machine", port._replace(address="192.0.2.1")),
        ("missing.pem", port._replace(tls=missing)),
    ):
        with pytest.raises(ConfigError, match=fault), serve_in_thread(serve_metrics(faulty, CollectorSource())):
            pass


def test_the_endpoint_in_a_thread_is_encrypted(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    tls = ServerTlsOptions(mode="enforcing", is_test=False, files=authority.files("metrics", days=20))
    with serve_in_thread(serve_metrics(HttpPort("pipeline", LOOPBACK, 0, tls, ()), PipelineSource(tmp_path))) as url:
        assert url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(authority.path))
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
        with urllib.request.urlopen(url, timeout=60, context=context) as response:
            assert b"ariane_pipeline_certificate_remaining_days 19.99" in response.read()
