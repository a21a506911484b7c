"""Searches traces by business key or id, in the trace topic, in the message's topic, and in the pipeline's tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ariane.clock import ms_of
from ariane.console.areas.reports.table_queries import run_query
from ariane.console.areas.traces.trace_page import trace_topic_of
from ariane.console.areas.traces.trace_sources import decode_carriers
from ariane.console.areas.traces.trace_views import TracedListView, TracedMessageRow, TraceForm
from ariane.console.services import ConsoleServices
from ariane.console.texts.visible_text import visible
from ariane.console.web.form_fields import check_topic
from ariane.errors import RouteNotFound, ServerUnavailable, StoreError, UsageError
from ariane.model.ids import recalled_key
from ariane.model.message import ReceivedMessage
from ariane.model.trace_event import PublishEvent
from ariane.reports.trace_steps import StepSource
from ariane.tables.table_home import Home

if TYPE_CHECKING:
    from ariane.reports.trace_lookup import LookupResult

LISTED_MAX = 50  # messages of a key
CARRIERS_MAX = 500  # trace messages of a key that are read


class _Candidate(NamedTuple):
    """A message of a search, from one source."""

    message_id: str  # unique key
    topic: str  # empty: unknown
    keys: str  # space-separated
    tag: str  # empty: none or unknown
    at_ms: int | None  # of the trace or record
    source: StepSource  # where it was found


async def traced_messages(services: ConsoleServices, form: TraceForm) -> TracedListView:
    """Return the messages with a business key or id: from the trace topic, from their topic, and from the tables.

    Raises:
        UsageError: the query is incomplete, or a name is invalid.
    """
    name = trace_topic_of(services, form.trace_topic)
    if not form.q:
        raise UsageError("q", None, "enter a message id or a business key")
    check_topic(form.topic)
    text = recalled_key(form.q)
    candidates: list[_Candidate] = []
    warnings: list[str] = []
    unavailable: list[str] = []
    async with services.admin() as admin:
        try:
            carriers = await admin.query_by_key(name, text, messages_max=CARRIERS_MAX)
        except RouteNotFound:
            warnings.append(f"trace topic {name} does not exist")
        else:
            candidates += _traced_candidates(carriers.messages, text, form.topic)
            unavailable += [str(broker) for broker in carriers.unavailable]
            warnings += [f"{broker}: {reason}" for broker, reason in carriers.truncated.items()]
        if form.topic:
            stored = await admin.query_by_key(form.topic, text, messages_max=CARRIERS_MAX)
            unavailable += [str(broker) for broker in stored.unavailable]
            warnings += [f"{broker}: {reason}" for broker, reason in stored.truncated.items()]
            candidates += [
                _Candidate(
                    message.message_id,
                    message.topic,
                    " ".join(message.keys),
                    message.tags,
                    message.store_ms,
                    StepSource.BROKER,
                )
                for message in stored.messages
            ]
    from_tables, table_warnings, omitted = await _table_candidates(services, text, form.topic)
    rows = _merge_candidates([*candidates, *from_tables])
    return TracedListView(
        as_of_ms=services.clock.now_ms(),
        unavailable=list(dict.fromkeys(unavailable)),
        trace_topic=name,
        warnings=list(dict.fromkeys([*warnings, *table_warnings])),
        items=rows[:LISTED_MAX],
        omitted=max(0, len(rows) - LISTED_MAX) + omitted,
    )


def _traced_candidates(messages: Iterable[ReceivedMessage], text: str, topic: str) -> list[_Candidate]:
    """Return the messages whose trace records have a key or id."""
    by_id: dict[str, _Candidate] = {}
    for event, _, traced_ms, _ in decode_carriers(messages):
        keys = getattr(event, "keys", "")
        # A trace message carries the records of many messages.
        if text not in (*event.message_id.split(","), *keys.split()):
            continue
        for message_id in event.message_id.split(","):
            former = by_id.get(message_id, _Candidate(message_id, "", keys, "", traced_ms, StepSource.TRACE_TOPIC))
            at_ms = traced_ms if former.at_ms is None else min(former.at_ms, traced_ms)
            former = former._replace(at_ms=at_ms)
            if isinstance(event, PublishEvent):
                former = former._replace(topic=event.topic, tag=event.tags, keys=keys)
            by_id[message_id] = former
    # Records of consumption do not have a topic: they belong to any.
    return [candidate for candidate in by_id.values() if not topic or candidate.topic in ("", topic)]


async def _table_candidates(
    services: ConsoleServices, text: str, topic: str
) -> tuple[list[_Candidate], list[str], int]:
    tables_dir = services.tables_dir
    if tables_dir is None:
        return [], [], 0
    try:
        result = await run_query(lambda: _find_in_tables(tables_dir, text, topic), "the pipeline's tables")
    except (StoreError, ServerUnavailable) as error:
        return [], [str(error)], 0
    candidates = []
    for row in result.rows:
        at = row["stored_at"] or row["sent_corrected_at"] or row["sent_at"] or row["delivered_at"]
        at_ms = None if at is None else ms_of(at)
        names = (row["topic"] or "", row["keys"] or "", row["tags"] or "")
        candidates.append(_Candidate(row["message_id"], *names, at_ms, StepSource.TABLES))
    return candidates, [], result.omitted


def _find_in_tables(tables_dir: Home, text: str, topic: str) -> LookupResult:
    from ariane.reports import trace_lookup

    return trace_lookup.find_journeys(tables_dir, message_id=text, topic=topic or None, limit=LISTED_MAX)


def _merge_candidates(candidates: Iterable[_Candidate]) -> list[TracedMessageRow]:
    """Return one row per message, newest first."""
    by_id: dict[str, list[_Candidate]] = {}
    for candidate in candidates:
        by_id.setdefault(candidate.message_id, []).append(candidate)
    rows = []
    for message_id, some in by_id.items():
        times = [candidate.at_ms for candidate in some if candidate.at_ms is not None]
        rows.append(
            TracedMessageRow(
                message_id=message_id,
                topic=next((candidate.topic for candidate in some if candidate.topic), ""),
                keys=[
                    visible(key) for key in next((candidate.keys for candidate in some if candidate.keys), "").split()
                ],
                tag=visible(next((candidate.tag for candidate in some if candidate.tag), "")),
                at_ms=min(times, default=None),
                sources=sorted({candidate.source for candidate in some}, key=list(StepSource).index),
            )
        )
    return sorted(rows, key=lambda row: (-(row.at_ms or 0), row.message_id))
