"""Traces from the pipeline's tables: steps, clocks, freshness, and the merge with live steps."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")

from test_trace_steps import AHEAD_MS, ID, T0, T0_MS, attempt, copy, ended, journey, sent, started

from ariane.clock import SYSTEM_CLOCK
from ariane.cluster.admin import Admin
from ariane.cluster.messages.message_query import QueryResult
from ariane.console.areas.traces.live_steps import CarriedEvent, live_trace
from ariane.console.areas.traces.trace_page import STEPS_MAX, build_view, draw_trace
from ariane.console.areas.traces.trace_sources import (
    FetchedTrace,
    TracedMessage,
    decode_carriers,
    fetch_live_trace,
    read_table_trace,
)
from ariane.console.services import ConsoleServices
from ariane.console.settings import ConsoleSettings
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.model.trace_event import RecallEvent
from ariane.protocol import trace_codec
from ariane.reports.trace_steps import StepKind, StepSource
from ariane.tables import CLOCKS, JOURNEYS
from ariane.tables.time_buckets import bucket_of_id
from tables_on_disk import put

PRODUCER_IP, CONSUMER_IP, NAT_IP = "10.0.0.2", "fd00::3", "10.0.0.7"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    deliveries = [attempt(10, 15, "R1", clock_ms=0, clock_error_ms=4)]
    columns = {"region": None, "started_corrected_at": None, "ended_corrected_at": None}
    rows = [
        journey(group, deliveries=[one | columns for one in deliveries], keys="ORDER-1 CUSTOMER-7", tags="new")
        for group in ("billing", "mail")
    ]
    put(tmp_path, JOURNEYS, rows, bucket=bucket_of_id(ID, T0_MS), as_of_ms=T0_MS + 60_000)
    minute = T0.replace(second=0, microsecond=0)
    bounds: list[tuple[str, str | None, Any, int | None, int | None]] = [
        (PRODUCER_IP, None, minute, -1_210, -1_195), (PRODUCER_IP, None, minute, -1_203, -1_190),
        (PRODUCER_IP, None, minute + timedelta(minutes=1), -1_201, -1_196),
        (PRODUCER_IP, None, minute - timedelta(minutes=1), 9, -9),  # the clock was set
        (CONSUMER_IP, None, minute, -2, None), (CONSUMER_IP, None, minute + timedelta(hours=9), 500, 600),
        (NAT_IP, "PROCESS1", minute, 1, 2), (NAT_IP, "PROCESS2", minute, 1, 2), ("10.0.0.99", None, minute, 1, 2),
    ]  # fmt: skip
    clocks = [
        {"host": host, "client": client, "minute": at, "lower_ms": lower, "upper_ms": upper, "messages": 1, "sends": 1,
         "deliveries": 1, "discarded": 0}
        for host, client, at, lower, upper in bounds
    ]  # fmt: skip
    put(tmp_path, CLOCKS, clocks)
    return tmp_path


def services(tmp_path: Path, tables_dir: Path | None) -> ConsoleServices:
    settings = ConsoleSettings(namesrv="127.0.0.1:1", data_dir=tmp_path / "console", tables_dir=tables_dir)
    return cast(
        ConsoleServices, SimpleNamespace(settings=settings, tables_dir=tables_dir, clock=SYSTEM_CLOCK)
    )  # no server is asked


def test_steps_facts_and_clocks_are_read(tables: Path) -> None:
    found = read_table_trace(tables, ID, T0_MS + 90_000)
    assert [step.kind.value for step in found.steps] == ["send", "store", "delivery", "delivery"]
    assert found.facts == TracedMessage("orders", "new", "ORDER-1 CUSTOMER-7")
    # Bounds of all of these minutes; other times and other hosts do not count, nor does an address with several clocks.
    assert found.clocks == {PRODUCER_IP: (-1_203, -1_195), CONSUMER_IP: (-2, None)}
    assert found.as_of_ms == T0_MS + 60_000


def test_missing_messages_and_tables_are_told_apart(tables: Path, tmp_path: Path) -> None:
    unknown = read_table_trace(tables, "0A000001000100000000000000000009", T0_MS)
    assert (unknown.steps, unknown.as_of_ms) == ([], T0_MS + 60_000)
    (warning,) = read_table_trace(tmp_path / "none", ID, T0_MS).warnings
    assert "no journeys" in warning


def test_the_view_merges_both_sources_and_reports_each(tables: Path, tmp_path: Path) -> None:
    live = live_trace(ID, [sent(), started(10, "R1"), ended(15, "R1"), started(10_030, "R2", 1)], [copy("orders", 2)])
    fetched = FetchedTrace("RMQ_SYS_TRACE_TOPIC", live, TracedMessage("orders"), "", [])
    table_trace = read_table_trace(tables, ID, T0_MS + 90_000)
    view, steps = build_view(services(tmp_path, tables), ID, fetched, table_trace)
    drawing = draw_trace(steps)
    assert [(step.kind.value, step.group, len(step.sources)) for step in view.steps] == [
        ("send", "shop", 2), ("store", None, 2), ("delivery", "billing", 2), ("delivery", "mail", 1), ("delivery", "billing", 1),
    ]  # fmt: skip
    assert {source.source: source.steps for source in view.sources} == {
        StepSource.TRACE_TOPIC: 3, StepSource.BROKER: 1, StepSource.TABLES: 4,
    }  # fmt: skip
    assert view.sources[2].as_of_ms == T0_MS + 60_000
    # The tables know clocks better than one message, and are listed first.
    assert [(clock.host, clock.source) for clock in view.clocks][:2] == [
        (PRODUCER_IP, StepSource.TABLES), (PRODUCER_IP, StepSource.TRACE_TOPIC),
    ]  # fmt: skip
    assert view.clocks[0].offset_ms == -AHEAD_MS + 1
    assert [(group.group, group.attempts, group.first_wait_ms) for group in view.groups] == [
        ("billing", 2, 8),
        ("mail", 1, 8),
    ]
    assert drawing is not None
    assert len(drawing.axis.breaks) == 1


def test_steps_beyond_the_maximum_are_counted_and_not_listed(tables: Path, tmp_path: Path) -> None:
    """A client can report any number of deliveries."""
    carried = [
        CarriedEvent(
            msgspec.structs.replace(started(number, f"R{number}").event, group=f"G{number}"), "10.0.1.1:1", T0_MS
        )
        for number in range(20, 20 + 2 * STEPS_MAX)
    ]
    live = live_trace(ID, [sent(), *carried], [copy("orders", 2)])
    fetched = FetchedTrace("RMQ_SYS_TRACE_TOPIC", live, TracedMessage("orders"), "", [])
    view, steps = build_view(services(tmp_path, tables), ID, fetched, read_table_trace(tables, ID, T0_MS))
    # The send, the record, and the deliveries of two groups from the tables come before.
    assert (len(view.steps), view.omitted_steps, len(view.groups)) == (STEPS_MAX, STEPS_MAX + 4, STEPS_MAX - 2)
    assert view.steps[-1].elapsed_ms < (view.duration_ms or 0)
    assert sum(source.steps for source in view.sources) == 2 * STEPS_MAX + 1 + 1 + 4
    assert draw_trace(steps) is None


def test_trace_records_with_impossible_numbers_are_skipped() -> None:
    usual = trace_codec.encode(started(10, "R1").event)
    events = decode_carriers([trace_message(usual), trace_message(usual.replace(str(T0_MS + 10), "9" * 400) + usual)])
    assert [one.event for one in events] == [started(10, "R1").event] * 2


def test_a_recall_names_the_topic_if_the_trace_of_the_send_was_deleted() -> None:
    recall = RecallEvent(timestamp_ms=T0_MS, region="", group="shop", topic="orders", message_id=ID, success=True)
    searched: list[str] = []

    async def query_by_key(topic: str, key: str, *, messages_max: int) -> QueryResult:
        return QueryResult([trace_message(trace_codec.encode(recall))])

    async def query_topics(topics: list[str], key: str, *, messages_max: int) -> QueryResult:
        searched.extend(topics)
        return QueryResult([])

    admin = cast("Admin", SimpleNamespace(query_by_key=query_by_key, query_topics=query_topics))
    fetched = asyncio.run(fetch_live_trace(admin, ID, "RMQ_SYS_TRACE_TOPIC"))
    assert [(step.kind, step.result) for step in fetched.trace.steps] == [(StepKind.RECALL, "success")]
    assert fetched.facts.topic == "orders"
    assert "orders" in searched


def trace_message(body: str) -> ReceivedMessage:
    values: dict[str, Any] = dict.fromkeys(
        ("queue_offset", "commit_log_offset", "born_ms", "store_ms", "flag", "sys_flag"), 0
    )
    return ReceivedMessage(
        topic="T", body=body.encode(), properties={}, queue=MessageQueue("T", "b", 0), message_id="m", offset_message_id="o",
        born_host="", store_host="", reconsume_times=0, stored_size=0, **values,
    )  # fmt: skip


def test_without_a_pipeline_the_tables_are_not_mentioned(tmp_path: Path) -> None:
    fetched = FetchedTrace("RMQ_SYS_TRACE_TOPIC", live_trace(ID, [], []), TracedMessage(), "", [])
    view, steps = build_view(services(tmp_path, None), ID, fetched, None)
    assert [source.source for source in view.sources] == [StepSource.TRACE_TOPIC, StepSource.BROKER]
    assert "unknown" in view.sources[1].warnings[0]
    assert (view.steps, view.duration_ms, draw_trace(steps)) == ([], None, None)
