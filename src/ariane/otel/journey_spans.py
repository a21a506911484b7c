"""Journeys of messages as spans: a trace per message, for clients that know no OpenTelemetry.

    send T       producer's host    root of the trace; events: decisions of a transaction, a recall
    process T    consumer's host    one per attempt of each group, child of the send and linked to it

Pure. Ids are hashes of the message's unique id, the group and the attempt: a span that is exported twice has the same id. Times
are by the broker's clock where the client's clock offset is known. Columns: `ariane.tables.JOURNEYS`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

SCOPE = InstrumentationScope("ariane.journeys")
HALF_MESSAGE = 1  # message_type of a transaction
MESSAGE_TYPES = {0: "normal", 1: "transaction", 2: "transaction", 3: "delay", 4: "fifo"}
SUCCESS = "success"


def journey_spans(row: Mapping[str, Any]) -> Iterator[ReadableSpan]:
    """Yield the spans of a row of JOURNEYS that will not change any more.

    The send of a transaction is complete when it is decided; an attempt is complete when it has ended.
    """
    is_open_transaction = row["message_type"] == HALF_MESSAGE and row["transaction_state"] is None
    if row["sent_at"] is not None and not is_open_transaction:
        yield _send_span(row)
    for number, attempt in enumerate(row["deliveries"] or ()):
        if attempt["ended_at"] is not None:
            yield _process_span(row, attempt, number)


def span_key(span: ReadableSpan) -> bytes:
    """Return the 8 bytes that identify a span of a journey."""
    assert span.context is not None
    span_id: int = span.context.span_id
    return span_id.to_bytes(8, "big")


def _send_span(row: Mapping[str, Any]) -> ReadableSpan:
    clock_ms = row["producer_clock_ms"]
    start_ns = _to_ns(row["sent_at"], clock_ms)
    events = [
        Event(
            f"decided: {decision['state']}",
            {"from_check": decision["from_check"]},
            _to_ns(decision["decided_at"], clock_ms),
        )
        for decision in row["transactions"] or ()
    ]
    if row["recalled_at"] is not None:
        events.append(Event("recalled", None, _to_ns(row["recalled_at"], clock_ms)))
    attributes = _attributes(row, "send") | _present({
        "messaging.rocketmq.client_group": row["producer_group"],
        "messaging.rocketmq.message.type": MESSAGE_TYPES.get(row["message_type"]),
        "server.address": row["store_host"],
        "client.address": row["producer_host"],
        "ariane.clock_error_ms": row["producer_clock_error_ms"],
    })  # fmt: skip
    return ReadableSpan(
        f"send {row['topic'] or 'unknown'}",
        context=_send_context(row),
        resource=_resource(row["producer_group"], row["producer_host"]),
        attributes=attributes,
        events=events,
        kind=SpanKind.PRODUCER,
        instrumentation_scope=SCOPE,
        status=Status(StatusCode.UNSET if row["sent_ok"] else StatusCode.ERROR),
        start_time=start_ns,
        end_time=start_ns + max(row["send_cost_ms"] or 0, 0) * 1_000_000,
    )


def _process_span(row: Mapping[str, Any], attempt: Mapping[str, Any], number: int) -> ReadableSpan:
    end_ns = _to_ns(attempt["ended_at"], attempt["clock_ms"])
    if attempt["started_at"] is not None:
        start_ns = min(_to_ns(attempt["started_at"], attempt["clock_ms"]), end_ns)
    else:
        start_ns = end_ns - max(attempt["cost_ms"] or 0, 0) * 1_000_000
    group = row["consumer_group"]
    identity = attempt["request_id"] or str(number)
    has_send = row["sent_at"] is not None
    attributes = _attributes(row, "process") | _present({
        "messaging.consumer.group.name": group,
        "client.address": attempt["host"],
        "messaging.rocketmq.redeliveries": attempt["retry_times"],
        "ariane.queueing_ms": row["queueing_ms"] if number == 0 else None,
        "ariane.clock_error_ms": attempt["clock_error_ms"],
    })  # fmt: skip
    failure = None if attempt["result"] in (SUCCESS, None) else attempt["result"]
    return ReadableSpan(
        f"process {row['topic'] or 'unknown'}",
        context=_context(row["message_id"], f"process {group} {identity}"),
        parent=_send_context(row) if has_send else None,
        resource=_resource(group, attempt["host"]),
        attributes=attributes,
        links=[Link(_send_context(row), {"messaging.message.id": row["message_id"]})] if has_send else [],
        kind=SpanKind.CONSUMER,
        instrumentation_scope=SCOPE,
        status=Status(StatusCode.ERROR, failure) if failure else Status(StatusCode.UNSET),
        start_time=start_ns,
        end_time=end_ns,
    )


def _attributes(row: Mapping[str, Any], operation: str) -> dict[str, AttributeValue]:
    return _present({
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": row["topic"],
        "messaging.message.id": row["message_id"],
        "messaging.rocketmq.message.tag": row["tags"],
        "messaging.rocketmq.message.keys": row["keys"].split() if row["keys"] else None,
    })  # fmt: skip


def _present(values: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    """Return the values that are known: an unknown one is absent."""
    return {name: value for name, value in values.items() if value is not None and value != ""}


def _send_context(row: Mapping[str, Any]) -> SpanContext:
    return _context(row["message_id"], "send")


def _context(message_id: str, span: str) -> SpanContext:
    trace_id = hashlib.sha256(f"trace {message_id}".encode()).digest()[:16]
    span_id = hashlib.sha256(f"{message_id} {span}".encode()).digest()[:8]
    return SpanContext(
        int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big"), is_remote=True, trace_flags=TraceFlags(1)
    )


def _resource(group: str | None, host: str | None) -> Resource:
    return Resource({"service.name": group or "unknown", **({"host.name": host} if host else {})})


def _to_ns(at: datetime, clock_ms: int | None) -> int:
    """Return an instant in ns since the epoch, by the broker's clock if the offset of the client's clock is known."""
    corrected = at if clock_ms is None else at + timedelta(milliseconds=clock_ms)
    return round(corrected.timestamp() * 1_000_000) * 1_000
