"""Rows of lists of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ariane.cluster.messages.message_query import PENDING_TOPICS
from ariane.console.areas.messages.message_body import preview
from ariane.console.texts.visible_text import visible
from ariane.console.web.view_model import View
from ariane.model.born_time import WAITED_PROPERTIES, compare_clocks
from ariane.model.message import KEYS, TAGS, UNIQ_KEY, ReceivedMessage
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX

PREVIEW_BYTES = 1024  # of a body that stays in memory for a list


class MessageRow(View):
    """A stored message in a list."""

    message_id: str
    """Unique key; the offset id of a message without one."""
    offset_message_id: str
    """Offset id, which identifies this record: its broker and position."""
    topic: str
    """Topic that stores the record."""
    original_topic: str
    """Topic that the message was sent to first; differs for retries and dead letters."""
    broker: str
    queue_id: int
    """Queue of the topic on that broker."""
    queue_offset: int
    stored_ms: int
    """Store time by the broker's clock, ms since the epoch."""
    born_ms: int
    """Time of sending by the producer's clock, ms since the epoch."""
    tag: str
    """Tag; empty without one."""
    keys: list[str]
    """Business keys."""
    reconsume_times: int
    """Number of redeliveries before this record."""
    stored_size: int
    """Bytes of the stored record."""
    preview: str
    """Beginning of the body, in one line."""
    clock_ahead_ms: int | None
    """The producer's clock was ahead of the broker's by at least this: the message was born after it was stored; null otherwise."""
    late_ms: int | None
    """Time from born to stored that no redelivery, delay or transaction explains: the producer's clock was behind, or the send
    was late; null without it."""


def message_row(message: ReceivedMessage) -> MessageRow:
    """Return the row of a message."""
    difference = compare_clocks(message)
    return MessageRow.of(
        message.queue,
        message,
        original_topic=message.topic,
        stored_ms=message.store_ms,
        tag=visible(message.tags),
        keys=[visible(key) for key in message.keys],
        preview=preview(message.body),
        clock_ahead_ms=difference.ahead_ms,
        late_ms=difference.late_ms,
    )


class RowWithCopies(NamedTuple):
    """A message with the records of the same unique key that clients and brokers created."""

    row: MessageRow
    copies: list[MessageRow]  # retries, dead letters, delayed and half messages, in the order of the list


def group_copies(rows: Sequence[MessageRow]) -> list[RowWithCopies]:
    """Return the rows with copies in internal topics under the original; without one under the first copy."""
    heads: dict[str, MessageRow] = {}
    for row in sorted(rows, key=is_copy):
        heads.setdefault(row.message_id, row)
    grouped = [RowWithCopies(row, []) for row in rows if row is heads[row.message_id] or not is_copy(row)]
    by_head = {id(item.row): item for item in grouped}
    for row in rows:
        head = heads[row.message_id]
        if is_copy(row) and row is not head:
            by_head[id(head)].copies.append(row)
    return grouped


def is_copy(row: MessageRow) -> bool:
    """Return whether a record is a retry, a dead letter, or pending."""
    return row.topic in PENDING_TOPICS or row.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def without_body(message: ReceivedMessage) -> ReceivedMessage:
    """Return a message as far as its row needs it: a list may have thousands, with megabytes each."""
    needed = {UNIQ_KEY, KEYS, TAGS, *WAITED_PROPERTIES}
    properties = {name: message.properties[name] for name in needed if name in message.properties}
    return msgspec.structs.replace(message, body=message.body[:PREVIEW_BYTES], properties=properties)
