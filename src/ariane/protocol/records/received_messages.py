"""Conversion of stored records to the messages that applications receive."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache

from ariane.errors import ProtocolError
from ariane.model import host
from ariane.model import message as names
from ariane.model.ids import offset_message_id
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.protocol.records import compression
from ariane.protocol.records import properties as properties_text
from ariane.protocol.records.record import Record

log = logging.getLogger("ariane.client")

_UNIQUE_KEY = f"{names.UNIQ_KEY}{properties_text.NAME_END}"


def to_received_message(
    stored: Record, properties: dict[str, str], queue: MessageQueue, unwrap: Callable[[str], str] | None = None
) -> ReceivedMessage:
    """Return a record as the application sees it: under its original topic, with an expanded body.

    If the body cannot be expanded, the message carries the stored bytes and unchanged flags, and `body_error` says why.

    Args:
        queue: Queue that it was read from, as the application names it.
        unwrap: Returns the application's name of a topic; None: that of the record.
    """
    topic = properties.get(names.RETRY_TOPIC, stored.topic)
    if unwrap is not None:
        topic = unwrap(topic)
    body, sys_flag, body_error = expand_body(stored.body, stored.sys_flag)
    offset_id = offset_message_id(stored.store_host, stored.offset)
    if stored.properties.count(_UNIQUE_KEY) > 1:
        # A Java 5.x broker appends the id of a batch to the properties of each message, behind the message's own id.
        properties[names.UNIQ_KEY] = properties_text.first_value(stored.properties, names.UNIQ_KEY)
    message_id = properties.get(names.UNIQ_KEY, offset_id)
    if body_error:
        log.error(
            "Cannot read the body of message %s at offset %d of %s: %s",
            message_id,
            stored.queue_offset,
            queue,
            body_error,
        )
    return ReceivedMessage(
        topic=topic,
        body=body,
        properties=properties,
        queue=queue,
        queue_offset=stored.queue_offset,
        commit_log_offset=stored.offset,
        message_id=message_id,
        offset_message_id=offset_id,
        born_ms=stored.born_ms,
        born_host=_host(stored.born_host),
        store_ms=stored.store_ms,
        store_host=_host(stored.store_host),
        reconsume_times=stored.reconsume_times,
        flag=stored.flag,
        sys_flag=sys_flag,
        stored_size=stored.size,
        body_error=body_error,
        body_crc=stored.body_crc,
        prepared_offset=stored.prepared_offset,
    )


def expand_body(body: bytes, sys_flag: int) -> tuple[bytes, int, str]:
    """Decompress a body.

    Returns:
        The body, its sysFlag without the compression bits, and an empty text. If the body cannot be expanded: the body and
        the sysFlag unchanged, and the reason.
    """
    if not sys_flag & names.COMPRESSED:
        return body, sys_flag, ""
    try:
        return compression.decompress(body, sys_flag), sys_flag & ~(names.COMPRESSED | names.COMPRESSION_MASK), ""
    except ProtocolError as error:
        return body, sys_flag, str(error)


def is_unreadable(message: ReceivedMessage) -> bool:
    """Return True if the body could not be expanded (it is still compressed) or its payload not decoded."""
    return bool(message.body_error)


# Every message of a broker carries the same few addresses, and formatting one costs more than the look-up.
@lru_cache(maxsize=4096)
def _host(packed: bytes) -> str:
    return host.text(packed)
