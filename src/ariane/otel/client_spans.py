"""Spans of producers and consumers, and the W3C trace context in message properties.

    send T      PRODUCER   `traceparent`, `tracestate` and `baggage` travel in the message's properties
    process T   CONSUMER   linked to the span of each message's producer; its child if it processes one message

Names and attributes: OpenTelemetry semantic conventions for messaging, with the attributes for RocketMQ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.util.types import AttributeValue

from ariane.client.instance.send_types import SendResult, SendStatus
from ariane.client.instance.telemetry import SendSpan
from ariane.model.message import Message, ReceivedMessage

SYSTEM = "rocketmq"
INSTRUMENTATION = "ariane"


class OpenTelemetry:
    """Reports spans of clients to OpenTelemetry.

    Args:
        tracer_provider: Where spans go; None: the global provider of the application.

    Example:
        telemetry = OpenTelemetry()
        async with Producer(NAMESRV, "shop", telemetry=telemetry) as producer:
            await producer.send(Message(topic="orders", body=b"created"))
        PushConsumer(NAMESRV, "billing", {"orders": "*"}, listener, telemetry=telemetry)
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer(INSTRUMENTATION, tracer_provider=tracer_provider)

    @contextmanager
    def sending(self, group: str, messages: Sequence[Message]) -> Iterator[SendSpan]:
        """Open a PRODUCER span, and put its context into the properties of the messages."""
        topic = messages[0].topic if messages else ""
        attributes = _message_attributes("send", topic, messages) | {"messaging.rocketmq.client_group": group}
        if len(messages) == 1:
            attributes |= _single_message_attributes(messages[0])
        with self._tracer.start_as_current_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes) as span:

            def on_result(result: SendResult) -> None:
                span.set_attribute("messaging.message.id", result.message_id)
                span.set_attribute("messaging.destination.partition.id", str(result.queue.queue_id))
                # The message is stored, but not as safely as the producer asked for.
                if result.status is not SendStatus.SEND_OK:
                    span.set_status(Status(StatusCode.ERROR, result.status.name))

            yield SendSpan([_with_context(message) for message in messages], on_result)

    @contextmanager
    def processing(self, group: str, messages: Sequence[ReceivedMessage]) -> Iterator[None]:
        """Open a CONSUMER span that is linked to the producers' spans. Also for messages of `LitePullConsumer.poll`."""
        contexts = [propagate.extract(dict(message.properties)) for message in messages]
        links = [
            Link(context, {"messaging.message.id": message.message_id})
            for message, context in zip(messages, map(_span_context, contexts), strict=True)
            if context.is_valid
        ]
        # A batch has as many producers as messages: none of them is the parent.
        parent = contexts[0] if len(messages) == 1 else None
        topic = messages[0].topic if messages else ""
        attributes = _message_attributes("process", topic, messages) | {"messaging.consumer.group.name": group}
        if len(messages) == 1:
            message = messages[0]
            attributes |= {
                "messaging.message.id": message.message_id,
                "messaging.destination.partition.id": str(message.queue.queue_id),
            }
        with self._tracer.start_as_current_span(
            f"process {topic}", parent, kind=SpanKind.CONSUMER, attributes=attributes, links=links
        ):
            yield


def _message_attributes(
    operation: str, topic: str, messages: Sequence[Message | ReceivedMessage]
) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
    if len(messages) == 1:
        message = messages[0]
        attributes["messaging.message.body.size"] = len(message.body)
        if message.tags:
            attributes["messaging.rocketmq.message.tag"] = message.tags
        if message.keys:
            attributes["messaging.rocketmq.message.keys"] = list(message.keys)
    else:
        attributes["messaging.batch.message_count"] = len(messages)
    return attributes


def _single_message_attributes(message: Message) -> dict[str, AttributeValue]:
    if not message.is_delayed:
        return {"messaging.rocketmq.message.type": "normal"}
    attributes: dict[str, AttributeValue] = {"messaging.rocketmq.message.type": "delay"}
    if message.delay_level:
        attributes["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    elif message.deliver_at is not None:
        attributes["messaging.rocketmq.message.delivery_timestamp"] = round(message.deliver_at.timestamp() * 1000)
    elif message.deliver_at_ms:
        attributes["messaging.rocketmq.message.delivery_timestamp"] = message.deliver_at_ms
    return attributes  # a relative delay is counted by the broker's clock: its end is not known here


def _with_context(message: Message) -> Message:
    """Return the message with the current trace context in its properties; a context that it carries already is kept."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return msgspec.structs.replace(message, properties={**carrier, **message.properties})


def _span_context(context: Context) -> trace.SpanContext:
    return trace.get_current_span(context).get_span_context()
