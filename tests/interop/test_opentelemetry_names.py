"""Metrics under RocketMQ 5's names: our broker's have the names and labels of the Prometheus exporter of a 5.3.3 broker."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from interop_servers import produce
from prometheus_client.parser import text_string_to_metric_families

from ariane import Message, Producer, PushConsumer, ReceivedMessage
from ariane.metrics.broker.opentelemetry_names import OPENTELEMETRY_METRICS
from ariane.testing import java

pytestmark = [
    pytest.mark.interop,
    pytest.mark.long(
        "tests/unit/test_metrics_exposition.py::test_both_formats_are_valid",
    ),
]

DEADLINE_S = 90.0
OF_EXPORTER = {"otel_scope_name", "otel_scope_version"}  # labels of later exporters, without a meaning for the broker

OUT = ("rocketmq_messages_out_total", "rocketmq_throughput_out_total")  # of pulls without is_retry, which a pop has


def scraped(port: int) -> dict[str, set[str]]:
    """Return the labels of each metric; empty while the exporter does not listen."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            text = response.read().decode()
    except OSError:
        return {}
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {sample.name: set(sample.labels) - OF_EXPORTER for sample in samples}


@contextmanager
def java_exporter(home: Path) -> Iterator[tuple[str, int]]:
    port = java.free_port()
    settings = {
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": str(port),
        "metricsPromExporterHost": "127.0.0.1",
        "autoCreateTopicEnable": "true",
    }
    with (
        java.V5.name_server(home / "ns") as name_server,
        java.V5.broker(home / "broker", name_server.addr, properties=settings),
    ):
        yield name_server.addr, port


async def ignore(message: ReceivedMessage) -> None:
    """Consume without work."""


async def scraped_with_clients(name_server: str, port: int, expected: set[str]) -> dict[str, set[str]]:
    """Return the labels of each metric, with a connected producer and consumer: lags are shown of online groups only."""
    found: dict[str, set[str]] = {}
    producer, consumer = Producer(name_server, "P"), PushConsumer(name_server, "G", {"T": "*"}, ignore, start="first")
    async with producer, consumer, asyncio.timeout(DEADLINE_S):
        await producer.send(Message(topic="T", body=b"counted"))
        while not expected <= found.keys():
            await asyncio.sleep(0.5)
            found |= await asyncio.to_thread(scraped, port)
    return found


def test_names_and_labels_are_those_of_java(tmp_path: Path) -> None:
    if reason := java.V5.available():
        pytest.skip(f"Java peers: {reason}")
    expected = {metric.name: set(metric.labels) for metric in OPENTELEMETRY_METRICS}
    with java_exporter(tmp_path) as (name_server, port):
        produce(name_server, 1)  # creates the topic
        found = asyncio.run(scraped_with_clients(name_server, port, set(expected)))
    for name in OUT:
        found[name].add("is_retry")
    assert {name: found[name] for name in expected} == expected
