"""The trace of a message: its steps from the trace topic, the brokers and the pipeline's tables.

fetch_live_trace ─┐
read_table_trace ─┴→ merge_steps ─→ the first STEPS_MAX ─→ TraceView; the page also draws them
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from ariane.cluster.admin import Admin
from ariane.cluster.messages.message_query import PENDING_TOPICS, is_offset_id
from ariane.console.areas.record_lookup import view_record
from ariane.console.areas.reports.table_queries import run_query
from ariane.console.areas.traces.host_clocks import HostClock
from ariane.console.areas.traces.step_merge import merge_steps
from ariane.console.areas.traces.timeline_drawing import Drawing, draw
from ariane.console.areas.traces.trace_sources import (
    FetchedTrace,
    TableTrace,
    TracedMessage,
    fetch_live_trace,
    read_table_trace,
)
from ariane.console.areas.traces.trace_views import ClockView, TracedGroupRow, TraceSourceView, TraceStepView, TraceView
from ariane.console.services import ConsoleServices
from ariane.console.texts.visible_text import visible
from ariane.console.web.form_fields import check_topic
from ariane.errors import ConnectionLost, RequestTimeout, ServerUnavailable
from ariane.model.born_time import AHEAD_MS
from ariane.model.host import ip_of
from ariane.model.ids import recalled_key
from ariane.reports.trace_steps import StepKind, StepSource, TraceStep

STEPS_MAX = 2_000  # clients choose the number of steps: each trace message may have thousands
STEPS_DRAWN_MAX = 500  # a drawing of more is not readable, and megabytes large


class BuiltTrace(NamedTuple):
    """A trace, and the steps that it lists, for a drawing."""

    view: TraceView
    steps: list[TraceStep]


def draw_trace(steps: Sequence[TraceStep]) -> Drawing | None:
    """Return the drawing of a trace: None without steps, or with more than STEPS_DRAWN_MAX."""
    return draw(steps) if len(steps) <= STEPS_DRAWN_MAX else None


def trace_topic_of(services: ConsoleServices, name: str) -> str:
    """Return the trace topic to read."""
    check_topic(name, "trace topic")
    return name or services.settings.trace_topic


async def trace(services: ConsoleServices, message_id: str, trace_topic: str = "", topic: str = "") -> BuiltTrace:
    """Return the trace of a message by its unique key, or an offset id of a record that has one.

    `topic` is that of the message, in case that no send was traced; without a trace topic, that of the settings is read.
    """
    name = trace_topic_of(services, trace_topic)
    check_topic(topic)
    message_id = recalled_key(message_id)
    async with services.admin() as admin:
        if (record := await _record(admin, message_id)) is not None:
            message_id, topic = record
        tables = await _table_trace(services, message_id)
        live = await fetch_live_trace(admin, message_id, name, topic=topic or (tables.facts.topic if tables else ""))
    return await asyncio.to_thread(build_view, services, message_id, live, tables)


def build_view(services: ConsoleServices, message_id: str, live: FetchedTrace, tables: TableTrace | None) -> BuiltTrace:
    """Return the view of a trace. `tables` is None without a pipeline."""
    all_steps = merge_steps(live.trace.steps, tables.steps if tables is not None else ())
    steps = all_steps[:STEPS_MAX]
    hosts = {ip_of(step.host) for step in steps if step.host}
    facts = [live.facts, tables.facts] if tables is not None else [live.facts]
    clocks = [
        _clock_view(host, clock, StepSource.TRACE_TOPIC) for host, clock in live.trace.clocks.items() if host in hosts
    ]
    if tables is not None:
        better = [_clock_view(host, clock, StepSource.TABLES) for host, clock in tables.clocks.items()]
        clocks = sorted([*better, *clocks], key=lambda clock: (clock.host, clock.source is not StepSource.TABLES))
    first_ms = min((step.start_ms for step in steps), default=0)
    view = TraceView(
        as_of_ms=services.clock.now_ms(),
        unavailable=live.unavailable,
        message_id=visible(message_id),
        topic=next((fact.topic for fact in facts if fact.topic), ""),
        tag=visible(next((fact.tags for fact in facts if fact.tags), "")),
        keys=[visible(key) for key in next((fact.keys for fact in facts if fact.keys), "").split()],
        trace_topic=live.trace_topic,
        duration_ms=max(step.last_ms for step in all_steps) - first_ms if steps else None,
        sources=_sources(services, live, tables, all_steps),
        groups=group_summaries(steps),
        steps=[_step_view(number, step, first_ms) for number, step in enumerate(steps, 1)],
        omitted_steps=len(all_steps) - len(steps),
        clocks=clocks,
    )
    return BuiltTrace(view, steps)


def group_summaries(steps: Sequence[TraceStep]) -> list[TracedGroupRow]:
    """Return the consumer groups of a trace."""
    by_group: dict[str, list[TraceStep]] = {}
    for step in steps:
        if step.kind is StepKind.DELIVERY:
            by_group.setdefault(step.group or "", []).append(step)
    dead = {step.group for step in steps if step.kind is StepKind.DEAD_LETTER}
    # A record in a topic of pending messages is not visible to consumers; what follows it is.
    readable = [
        step.start_ms
        for step in steps
        if step.error_ms is not None
        and (
            step.kind is StepKind.AVAILABLE
            or (step.kind is StepKind.STORE and step.group is None and step.topic not in (None, *PENDING_TOPICS))
        )
    ]
    readable_ms = min(readable, default=None)
    rows = []
    for group, deliveries in sorted(by_group.items()):
        first = deliveries[0]
        rows.append(
            TracedGroupRow(
                group=visible(group),
                attempts=len(deliveries),
                result=deliveries[-1].result,
                is_dead=group in dead,
                first_wait_ms=None
                if readable_ms is None or first.error_ms is None
                else max(0, first.start_ms - readable_ms),
            )
        )
    return rows


async def _record(admin: Admin, text: str) -> tuple[str, str] | None:
    """Return unique key and topic of the record with an offset id; None if it is not one, or its broker does not respond."""
    if not is_offset_id(text):
        return None
    try:
        record = await view_record(admin, text)
    except (ConnectionLost, RequestTimeout):
        return None
    return None if record is None else (record.message_id, record.topic)


async def _table_trace(services: ConsoleServices, message_id: str) -> TableTrace | None:
    tables_dir = services.tables_dir
    if tables_dir is None:
        return None
    now_ms = services.clock.now_ms()
    try:
        return await run_query(lambda: read_table_trace(tables_dir, message_id, now_ms), "the pipeline's tables")
    except ServerUnavailable as error:
        # The trace topic and the brokers have steps, too.
        return TableTrace([], TracedMessage(), {}, None, [str(error)])


def _sources(
    services: ConsoleServices, live: FetchedTrace, tables: TableTrace | None, steps: Sequence[TraceStep]
) -> list[TraceSourceView]:
    def count(source: StepSource) -> int:
        return sum(source in step.sources for step in steps)

    fault = [live.fault] if live.fault else []
    sources = [
        TraceSourceView(
            source=StepSource.TRACE_TOPIC,
            name=live.trace_topic,
            steps=count(StepSource.TRACE_TOPIC),
            # Clients send their traces after half a second or more: nothing says what is still on its way.
            as_of_ms=None if live.fault else services.clock.now_ms(),
            warnings=fault,
        ),
        TraceSourceView(
            source=StepSource.BROKER,
            name="",
            steps=count(StepSource.BROKER),
            as_of_ms=services.clock.now_ms(),
            warnings=[]
            if live.facts.topic
            else ["the topic of the message is unknown: its records were not looked up"],
        ),
    ]
    if tables is not None:
        name, steps_found = str(services.tables_dir), count(StepSource.TABLES)
        sources.append(TraceSourceView.of(tables, source=StepSource.TABLES, name=name, steps=steps_found))
    return sources


def _clock_view(host: str, clock: HostClock, source: StepSource) -> ClockView:
    return ClockView.of(
        clock,
        host=host,
        source=source,
        ahead_ms=_proved_ms(clock, None if clock.upper_ms is None else -clock.upper_ms),
        behind_ms=_proved_ms(clock, clock.lower_ms),
    )


def _proved_ms(clock: HostClock, difference_ms: int | None) -> int | None:
    is_proved = difference_ms is not None and difference_ms > AHEAD_MS and not clock.is_contradiction
    return difference_ms if is_proved else None


def _step_view(number: int, step: TraceStep, first_ms: int) -> TraceStepView:
    is_delivery = step.kind is StepKind.DELIVERY
    return TraceStepView.of(
        step,
        number=number,
        elapsed_ms=step.start_ms - first_ms,
        group=None if step.group is None else visible(step.group),
        attempt=step.retry_times + 1 if is_delivery and step.retry_times is not None else None,
        sources=sorted(step.sources, key=list(StepSource).index),
    )
