"""Dead letters of a consumer group: a list by time, and each next to its original message.

The list is read like that of messages: backwards in time, bounded, and it says what was not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec
from pydantic import Field

from ariane.cluster.admin import Admin
from ariane.cluster.messages.message_search import MessageFilter
from ariane.cluster.messages.message_sending import to_original
from ariane.cluster.messages.replay import RecordId, ReplayOutcome, original_topic
from ariane.console.areas.admin_results import texts_of
from ariane.console.areas.dead_letters.dead_letter_selection import (
    DeadLetterFilter,
    check_group_name,
    message_filter,
    query_key,
)
from ariane.console.areas.dead_letters.resend_journal import read_outcomes
from ariane.console.areas.messages.body_encoding import ENCODINGS, BodyEncoding
from ariane.console.areas.messages.message_body import hex_rows, preview, read_text
from ariane.console.areas.messages.message_lookup import SearchProgress, scan_progress, truncation_texts, with_range
from ariane.console.areas.messages.message_rows import PREVIEW_BYTES
from ariane.console.areas.messages.message_scan import ScanBudget, TopicScan
from ariane.console.services import ConsoleServices
from ariane.console.texts.visible_text import visible
from ariane.console.web.form_fields import OptionalInt
from ariane.console.web.view_model import PartialView, View
from ariane.errors import ArianeError, MessageRefused, RouteNotFound
from ariane.model.message import KEYS, ORIGIN_MESSAGE_ID, RESERVED, TAGS, ReceivedMessage
from ariane.model.topic import dlq_topic

BODY_CHARS = 20_000
HEX_BYTES = 512
SET_BY_SERVERS = RESERVED - {KEYS, TAGS}  # these two are the application's, although they have fields of their own


class DeadLetterQuery(DeadLetterFilter):
    """Which dead letters to list, newest first."""

    before: OptionalInt = Field(None, ge=0)
    """Continue with those that became dead before this time, in milliseconds since the epoch."""
    size: int = Field(50, ge=1, le=200)
    """Rows of a page; twice as many if they became dead in the same millisecond."""


class ResentView(View):
    """The result of resending a dead letter from this console."""

    state: str
    """ok: stored; failed: not sent; sending: it is not known whether the copy was stored."""
    at_ms: int
    """When, in milliseconds since the epoch."""
    topic: str | None
    """Topic of the copy."""
    message_id: str | None
    """Unique key of the copy."""
    error: str | None
    """Why it failed; null if it did not."""


class _StoredRecord(View):
    broker: str
    queue_id: int
    """Number of its queue."""
    queue_offset: int
    reconsume_times: int
    """Number of redeliveries before."""
    size: int
    """Size of the body in bytes."""


class DeadLetterRow(_StoredRecord):
    """A dead letter."""

    message_id: str
    """Unique key, the same as that of its original message."""
    offset_message_id: str
    """Offset id: identifies this dead letter."""
    original_topic: str | None
    """Topic to which it was first sent; null if the message does not contain it."""
    keys: list[str]
    """Business keys."""
    tag: str
    born_ms: int
    """When it was first sent, by its producer's clock, in milliseconds since the epoch."""
    dead_ms: int
    """When it became a dead letter, by the broker's clock."""
    preview: str | None
    """Begin of the body in one line; null if it is not text."""
    resent: ResentView | None
    """The result of resending it from this console; null if it was not resent."""


class DeadLetterListView(PartialView):
    """A page of a group's dead letters, newest first."""

    group: str
    topic: str
    """Dead-letter topic of the group."""
    matching: int | None
    """Number of dead letters that match; null if not all of the range were read, or a broker did not respond."""
    filter: DeadLetterFilter
    """The filter that was applied."""
    items: list[DeadLetterRow]
    progress: SearchProgress
    """What was read, and the value of `before` to continue (`nextUntil`)."""


class LetterCopy(_StoredRecord):
    """A stored message: the dead letter, or its original."""

    topic: str
    """Topic that stores it."""
    offset_message_id: str
    born_ms: int
    """When it was sent, by the clock of its sender."""
    born_host: str
    """Address of its sender."""
    store_ms: int
    """When it was stored, by the broker's clock."""
    body: str | None
    """Body as text, at most its first 20,000 characters; null if it is not text."""
    encoding: BodyEncoding | None
    """Encoding in which it is read; null: it is not text."""
    is_guessed: bool
    """Whether the encoding is a guess: the body is not UTF-8, and none was chosen."""
    body_hex: str | None
    """Begin of a body that is not text."""

    @property
    def encodings(self) -> dict[BodyEncoding, str]:
        """Names of the encodings that the reader can choose."""
        return ENCODINGS


class PropertyRow(View):
    """A property of a dead letter and of its original."""

    name: str
    original: str | None
    """Value in the original; null: it has none, or the original was not found."""
    dead: str | None
    """Value in the dead letter; null: it has none."""
    state: Literal["same", "changed", "added", "removed", "unknown"]
    """added, removed: only the dead letter or only the original has it; unknown: the original was not found."""
    is_reserved: bool
    """Whether RocketMQ sets it, and not the application."""


class DeadLetterView(View):
    """A dead letter next to its original message."""

    as_of_ms: int
    """Time of the query, in milliseconds since the epoch."""
    group: str
    message_id: str
    """Unique key of both."""
    dead: LetterCopy
    original: LetterCopy | None
    """The original message; null if it was not found."""
    original_missing: str | None
    """Why the original was not found; null if it was."""
    same_body: bool | None
    """Whether the bodies are equal; null without the original."""
    age_ms: int | None
    """Time from the storing of the original to that of the dead letter; null without the original."""
    properties: list[PropertyRow]
    """Properties of both; the differing ones first."""
    resent: ResentView | None
    """The result of resending it from this console; null if it was not resent."""


class _LetterPage(NamedTuple):
    """Part of a list, newest first."""

    items: list[DeadLetterRow]
    unavailable: list[str]
    progress: SearchProgress


class _PageRows:
    """Rows of a page, by record. Of the messages themselves only their positions stay in memory."""

    def __init__(self, outcomes: dict[RecordId, ReplayOutcome]) -> None:
        self._outcomes = outcomes
        self._rows: dict[RecordId, DeadLetterRow] = {}

    def keep(self, message: ReceivedMessage) -> ReceivedMessage:
        """Store the row of a message, and return the message without its content."""
        self._rows[record_id(message)] = letter_row(message, self._outcomes)
        return msgspec.structs.replace(message, body=b"", properties={})

    def rows_of(self, messages: Iterable[ReceivedMessage]) -> list[DeadLetterRow]:
        """Return the rows of messages."""
        return [self._rows[record_id(message)] for message in messages]


async def dead_letter_list(services: ConsoleServices, group: str, query: DeadLetterQuery) -> DeadLetterListView:
    """Return one page of a group's dead letters, newest first. A group without dead letters has an empty list."""
    check_group_name(group)
    as_of_ms = services.clock.now_ms()
    wanted = message_filter(query, as_of_ms)
    if query.before is not None:
        until_ms = query.before if wanted.until_ms is None else min(query.before, wanted.until_ms)
        wanted = msgspec.structs.replace(wanted, until_ms=until_ms)
    rows = _PageRows(await asyncio.to_thread(read_outcomes, services.settings.data_dir, group))
    admin = services.admin()
    page = _LetterPage([], [], SearchProgress(topics=1, all_topics=1))
    try:
        if wanted.key is None:
            scan = TopicScan(
                reader=admin,
                clock=services.clock,
                selection=wanted,
                budget=ScanBudget(matches=query.size),
                keep=rows.keep,
            )
            result = await scan.run(dlq_topic(group))
            page = _LetterPage(rows.rows_of(result.messages), texts_of(result.unavailable), scan_progress(result))
        else:
            page = await _query_page(admin, group, wanted, rows)
    except RouteNotFound:
        # Brokers create the topic with the first dead letter. A group that does not exist is an error all the same.
        await admin.check_group(group)
    progress = page.progress
    is_whole = not (page.unavailable or progress.next_until or progress.truncated or query.before is not None)
    return DeadLetterListView(
        as_of_ms=as_of_ms, unavailable=page.unavailable, group=group, topic=dlq_topic(group),
        matching=len(page.items) + progress.omitted if is_whole else None,
        filter=DeadLetterFilter(**query.model_dump(include=set(DeadLetterFilter.model_fields))),
        items=page.items, progress=with_range(progress, wanted),
    )  # fmt: skip


async def _query_page(admin: Admin, group: str, wanted: MessageFilter, rows: _PageRows) -> _LetterPage:
    """Look up a key or unique key in the brokers' indexes, which need no pages."""
    found, messages = await query_key(admin, dlq_topic(group), wanted)
    progress = SearchProgress(topics=1, all_topics=1, truncated=truncation_texts(found))
    return _LetterPage(rows.rows_of(map(rows.keep, reversed(messages))), texts_of(found.unavailable), progress)


async def dead_letter(
    services: ConsoleServices, group: str, message_id: str, encoding: BodyEncoding | None = None
) -> DeadLetterView:
    """Return the dead letter with an offset id or unique key next to its original message.

    Bodies are in `encoding`; None: UTF-8, or a guess if they are not.

    Raises:
        ServerUnavailable: it is on no broker that responded, and one did not.
    """
    check_group_name(group)
    as_of_ms = services.clock.now_ms()
    admin = services.admin()
    message = await admin.find_dead_letter(group, message_id)
    original: ReceivedMessage | None = None
    missing: str | None = None
    try:
        original = await find_original(admin, message)
    except ArianeError as error:
        missing = str(error)
    else:
        missing = "it is not stored any more" if original is None else None
    outcomes = await asyncio.to_thread(read_outcomes, services.settings.data_dir, group)
    return DeadLetterView(
        as_of_ms=as_of_ms,
        group=group,
        message_id=message.message_id,
        dead=letter_copy(message, encoding),
        original=None if original is None else letter_copy(original, encoding),
        original_missing=missing,
        same_body=None if original is None else original.body == message.body,
        age_ms=None if original is None else message.store_ms - original.store_ms,
        properties=compare_properties(message, original),
        resent=_resent(outcomes.get(record_id(message))),
    )


async def find_original(admin: Admin, message: ReceivedMessage) -> ReceivedMessage | None:
    """Return the message that became a dead letter; None if it is not stored any more.

    Raises:
        MessageRefused: the dead letter does not contain its original topic.
        RouteNotFound: its original topic does not exist any more.
        ArianeError: a broker did not respond.
    """
    topic = original_topic(to_original(message))
    result = await admin.query_by_unique_key(topic, message.message_id)
    if result.messages:
        # A producer that sends again after a time-out stores two messages with one key.
        origin = message.properties.get(ORIGIN_MESSAGE_ID)
        return next((message for message in result.messages if message.offset_message_id == origin), result.messages[0])
    if result.unavailable:
        raise result.not_found(f"original of {message.message_id} in topic", topic)
    return None


def compare_properties(dead: ReceivedMessage, original: ReceivedMessage | None) -> list[PropertyRow]:
    """Return the properties of a dead letter and of its original; the differing ones of the application first."""
    before = original.properties if original is not None else {}
    rows = []
    for name in sorted({*before, *dead.properties}):
        first, last = before.get(name), dead.properties.get(name)
        state: Literal["same", "changed", "added", "removed", "unknown"]
        if original is None:
            state = "unknown"
        elif first == last:
            state = "same"
        else:
            state = "added" if first is None else "removed" if last is None else "changed"
        rows.append(
            PropertyRow(
                name=visible(name),
                original=None if first is None else visible(first),
                dead=None if last is None else visible(last),
                state=state,
                is_reserved=name in SET_BY_SERVERS,
            )
        )
    return sorted(rows, key=lambda row: (row.state == "same", row.is_reserved, row.name))


def letter_row(message: ReceivedMessage, outcomes: dict[RecordId, ReplayOutcome]) -> DeadLetterRow:
    """Return the row of a dead letter."""
    head = message.body[:PREVIEW_BYTES]
    is_text = read_text(head, is_part=len(message.body) > len(head))[0] is not None
    try:
        topic = original_topic(to_original(message))
    except MessageRefused:
        topic = None
    return DeadLetterRow.of(
        message,
        message.queue,
        original_topic=topic,
        keys=[visible(key) for key in message.keys],
        tag=visible(message.tags),
        dead_ms=message.store_ms,
        size=len(message.body),
        preview=preview(message.body) if is_text else None,
        resent=_resent(outcomes.get(record_id(message))),
    )


def letter_copy(message: ReceivedMessage, encoding: BodyEncoding | None = None) -> LetterCopy:
    """Return a message as the comparison shows it."""
    head = message.body[: BODY_CHARS * 4]  # a character has at most four bytes
    text, used = read_text(head, encoding, len(message.body) > len(head))
    return LetterCopy.of(
        message.queue,
        message,
        size=len(message.body),
        body=None if text is None else visible(text[:BODY_CHARS]),
        encoding=used,
        is_guessed=encoding is None and used not in (None, "utf-8"),
        body_hex=hex_rows(message.body[:HEX_BYTES]) if text is None else None,
    )


def record_id(message: ReceivedMessage) -> RecordId:
    """Return the position of a message, which identifies it in a journal."""
    queue = message.queue
    return RecordId(queue.topic, queue.broker, queue.queue_id, message.queue_offset)


def _resent(outcome: ReplayOutcome | None) -> ResentView | None:
    return None if outcome is None else ResentView.of(outcome)
