"""Spans of clients, and the trace context that travels in message properties."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ariane.client.consumer import ConsumerLoop
from ariane.client.instance.send_types import SendResult, SendStatus
from ariane.model.message import KEYS, TAGS, Message, MessageQueue, ReceivedMessage
from ariane.otel import OpenTelemetry

QUEUE = MessageQueue("orders", "broker-a", 3)


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def telemetry(spans: InMemorySpanExporter) -> OpenTelemetry:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return OpenTelemetry(provider)


def result(status: SendStatus = SendStatus.SEND_OK) -> SendResult:
    return SendResult(
        status=status, message_id="ID-1", offset_message_id="O-1", queue=QUEUE, queue_offset=7, transaction_id=None,
        region="", trace_on=True,
    )  # fmt: skip


def received(sent: Message, message_id: str = "ID-1") -> ReceivedMessage:
    table = {**sent.properties, TAGS: sent.tags, KEYS: " ".join(sent.keys)}
    return ReceivedMessage(
        topic=sent.topic, body=sent.body, properties=table, queue=QUEUE, queue_offset=7, commit_log_offset=0,
        message_id=message_id, offset_message_id="O-1", born_ms=1, born_host="h", store_ms=2, store_host="h",
        reconsume_times=0, flag=0, sys_flag=0, stored_size=100,
    )  # fmt: skip


def send(telemetry: OpenTelemetry, message: Message) -> Message:
    with telemetry.sending("shop", [message]) as span:
        span.on_result(result())
        (sent,) = span.messages
    return sent


ORDER = Message(topic="orders", body=b"created", tags="new", keys=["ORDER-17"], properties={"color": "red"})


def test_a_send_is_a_producer_span_with_the_attributes_of_the_conventions(
    telemetry: OpenTelemetry, spans: InMemorySpanExporter
) -> None:
    send(telemetry, ORDER)
    (span,) = spans.get_finished_spans()
    assert (span.name, span.kind) == ("send orders", SpanKind.PRODUCER)
    assert dict(span.attributes or {}) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.message.id": "ID-1",
        "messaging.message.body.size": 7,
        "messaging.rocketmq.client_group": "shop",
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("ORDER-17",),
    }


def test_the_context_travels_in_properties_and_joins_both_spans(
    telemetry: OpenTelemetry, spans: InMemorySpanExporter
) -> None:
    sent = send(telemetry, ORDER)
    assert sent.properties["color"] == "red"
    with telemetry.processing("billing", [received(sent)]):
        inner = trace.get_current_span().get_span_context()
    producer, consumer = spans.get_finished_spans()
    assert (consumer.name, consumer.kind) == ("process orders", SpanKind.CONSUMER)
    assert producer.context is not None
    assert consumer.context is not None
    assert consumer.parent is not None
    assert consumer.parent.span_id == producer.context.span_id
    assert consumer.context.trace_id == producer.context.trace_id
    assert inner.span_id == consumer.context.span_id  # spans of the listener nest inside
    (link,) = consumer.links
    assert link.context.span_id == producer.context.span_id
    assert (consumer.attributes or {})["messaging.consumer.group.name"] == "billing"


def test_a_batch_links_to_every_producer_and_has_none_as_parent(
    telemetry: OpenTelemetry, spans: InMemorySpanExporter
) -> None:
    messages = [received(send(telemetry, ORDER), f"ID-{n}") for n in range(3)] + [received(ORDER, "untraced")]
    with telemetry.processing("billing", messages):
        pass
    *producers, consumer = spans.get_finished_spans()
    assert consumer.parent is None
    assert {link.context.span_id for link in consumer.links} == {
        span.context.span_id for span in producers if span.context
    }
    assert (consumer.attributes or {})["messaging.batch.message_count"] == 4


def test_a_context_that_the_application_set_is_kept(telemetry: OpenTelemetry) -> None:
    context = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    sent = send(telemetry, Message(topic="orders", body=b"x", properties=context))
    assert sent.properties == context


def test_errors_and_late_flushes_are_errors_of_the_span(telemetry: OpenTelemetry, spans: InMemorySpanExporter) -> None:
    with telemetry.sending("shop", [ORDER]) as span:
        span.on_result(result(SendStatus.FLUSH_DISK_TIMEOUT))
    with pytest.raises(ValueError, match="broken"), telemetry.processing("billing", [received(ORDER)]):
        raise ValueError("broken")
    late, failed = spans.get_finished_spans()
    assert (late.status.status_code, late.status.description) == (StatusCode.ERROR, "FLUSH_DISK_TIMEOUT")
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.events[0].name == "exception"


@pytest.mark.parametrize(
    ("message", "kind", "name", "value"),
    [
        (Message(topic="T", body=b"x", delay_level=3), "delay", "messaging.rocketmq.message.delay_time_level", 3),
        (Message(topic="T", body=b"x", deliver_at_ms=99), "delay", "messaging.rocketmq.message.delivery_timestamp", 99),
    ],
)
def test_delayed_messages_are_marked(
    message: Message, kind: str, name: str, value: int, telemetry: OpenTelemetry, spans: InMemorySpanExporter
) -> None:
    send(telemetry, message)
    attributes = spans.get_finished_spans()[0].attributes or {}
    assert (attributes["messaging.rocketmq.message.type"], attributes[name]) == (kind, value)


def test_the_span_of_a_loop_is_current_in_its_body_and_ends_with_it(
    telemetry: OpenTelemetry, spans: InMemorySpanExporter
) -> None:
    messages = [received(send(telemetry, ORDER)) for _ in range(2)]
    spans.clear()

    class Delivery:
        async def receive(self, count: int, linger_s: float) -> list[ReceivedMessage]:
            return [messages.pop()]

    async def work() -> None:
        loop = ConsumerLoop(Delivery(), telemetry, "billing", 1, 0, acknowledge=False)  # type: ignore[arg-type]
        ids = []
        while messages:
            await loop.next()
            ids.append(trace.get_current_span().get_span_context().span_id)
        assert [span.context.span_id for span in spans.get_finished_spans()] == ids[:1]
        del loop  # what `break` does
        assert [span.context.span_id for span in spans.get_finished_spans()] == ids
        assert not trace.get_current_span().get_span_context().is_valid

    asyncio.run(work())
    assert {span.name for span in spans.get_finished_spans()} == {"process orders"}
