"""Spans of a producer and consumers arrive at a collector over OTLP/HTTP, in one trace."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from ariane import LocalState, Message, Producer, PushConsumer, TransactionProducer
from ariane.otel import OpenTelemetry
from ariane.testing import LocalCluster


class Collector(ThreadingHTTPServer):
    """An OTLP/HTTP collector that keeps the spans it receives."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        super().__init__(("127.0.0.1", 0), CollectorRequest)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


class CollectorRequest(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("listener_kind", ["coroutine", "thread"])
def test_sends_and_deliveries_are_one_trace(tmp_path: Path, collector: Collector, listener_kind: str) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(collector.endpoint)))
    telemetry = OpenTelemetry(provider)
    tracer = trace.get_tracer("application", tracer_provider=provider)
    done = threading.Event()

    def on_order(messages: list[object]) -> None:
        with tracer.start_as_current_span("bill"):
            done.set()

    async def on_order_in_loop(messages: list[object]) -> None:
        on_order(messages)

    async def run(namesrv: str) -> None:
        listener = on_order if listener_kind == "thread" else on_order_in_loop
        async with Producer(namesrv, "shop", telemetry=telemetry) as producer:
            with tracer.start_as_current_span("order"):
                await producer.send(Message(topic="orders", body=b"created", keys=["ORDER-17"]))
            async with PushConsumer(namesrv, "billing", {"orders": "*"}, listener, start="first", telemetry=telemetry):
                async with asyncio.timeout(60):
                    while not done.is_set():
                        await asyncio.sleep(0.05)

    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        asyncio.run(run(namesrv))
    provider.shutdown()
    (order,), (send,), (process,), (bill,) = map(collector.named, ("order", "send orders", "process orders", "bill"))
    assert [span.parent_span_id for span in (send, process, bill)] == [order.span_id, send.span_id, process.span_id]
    assert len({span.trace_id for span in (order, send, process, bill)}) == 1
    assert [link.span_id for link in process.links] == [send.span_id]


def test_half_messages_batches_and_one_way_sends_have_spans(tmp_path: Path, collector: Collector) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(collector.endpoint)))
    telemetry = OpenTelemetry(provider)

    async def run(namesrv: str) -> None:
        async def commit(_: object) -> LocalState:
            return LocalState.COMMIT

        async with TransactionProducer(namesrv, "pay", check=commit, telemetry=telemetry) as producer:
            await producer.send_in_transaction(Message(topic="paid", body=b"1"), commit)
            await producer.send_batch([Message(topic="many", body=b"1"), Message(topic="many", body=b"2")])
            await producer.send_one_way(Message(topic="gone", body=b"1"))

    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        asyncio.run(run(namesrv))
    provider.shutdown()
    assert sorted(span.name for span in collector.spans) == ["send gone", "send many", "send paid"]
    (batch,) = collector.named("send many")
    assert {item.key: item.value.int_value for item in batch.attributes}["messaging.batch.message_count"] == 2


def test_journeys_of_the_pipeline_arrive_at_a_collector(tmp_path: Path, collector: Collector) -> None:
    pytest.importorskip("pyarrow", reason="the tables of this test are written with pyarrow")
    from datetime import UTC, datetime

    from ariane.otel.journey_exporter import JourneyExporter
    from ariane.tables import JOURNEYS, MESSAGES
    from tables_on_disk import put

    sent_at = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    row = {"message_id": "ID-1", "topic": "orders", "sent_at": sent_at, "sent_ok": True, "producer_group": "shop"}
    put(tmp_path, JOURNEYS, [row])
    put(tmp_path, MESSAGES, [{"message_id": "ID-1", "properties": {}, "store_timestamp": sent_at}])
    assert JourneyExporter(tmp_path, OTLPSpanExporter(collector.endpoint)).export_new() == 1
    (span,) = collector.spans
    assert (span.name, span.start_time_unix_nano) == ("send orders", 1_700_000_000_000_000_000)
