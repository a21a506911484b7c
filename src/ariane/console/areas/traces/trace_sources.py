"""Fetches what is known about the steps of a message: from a trace topic, from the brokers, and from the pipeline's tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

from ariane.cluster.admin import Admin
from ariane.cluster.messages.message_query import PENDING_TOPICS, QueryResult
from ariane.console.areas.traces.host_clocks import HostClock, hull
from ariane.console.areas.traces.live_steps import CarriedEvent, LiveTrace, StoredCopy, live_trace
from ariane.console.texts.translation import report_text
from ariane.errors import ArianeError, RouteNotFound, StoreError
from ariane.model import clock_offset
from ariane.model.host import ip_of
from ariane.model.message import ReceivedMessage
from ariane.model.topic import dlq_topic, retry_topic
from ariane.model.trace_event import (
    ConsumeEndEvent,
    ConsumeStartEvent,
    EndTransactionEvent,
    PublishEvent,
    RecallEvent,
    TraceEvent,
)
from ariane.protocol import trace_codec
from ariane.reports.journey_steps import journey_steps
from ariane.reports.trace_steps import TraceStep
from ariane.tables.table_home import Home

TRACES_MAX = 2_000  # trace messages of one message id and broker
COPIES_MAX = 100  # records of one topic and broker
GROUPS_MAX = 200  # whose retries and dead letters are looked up
CLOCK_RANGE_MS = 120_000  # clocks of the minutes before and after a step are shown, too


class TracedMessage(NamedTuple):
    """Facts of a message that its traces contain; empty if they do not."""

    topic: str = ""
    tags: str = ""
    keys: str = ""


class CarriedEvents(NamedTuple):
    """Events from a trace topic.

    Attributes:
        carried: The events.
        fault: Why nothing was read, or what is missing; empty otherwise.
        unavailable: Servers that did not respond, with the reason.
    """

    carried: list[CarriedEvent]
    fault: str
    unavailable: list[str]


class FetchedTrace(NamedTuple):
    """Steps from a trace topic.

    Attributes:
        trace_topic: The topic.
        trace: Steps and clocks.
        facts: Facts of the message.
        fault: Why nothing was read, or what is missing; empty otherwise.
        unavailable: Servers that did not respond, with the reason.
    """

    trace_topic: str
    trace: LiveTrace
    facts: TracedMessage
    fault: str
    unavailable: list[str]


class TableTrace(NamedTuple):
    """Steps from the pipeline's tables.

    Attributes:
        steps: In order.
        facts: Facts of the message.
        clocks: Bounds of the clients' clocks by IP address, from many messages.
        as_of_ms: Time up to which the tables are complete; None without data.
        warnings: Why data may be missing.
    """

    steps: list[TraceStep]
    facts: TracedMessage
    clocks: dict[str, HostClock]
    as_of_ms: int | None
    warnings: list[str]


async def fetch_live_trace(admin: Admin, message_id: str, trace_topic: str, *, topic: str = "") -> FetchedTrace:
    """Return the steps of a message from a trace topic, with times corrected by its stored records.

    `topic` is that of the message, in case no send was traced; empty: only the traces name it.
    """
    events = await read_trace_topic(admin, message_id, trace_topic)
    facts = _facts_of(events.carried, message_id)
    unavailable = list(events.unavailable)
    records: list[ReceivedMessage] = []
    own_topic = facts.topic or topic
    if own_topic:
        try:
            copies = await find_copies(admin, message_id, [own_topic], groups_of(events.carried, message_id))
        except ArianeError as error:
            unavailable.append(f"Stored records are unknown: {error}")
        else:
            records = copies.messages
            unavailable += [str(broker) for broker in copies.unavailable]
    trace = await build_live_trace(message_id, events.carried, records)
    return FetchedTrace(
        trace_topic, trace, facts._replace(topic=own_topic), events.fault, list(dict.fromkeys(unavailable))
    )


async def read_trace_topic(admin: Admin, message_id: str, trace_topic: str) -> CarriedEvents:
    """Return the events of a message from a trace topic, and of others that were in the same trace messages."""
    try:
        carriers = await admin.query_by_key(trace_topic, message_id, messages_max=TRACES_MAX)
    except RouteNotFound:
        return CarriedEvents([], f"trace topic {trace_topic} does not exist", [])
    except ArianeError as error:
        return CarriedEvents([], str(error), [])
    # Clients choose the number and size of trace messages: to decode them may take a second.
    carried = await asyncio.to_thread(decode_carriers, carriers.messages)
    truncated = [f"{broker}: {reason}" for broker, reason in carriers.truncated.items()]
    return CarriedEvents(carried, "; ".join(truncated), [str(broker) for broker in carriers.unavailable])


async def find_copies(admin: Admin, message_id: str, topics: Iterable[str], groups: Sequence[str]) -> QueryResult:
    """Return the records with a unique key in topics, among pending messages, and among retries and dead letters of groups.

    Only the first GROUPS_MAX groups are looked up.
    """
    some = groups[:GROUPS_MAX]
    names = {*topics, *PENDING_TOPICS, *map(retry_topic, some), *map(dlq_topic, some)}
    return await admin.query_topics(sorted(names), message_id, messages_max=COPIES_MAX)


async def build_live_trace(
    message_id: str, carried: Sequence[CarriedEvent], records: Iterable[ReceivedMessage]
) -> LiveTrace:
    """Return the steps of a message; records of other messages are ignored."""
    copies = [stored_copy(record) for record in records if record.message_id == message_id]
    return await asyncio.to_thread(live_trace, message_id, carried, copies)


def groups_of(carried: Iterable[CarriedEvent], message_id: str) -> list[str]:
    """Return the consumer groups of a message's events."""
    groups = {
        record.event.group
        for record in carried
        if isinstance(record.event, ConsumeStartEvent | ConsumeEndEvent)
        and message_id in record.event.message_id.split(",")
    }
    return sorted(groups - {""})


def decode_carriers(messages: Iterable[ReceivedMessage]) -> list[CarriedEvent]:
    """Return the events of trace messages; records that cannot be decoded, or have impossible numbers, are skipped."""
    carried = []
    for message in messages:
        offsets = clock_offset.of_text(message.properties.get(clock_offset.PROPERTY, ""))
        for event in trace_codec.decode(message.body)[0]:
            if _has_possible_numbers(event):
                measured = clock_offset.to_broker(offsets, getattr(event, "store_host", ""))
                clock = None if measured is None else HostClock(*measured)
                carried.append(CarriedEvent(event, message.born_host, message.store_ms, clock))
    return carried


def _has_possible_numbers(event: TraceEvent) -> bool:
    """Return whether times and durations fit into 64 bits, as those of every client do; the codec accepts any digits."""
    numbers = (event.timestamp_ms, getattr(event, "cost_ms", None), getattr(event, "retry_times", None))
    return all(number is None or -(2**63) <= number < 2**63 for number in numbers)


def stored_copy(record: ReceivedMessage) -> StoredCopy:
    """Return a record as a step of its message."""
    queue = record.queue
    position = f"{queue.broker} queue {queue.queue_id} offset {record.queue_offset:,}"
    return StoredCopy(
        queue.topic, position, record.store_host, record.store_ms, record.reconsume_times, record.offset_message_id
    )


def _facts_of(carried: Sequence[CarriedEvent], message_id: str) -> TracedMessage:
    events = [record.event for record in carried if message_id in record.event.message_id.split(",")]
    for event in events:
        if isinstance(event, PublishEvent | EndTransactionEvent) and event.topic:
            return TracedMessage(event.topic, event.tags, event.keys)
    # The trace of a send may be deleted before its message is recalled; only the topic is in both.
    topics = (event.topic for event in events if isinstance(event, RecallEvent))
    keys = (event.keys for event in events if isinstance(event, ConsumeStartEvent | ConsumeEndEvent))
    return TracedMessage(next(topics, ""), keys=next(keys, ""))


def read_table_trace(tables_dir: Home, message_id: str, now_ms: int) -> TableTrace:
    """Return the steps of a message from the pipeline's tables. Blocks: reads files."""
    from ariane.reports import trace_lookup
    from ariane.reports.tables.pipeline_status import freshness
    from ariane.tables import JOURNEYS

    empty = TableTrace([], TracedMessage(), {}, None, [])
    try:
        # The freshness is read first: rows that are added in between do no harm.
        table_freshness = freshness(tables_dir, JOURNEYS, now_ms)
        rows = trace_lookup.find_journeys(tables_dir, message_id=message_id).rows
    except StoreError as error:
        return empty._replace(warnings=[str(error)])
    as_of_ms, warnings = table_freshness.as_of_ms, list(map(report_text, table_freshness.warnings))
    rows = [row for row in rows if row["message_id"] == message_id]
    if not rows:
        return empty._replace(as_of_ms=as_of_ms, warnings=warnings)
    steps = journey_steps(rows)
    first = rows[0]
    facts = TracedMessage(first["topic"] or "", first["tags"] or "", first["keys"] or "")
    return TableTrace(steps, facts, _read_clocks(tables_dir, steps), as_of_ms, warnings)


def _read_clocks(tables_dir: Home, steps: Sequence[TraceStep]) -> dict[str, HostClock]:
    """Return the bounds of the clocks of all clients in the minutes of their steps.

    An address with several clocks has none.
    """
    from ariane.reports.report import utc_time
    from ariane.reports.tables import table_views
    from ariane.tables import CLOCKS

    hosts = sorted({ip_of(step.host) for step in steps if step.host and step.client_ms is not None})
    if not hosts:
        return {}
    first_ms = min(step.start_ms for step in steps) - CLOCK_RANGE_MS
    last_ms = max(step.last_ms for step in steps) + CLOCK_RANGE_MS
    # Of several rows of a minute each holds (see the table's description).
    statement = (
        "SELECT host, client, max(lower_ms) AS lower_ms, min(upper_ms) AS upper_ms FROM clocks "
        "WHERE minute BETWEEN $1 AND $2 AND list_contains($3, host) GROUP BY host, client, minute ORDER BY host, minute"
    )
    values: list[Any] = [utc_time(first_ms), utc_time(last_ms), hosts]
    with table_views.open_views(tables_dir, table_views.files_between(CLOCKS, first_ms, last_ms)) as sql:
        rows = table_views.query(sql, statement, values)
    by_host: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_host.setdefault(row["host"], []).append(row)
    one_clock = {host: minutes for host, minutes in by_host.items() if len({row["client"] for row in minutes}) == 1}
    return {host: _bounds_in_all(minutes) for host, minutes in one_clock.items()}


def _bounds_in_all(minutes: Sequence[dict[str, Any]]) -> HostClock:
    """Return the bounds that hold in all of these minutes; a contradiction only if there is one in each of them."""
    clocks = [HostClock(row["lower_ms"], row["upper_ms"]) for row in minutes]
    first, *others = [clock for clock in clocks if not clock.is_contradiction] or clocks[:1]
    return reduce(lambda clock, other: hull(clock, other) or clock, others, first)
