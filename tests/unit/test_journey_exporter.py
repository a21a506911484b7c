"""Journeys as spans: exported once, corrected to the broker's clock, and only for messages without a trace context."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the tables of this test are written with pyarrow")
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode

from ariane.errors import ArianeError
from ariane.otel.journey_exporter import JourneyExporter
from ariane.tables import JOURNEYS, MESSAGES
from tables_on_disk import put

T0 = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


class ListExporter(SpanExporter):
    """Keeps spans, or refuses them."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.is_available = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if not self.is_available:
            return SpanExportResult.FAILURE
        self.spans += spans
        return SpanExportResult.SUCCESS


def attempt(number: int, result: str | None = "success", **changes: Any) -> dict[str, Any]:
    started = T0 + timedelta(seconds=1 + number)
    ended = None if result is None else started + timedelta(milliseconds=30)
    return {
        "request_id": f"R{number}", "started_at": started, "ended_at": ended, "cost_ms": 30, "result": result,
        "retry_times": number, "host": "10.0.0.8", "region": "", "clock_ms": None, "clock_error_ms": None,
        "started_corrected_at": None, "ended_corrected_at": None,
    } | changes  # fmt: skip


def journey(
    message_id: str = "ID-1", group: str | None = "billing", *attempts: dict[str, Any], **changes: Any
) -> dict[str, Any]:
    return {
        "message_id": message_id, "consumer_group": group, "topic": "orders", "keys": "ORDER-17 X", "tags": "new",
        "message_type": 0, "producer_group": "shop", "producer_host": "10.0.0.7", "store_host": "10.0.0.2:10911",
        "sent_at": T0, "send_cost_ms": 5, "sends": 1, "sent_ok": True, "attempts": len(attempts), "queueing_ms": 990,
        "deliveries": list(attempts),
    } | changes  # fmt: skip


def message(message_id: str = "ID-1", properties: dict[str, str] | None = None) -> dict[str, Any]:
    return {"message_id": message_id, "topic": "orders", "properties": properties or {}, "store_timestamp": T0}


def test_a_journey_is_one_trace_with_a_send_and_its_attempts(tmp_path: Path) -> None:
    put(tmp_path, JOURNEYS, [journey("ID-1", "billing", attempt(0, "exception"), attempt(1))])
    put(tmp_path, MESSAGES, [message()])
    exporter = ListExporter()
    assert JourneyExporter(tmp_path, exporter).export_new() == 3
    send, failed, consumed = exporter.spans
    assert [span.name for span in exporter.spans] == ["send orders", "process orders", "process orders"]
    assert [span.kind for span in exporter.spans] == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CONSUMER]
    assert send.context is not None
    for span in (failed, consumed):
        assert span.context is not None
        assert span.parent is not None
        assert (span.context.trace_id, span.parent.span_id) == (send.context.trace_id, send.context.span_id)
        assert [link.context.span_id for link in span.links] == [send.context.span_id]
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "exception")
    assert consumed.status.status_code is StatusCode.UNSET
    assert (send.start_time, send.end_time) == (1_700_000_000_000_000_000, 1_700_000_000_005_000_000)
    assert list((send.attributes or {})["messaging.rocketmq.message.keys"]) == ["ORDER-17", "X"]  # type: ignore[arg-type]
    assert (send.resource.attributes["service.name"], consumed.resource.attributes["service.name"]) == (
        "shop",
        "billing",
    )


def test_each_span_is_exported_once_also_after_a_restart_and_for_new_groups(tmp_path: Path) -> None:
    put(tmp_path, MESSAGES, [message()])
    put(tmp_path, JOURNEYS, [journey("ID-1", "billing", attempt(0))])
    exporter = ListExporter()
    assert JourneyExporter(tmp_path, exporter).export_new() == 2
    assert JourneyExporter(tmp_path, exporter).export_new() == 0
    put(tmp_path, JOURNEYS, [journey("ID-1", "audit", attempt(7)), journey("ID-1", "billing", attempt(0), attempt(1))])
    assert JourneyExporter(tmp_path, exporter).export_new() == 2
    ids = [span.context.span_id for span in exporter.spans if span.context]
    assert len(ids) == len(set(ids)) == 4


def test_spans_that_the_collector_refused_are_exported_by_the_next_call(tmp_path: Path) -> None:
    put(tmp_path, MESSAGES, [message()])
    put(tmp_path, JOURNEYS, [journey("ID-1", "billing", attempt(0))])
    exporter = ListExporter()
    exporter.is_available = False
    journeys = JourneyExporter(tmp_path, exporter)
    with pytest.raises(ArianeError, match="did not accept 2 spans"):
        journeys.export_new()
    exporter.is_available = True
    assert journeys.export_new() == 2


def test_messages_with_a_trace_context_or_without_a_record_are_not_exported(tmp_path: Path) -> None:
    put(tmp_path, MESSAGES, [message("ID-1", {"traceparent": "00-1-2-01"}), message("ID-2", {"color": "red"})])
    put(tmp_path, JOURNEYS, [journey(f"ID-{n}", "billing", attempt(0)) for n in (1, 2, 3)])
    exporter = ListExporter()
    assert JourneyExporter(tmp_path, exporter).export_new() == 2
    assert {(span.attributes or {})["messaging.message.id"] for span in exporter.spans} == {"ID-2"}


def test_times_are_corrected_where_the_clock_offset_is_known(tmp_path: Path) -> None:
    put(tmp_path, MESSAGES, [message()])
    row = journey("ID-1", "billing", attempt(0, clock_ms=-500, clock_error_ms=3), producer_clock_ms=1200)
    put(tmp_path, JOURNEYS, [row])
    exporter = ListExporter()
    JourneyExporter(tmp_path, exporter).export_new()
    send, process = exporter.spans
    assert send.start_time == 1_700_000_001_200_000_000
    assert (process.start_time, process.end_time) == (1_700_000_000_500_000_000, 1_700_000_000_530_000_000)
    assert (process.attributes or {})["ariane.clock_error_ms"] == 3


def test_open_transactions_and_running_attempts_wait_until_they_are_complete(tmp_path: Path) -> None:
    put(tmp_path, MESSAGES, [message()])
    open_row = journey("ID-1", "billing", attempt(0, None), message_type=1)
    put(tmp_path, JOURNEYS, [open_row])
    exporter = ListExporter()
    assert JourneyExporter(tmp_path, exporter).export_new() == 0
    decision = {"decided_at": T0, "state": "COMMIT_MESSAGE", "from_check": True, "host": "h", "transaction_id": "x"}
    done = journey(
        "ID-1", "billing", attempt(0), message_type=1, transaction_state="COMMIT_MESSAGE", transactions=[decision]
    )
    put(tmp_path, JOURNEYS, [done])
    assert JourneyExporter(tmp_path, exporter).export_new() == 2
    assert [event.name for event in exporter.spans[0].events] == ["decided: COMMIT_MESSAGE"]


def test_ids_of_buckets_that_left_the_table_are_removed(tmp_path: Path) -> None:
    put(tmp_path, MESSAGES, [message()])
    put(tmp_path, JOURNEYS, [journey()])
    (tmp_path / "otel").mkdir()
    (tmp_path / "otel/2020-01-01T0000.ids").write_bytes(b"12345678")
    JourneyExporter(tmp_path, ListExporter()).export_new()
    assert [path.name for path in sorted((tmp_path / "otel").iterdir())] == ["2023-11-14T2210.ids", "progress.json"]
