"""Dead letters of a consumer group: a list by time, and each next to its original message."""

from __future__ import annotations

import asyncio
from typing import Literal

from pydantic import Field

from ariane.cluster.admin import Admin
from ariane.cluster.message_search import MessageFilter
from ariane.cluster.message_sending import to_original
from ariane.cluster.replay import RecordId, ReplayOutcome, original_topic
from ariane.console.areas.admin_results import texts_of
from ariane.console.areas.resend_journal import read_outcomes
from ariane.console.services import ConsoleServices
from ariane.console.web import preferences
from ariane.console.web.form_fields import parse_time_range
from ariane.console.web.paging import Page
from ariane.console.web.view_model import View
from ariane.errors import ArianeError, MessageRefused, RouteNotFound, UsageError
from ariane.model.message import KEYS, ORIGIN_MESSAGE_ID, RESERVED, TAGS, ReceivedMessage
from ariane.model.topic import dlq_topic, group_name_fault

READ_MAX = 10_000  # dead letters that one request reads
PREVIEW_CHARS = 200
BODY_CHARS = 20_000
SET_BY_SERVERS = RESERVED - {KEYS, TAGS}  # these two are the application's, although they have fields of their own


class DeadLetterFilter(View):
    """Selection of dead letters."""

    key: str = ""
    """Business key or unique key."""
    tag: str = ""
    """Tag."""
    text: str = ""
    """Text that the body contains."""
    since: str = ""
    """Became dead at this time or later: a duration before now (`2h`), a date and time (UTC unless it has an offset), or ms."""
    until: str = ""
    """Became dead before this time, in the same forms."""


class DeadLetterQuery(DeadLetterFilter):
    """Which dead letters to list, newest first."""

    page: int = Field(1, ge=1)
    """Number of the page, from 1."""
    size: int = Field(50, ge=1, le=200)
    """Rows of a page."""


class ResentView(View):
    """What became of a dead letter that was resent from this console."""

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


class DeadLetterRow(View):
    """A dead letter."""

    message_id: str
    """Unique key, the same as that of its original message."""
    offset_message_id: str
    """Offset id: identifies this dead letter."""
    broker: str
    """Broker that stores it."""
    queue_id: int
    """Number of its queue."""
    queue_offset: int
    """Offset in that queue."""
    original_topic: str | None
    """Topic to which it was first sent; null if the message does not contain it."""
    keys: list[str]
    """Business keys."""
    tag: str
    """Tag."""
    born_ms: int
    """When it was first sent, by its producer's clock, in milliseconds since the epoch."""
    dead_ms: int
    """When it became a dead letter, by the broker's clock."""
    reconsume_times: int
    """Number of redeliveries before."""
    size: int
    """Size of the body in bytes."""
    preview: str | None
    """Begin of the body; null if it is not text."""
    resent: ResentView | None
    """What became of it if it was resent from this console."""


class DeadLetterListView(View):
    """A page of a group's dead letters, newest first."""

    as_of_ms: int
    """Time of the query, in milliseconds since the epoch."""
    unavailable: list[str]
    """Brokers that did not respond, with the reason."""
    group: str
    """Name of the group."""
    topic: str
    """Dead-letter topic of the group."""
    matching: int | None
    """Number of dead letters that match; null if a broker did not respond."""
    filter: DeadLetterFilter
    """The filter that was applied."""
    letters: Page[DeadLetterRow]
    """The dead letters."""


class LetterCopy(View):
    """A stored message: the dead letter, or its original."""

    topic: str
    """Topic that stores it."""
    broker: str
    """Broker that stores it."""
    queue_id: int
    """Number of its queue."""
    queue_offset: int
    """Offset in that queue."""
    offset_message_id: str
    """Offset id."""
    born_ms: int
    """When it was sent, by the clock of its sender."""
    born_host: str
    """Address of its sender."""
    store_ms: int
    """When it was stored, by the broker's clock."""
    reconsume_times: int
    """Number of redeliveries before."""
    size: int
    """Size of the body in bytes."""
    body: str | None
    """Body as text, at most its first 20,000 characters; null if it is not text."""
    body_hex: str | None
    """Begin of a body that is not text."""


class PropertyRow(View):
    """A property of a dead letter and of its original."""

    name: str
    """Name of the property."""
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
    """Name of the group."""
    message_id: str
    """Unique key of both."""
    dead: LetterCopy
    """The dead letter."""
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
    """What became of it if it was resent from this console."""


def check_group_name(group: str) -> None:
    """Check a name before it becomes that of a topic and of a file.

    Raises:
        UsageError: it is not a valid group.
    """
    if reason := group_name_fault(group):
        raise UsageError("group", group, reason)


def message_filter(selection: DeadLetterFilter, now_ms: int) -> MessageFilter:
    """Return the filter of a search; dates without an offset are in the time zone of the reader.

    Raises:
        UsageError: a time is invalid, or the range is empty.
    """
    since_ms, until_ms = parse_time_range(selection.since, selection.until, now_ms, zone=preferences.current().zone)
    return MessageFilter(
        key=selection.key.strip() or None,
        tag=selection.tag.strip() or None,
        text=selection.text or None,
        since_ms=since_ms,
        until_ms=until_ms,
    )


async def dead_letter_list(services: ConsoleServices, group: str, query: DeadLetterQuery) -> DeadLetterListView:
    """Return one page of a group's dead letters, newest first. A group without dead letters has an empty list.

    Raises:
        UsageError: the group or a time is invalid, or the page is too far from the newest dead letter.
    """
    check_group_name(group)
    as_of_ms = services.clock.now_ms()
    wanted = query.page * query.size
    if wanted > READ_MAX:
        raise UsageError("page", query.page, f"only the newest {READ_MAX:,} can be listed; restrict the time range")
    admin = services.admin()
    messages: list[ReceivedMessage] = []
    matching: int | None = 0
    unavailable: list[str] = []
    try:
        found = await admin.search(dlq_topic(group), message_filter(query, as_of_ms), limit=wanted)
    except RouteNotFound:
        # Brokers create the topic with the first dead letter. A group that does not exist is an error all the same.
        await admin.check_group(group)
    else:
        matching, unavailable = found.matching, texts_of(found.unavailable)
        messages = found.messages[::-1][wanted - query.size :]
    outcomes = await asyncio.to_thread(read_outcomes, services.settings.data_dir, group)
    rows = [letter_row(message, outcomes) for message in messages]
    total = matching if matching is not None else (query.page - 1) * query.size + len(rows)
    page = Page[DeadLetterRow](
        items=rows, total=total, page=query.page, size=query.size, sort="dead", order="desc", q=query.text
    )
    return DeadLetterListView(
        as_of_ms=as_of_ms, unavailable=unavailable, group=group, topic=dlq_topic(group), matching=matching,
        filter=DeadLetterFilter(**query.model_dump(include=set(DeadLetterFilter.model_fields))), letters=page,
    )  # fmt: skip


async def dead_letter(services: ConsoleServices, group: str, message_id: str) -> DeadLetterView:
    """Return a dead letter next to its original message.

    Args:
        services: The console's services.
        group: Consumer group.
        message_id: Offset id of the dead letter, or its unique key.

    Raises:
        NotFound: the group has no such dead letter.
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
        dead=stored_copy(message),
        original=None if original is None else stored_copy(original),
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
    found = await admin.query_by_unique_key(topic, message.message_id)
    if found.messages:
        # A producer that sends again after a time-out stores two messages with one key.
        origin = message.properties.get(ORIGIN_MESSAGE_ID)
        return next((one for one in found.messages if one.offset_message_id == origin), found.messages[0])
    if found.unavailable:
        raise found.not_found(f"original of {message.message_id} in topic", topic)
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
        rows.append(PropertyRow(name=name, original=first, dead=last, state=state, is_reserved=name in SET_BY_SERVERS))
    return sorted(rows, key=lambda row: (row.state == "same", row.is_reserved, row.name))


def letter_row(message: ReceivedMessage, outcomes: dict[RecordId, ReplayOutcome]) -> DeadLetterRow:
    """Return the row of a dead letter."""
    text = body_text(message.body)
    try:
        topic = original_topic(to_original(message))
    except MessageRefused:
        topic = None
    return DeadLetterRow(
        message_id=message.message_id,
        offset_message_id=message.offset_message_id,
        broker=message.queue.broker,
        queue_id=message.queue.queue_id,
        queue_offset=message.queue_offset,
        original_topic=topic,
        keys=list(message.keys),
        tag=message.tags,
        born_ms=message.born_ms,
        dead_ms=message.store_ms,
        reconsume_times=message.reconsume_times,
        size=len(message.body),
        preview=None if text is None else text[:PREVIEW_CHARS],
        resent=_resent(outcomes.get(record_id(message))),
    )


def stored_copy(message: ReceivedMessage) -> LetterCopy:
    """Return a message as the comparison shows it."""
    text = body_text(message.body)
    return LetterCopy(
        topic=message.queue.topic,
        broker=message.queue.broker,
        queue_id=message.queue.queue_id,
        queue_offset=message.queue_offset,
        offset_message_id=message.offset_message_id,
        born_ms=message.born_ms,
        born_host=message.born_host,
        store_ms=message.store_ms,
        reconsume_times=message.reconsume_times,
        size=len(message.body),
        body=None if text is None else text[:BODY_CHARS],
        body_hex=message.body[:512].hex(" ") if text is None else None,
    )


def body_text(body: bytes) -> str | None:
    """Return a body as text; None if it is not UTF-8, or contains control characters that no text has."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if any(char < " " and char not in "\t\n\r" for char in text) else text


def record_id(message: ReceivedMessage) -> RecordId:
    """Return the position of a message, which identifies it in a journal."""
    queue = message.queue
    return RecordId(queue.topic, queue.broker, queue.queue_id, message.queue_offset)


def _resent(outcome: ReplayOutcome | None) -> ResentView | None:
    if outcome is None:
        return None
    return ResentView(
        state=outcome.state,
        at_ms=outcome.at_ms,
        topic=outcome.topic,
        message_id=outcome.message_id,
        error=outcome.error,
    )
