"""The search box for messages: recognises an id or key, or reads a topic backwards for tag, text and time.

    text ─→ recognise ─┬─ offset id ────────────→ one record; if there is none, it may be a unique key
                       ├─ unique key, key ──────→ index of the topic, or of all topics, some hundred at a time
                       └─ empty ────────────────→ TopicScan: newest first, bounded

The view says what was searched and what was not, and how to continue.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, NamedTuple

from pydantic import Field

from ariane.cluster.admin import Admin
from ariane.cluster.messages.message_query import EVER_MS, PENDING_TOPICS, QueryResult, is_offset_id
from ariane.cluster.messages.message_search import MessageFilter
from ariane.console.areas.messages.message_rows import (
    MessageRow,
    RowWithCopies,
    group_copies,
    message_row,
    without_body,
)
from ariane.console.areas.messages.message_scan import ScanBudget, ScanResult, TopicScan
from ariane.console.areas.record_lookup import view_record
from ariane.console.services import ConsoleServices
from ariane.console.texts import preferences
from ariane.console.web.form_fields import TEXT_MAX, Name, check_topic, parse_time_range
from ariane.console.web.view_model import PartialView, View
from ariane.errors import ConnectionLost, RequestTimeout, UsageError
from ariane.model.ids import parse_offset_message_id, recalled_key
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, TRACE_TOPIC, is_system_topic

MATCHES = 50
INDEX_MATCHES_MAX = 500  # of one topic and broker, the newest
TOPICS_AT_ONCE = 200
ALL_TOPICS_S = 3.0  # time for the search through all topics of one page

_UNIQUE_KEY = re.compile(r"(?:[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})")


class SearchKind(Enum):
    """How a text was searched."""

    OFFSET_ID = "offset id"
    UNIQUE_KEY = "unique key"
    KEY = "key"
    SCAN = "scan"
    """Reading the queues, for a tag, a text in the body, or times alone."""


class MessageQueryForm(View):
    """Which messages to search."""

    q: Name = ""
    """Unique key, offset id (IPv4 or IPv6), recall handle, or business key; empty: read the topic."""
    topic: Name = ""
    """Topic that stores the messages, also `%RETRY%GROUP` or `%DLQ%GROUP`; empty: all topics, for an id or key only."""
    tag: Name = ""
    """Tag of the messages."""
    text: Annotated[str, Field(max_length=TEXT_MAX)] = ""
    """Text that the body contains, as UTF-8."""
    since: Name = ""
    """Stored since: a duration before now (15m), a date and time, or ms since the epoch."""
    until: Name = ""
    """Stored before, in the same forms."""
    after: Name = ""
    """Continue a search in all topics after this one."""


class SearchProgress(View):
    """What a search read, and what it did not."""

    topics: int
    """Number of topics that were searched."""
    all_topics: int
    """Number of topics that there are to search."""
    read: int | None = None
    """Messages that were read; null if an index was used."""
    unread: int | None = None
    """Older messages of the time range that were not read; null if an index was used."""
    complete_since_ms: int | None = None
    """All messages stored at this time or later were read, ms since the epoch; null: all of the range."""
    omitted: int = 0
    """Matches that are not shown because too many were stored in the same ms."""
    truncated: list[str] = Field(default_factory=list)
    """Brokers that have more matches, with the reason why these are not shown."""
    next_topic: str = ""
    """Value of `after` to continue in further topics; empty at the end."""
    next_until: str = ""
    """Value of `until` to continue with older messages; empty at the end."""
    since_ms: int | None = None
    """Begin of the store times that were searched, ms since the epoch; null: no limit."""
    until_ms: int | None = None
    """Their end; null: no limit."""


class MessageListView(PartialView):
    """Result of a search."""

    unavailable: list[str]
    """Servers that did not respond, with the reason: their messages are missing."""
    kind: SearchKind
    """How the text was searched."""
    topic: str
    """Topic that was searched; empty: all topics."""
    items: list[MessageRow]
    """Messages, newest first."""
    progress: SearchProgress
    """What was searched."""

    @property
    def grouped(self) -> list[RowWithCopies]:
        """The messages as the page lists them, with their copies."""
        return group_copies(self.items)


def recognise(text: str) -> list[SearchKind]:
    """Return the kinds of names that a text can be, the most likely first."""
    if is_offset_id(text):
        # Practically no unique key looks like an offset id, but it is not impossible.
        return [SearchKind.OFFSET_ID, SearchKind.UNIQUE_KEY]
    return [SearchKind.UNIQUE_KEY if _UNIQUE_KEY.fullmatch(text) else SearchKind.KEY]


async def search_messages(services: ConsoleServices, form: MessageQueryForm) -> MessageListView:
    """Return the messages that match."""
    now_ms = services.clock.now_ms()
    check_topic(form.topic)
    since_ms, until_ms = parse_time_range(form.since, form.until, now_ms, zone=preferences.current().zone)
    selection = MessageFilter(tag=form.tag or None, text=form.text or None, since_ms=since_ms, until_ms=until_ms)
    async with services.admin() as admin:
        view = await _search(services, admin, form, selection)
    return view.model_copy(update={"progress": with_range(view.progress, selection)})


def with_range(progress: SearchProgress, selection: MessageFilter) -> SearchProgress:
    """Return what a search read, with the range of store times that it was limited to."""
    return progress.model_copy(update={"since_ms": selection.since_ms, "until_ms": selection.until_ms})


async def _search(
    services: ConsoleServices, admin: Admin, form: MessageQueryForm, selection: MessageFilter
) -> MessageListView:
    text = recalled_key(form.q)
    if not text:
        return await _scan(services, admin, form, selection)
    if SearchKind.OFFSET_ID in recognise(text):
        record = await _view_record(services, admin, text, selection)
        if record is not None:
            return record
    if form.topic:
        matches = await query_index(admin, form.topic, text, selection)
        return _index_view(services, form.topic, text, matches, selection, SearchProgress(topics=1, all_topics=1))
    result = await query_all_topics(services, admin, text, form.after)
    progress = SearchProgress(topics=result.searched, all_topics=result.total, next_topic=result.next_topic)
    return _index_view(services, "", text, result.found, selection, progress)


async def _scan(
    services: ConsoleServices, admin: Admin, form: MessageQueryForm, selection: MessageFilter
) -> MessageListView:
    """Read a topic backwards."""
    if not form.topic:
        raise UsageError(
            "topic", None, "enter an id or key to search all topics, or a topic to search by tag, text or time"
        )
    scan = TopicScan(
        reader=admin, clock=services.clock, selection=selection, budget=ScanBudget(matches=MATCHES), keep=without_body
    )
    result = await scan.run(form.topic)
    return MessageListView(
        as_of_ms=services.clock.now_ms(),
        unavailable=[str(broker) for broker in result.unavailable],
        kind=SearchKind.SCAN,
        topic=form.topic,
        items=[message_row(message) for message in result.messages],
        progress=scan_progress(result),
    )


def scan_progress(found: ScanResult) -> SearchProgress:
    """Return what the scan of a topic read, and what it did not."""
    next_until = "" if found.complete_since_ms is None else str(found.complete_since_ms)
    return SearchProgress.of(found, topics=1, all_topics=1, next_until=next_until)


async def _view_record(
    services: ConsoleServices, admin: Admin, text: str, selection: MessageFilter
) -> MessageListView | None:
    """Return the record with an offset id; None if no broker has it."""
    unavailable: list[str] = []
    items: list[MessageRow] = []
    try:
        message = await view_record(admin, text)
    except (ConnectionLost, RequestTimeout) as error:
        unavailable = [f"Broker {parse_offset_message_id(text)[0]} did not respond: {error}"]
    else:
        if message is None:
            return None
        items = [message_row(message)] if selection.accepts(message) else []
    return MessageListView(
        as_of_ms=services.clock.now_ms(),
        unavailable=unavailable,
        kind=SearchKind.OFFSET_ID,
        topic="",
        items=items,
        progress=SearchProgress(topics=0, all_topics=0),
    )


async def query_index(
    admin: Admin, topic: str, text: str, selection: MessageFilter, messages_max: int = INDEX_MATCHES_MAX
) -> QueryResult:
    """Look up an id or key in the index of a topic, in the range of store times of a selection.

    The time in a unique key is by the client's clock, so it limits nothing. At most `messages_max` messages per broker.
    """
    result = QueryResult([])
    for spelling in _spellings(text):
        result = await admin.query_by_key(
            topic,
            spelling,
            begin_ms=selection.since_ms or 0,
            end_ms=EVER_MS if selection.until_ms is None else selection.until_ms,
            messages_max=messages_max,
        )
        if result.messages:
            break
    return result


class AllTopicsResult(NamedTuple):
    """Result of a look-up in the topics of a cluster, as far as its time allowed."""

    found: QueryResult
    searched: int  # number of topics
    total: int  # number of topics that there are
    next_topic: str  # where to continue; empty at the end


async def query_all_topics(services: ConsoleServices, admin: Admin, text: str, after: str = "") -> AllTopicsResult:
    """Look up an id or key in the indexes of all topics but those of traces, until the time of a page is spent.

    Continue after the topic `after`; empty: from the first one.
    """
    # Trace messages have the keys of the messages that they describe.
    traces = {TRACE_TOPIC, services.settings.trace_topic}
    topics = search_order([topic for topic in await admin.list_topics() if topic not in traces])
    first = next((number for number, topic in enumerate(topics, 1) if topic == after), 0)
    deadline_s = services.clock.monotonic() + ALL_TOPICS_S
    result = QueryResult([])
    position = first
    while position < len(topics) and (position == first or services.clock.monotonic() < deadline_s):
        some = topics[position : position + TOPICS_AT_ONCE]
        position += len(some)
        for spelling in _spellings(text):
            part = await admin.query_topics(some, spelling, messages_max=INDEX_MATCHES_MAX)
            # A broker that did not respond is one entry, however many topics were asked for.
            unavailable = {broker.addr: broker for broker in (*result.unavailable, *part.unavailable)}
            truncated = {**result.truncated, **part.truncated}
            result = QueryResult(result.messages + part.messages, tuple(unavailable.values()), truncated)
    next_topic = topics[position - 1] if position < len(topics) else ""
    return AllTopicsResult(result, position - first, len(topics), next_topic)


def search_order(topics: Sequence[str]) -> list[str]:
    """Return topics in the order of a search: of applications, of retries, of dead letters, pending messages, system topics."""

    def rank(topic: str) -> tuple[int, str]:
        if topic in PENDING_TOPICS:
            return 3, topic
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return 1 if topic.startswith(RETRY_PREFIX) else 2, topic
        return 4 if is_system_topic(topic) else 0, topic

    # Brokers have queues of pending messages without a topic that a name server lists.
    return sorted({*topics, *PENDING_TOPICS}, key=rank)


def _spellings(text: str) -> list[str]:
    """Return a text as it is, and a unique key in upper case, as clients write it."""
    return list(dict.fromkeys([text, text.upper()])) if _UNIQUE_KEY.fullmatch(text) else [text]


def _index_view(
    services: ConsoleServices,
    topic: str,
    text: str,
    result: QueryResult,
    selection: MessageFilter,
    progress: SearchProgress,
) -> MessageListView:
    messages = [message for message in result.messages if selection.accepts(message)]
    exact = [message for message in messages if message.message_id.upper() == text.upper()]
    is_id = bool(exact) or (not messages and _UNIQUE_KEY.fullmatch(text) is not None)
    # Messages of other ids may have this one as a business key, such as replies; they are not the message.
    messages = exact or messages
    return MessageListView(
        as_of_ms=services.clock.now_ms(),
        unavailable=[str(broker) for broker in result.unavailable],
        kind=SearchKind.UNIQUE_KEY if is_id else SearchKind.KEY,
        topic=topic,
        items=[
            message_row(message) for message in sorted(messages, key=lambda message: message.store_ms, reverse=True)
        ],
        progress=progress.model_copy(update={"truncated": truncation_texts(result)}),
    )


def truncation_texts(found: QueryResult) -> list[str]:
    """Return the brokers that have more matches, each with the reason why they are not in the result."""
    return [f"{broker}: {reason}" for broker, reason in found.truncated.items()]
