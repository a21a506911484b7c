"""Rows of lists of messages."""

from __future__ import annotations

import msgspec

from ariane.console.areas.message_body import preview, visible
from ariane.console.web.view_model import View
from ariane.model.message import KEYS, TAGS, UNIQ_KEY, ReceivedMessage

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
    """Name of the broker."""
    queue_id: int
    """Queue of the topic on that broker."""
    queue_offset: int
    """Offset in the queue."""
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


def message_row(message: ReceivedMessage) -> MessageRow:
    """Return the row of a message."""
    return MessageRow(
        message_id=message.message_id,
        offset_message_id=message.offset_message_id,
        topic=message.queue.topic,
        original_topic=message.topic,
        broker=message.queue.broker,
        queue_id=message.queue.queue_id,
        queue_offset=message.queue_offset,
        stored_ms=message.store_ms,
        born_ms=message.born_ms,
        tag=visible(message.tags),
        keys=[visible(key) for key in message.keys],
        reconsume_times=message.reconsume_times,
        stored_size=message.stored_size,
        preview=preview(message.body),
    )


def without_body(message: ReceivedMessage) -> ReceivedMessage:
    """Return a message as far as its row needs it: a list may have thousands, with megabytes each."""
    needed = (UNIQ_KEY, KEYS, TAGS)
    properties = {name: message.properties[name] for name in needed if name in message.properties}
    return msgspec.structs.replace(message, body=message.body[:PREVIEW_BYTES], properties=properties)
