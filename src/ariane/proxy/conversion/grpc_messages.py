"""Messages of calls and stored messages: system properties ◀▶ properties of the wire. [SendMessageActivity, GrpcConverter]

    message_id UNIQ_KEY · tag TAGS · keys KEYS · message_group __SHARDINGKEY · delivery_timestamp TIMER_DELIVER_MS
    message_type TRANSACTION: TRAN_MSG · orphaned_transaction_recovery_duration CHECK_IMMUNITY_TIME_IN_SECONDS
    born_host __BORNHOST · born_timestamp BORN_TIMESTAMP · trace_context TRACE_CONTEXT · all others: user_properties

Bodies are stored and delivered decompressed: clients of 4.x expect zlib under a flag of 5.x that means gzip, and one of Node
expands gzip only.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Any, NamedTuple

from ariane.errors import ArianeError
from ariane.model import host, ids
from ariane.model import message as names
from ariane.model.topic_attributes import OF_MESSAGES, TopicMessageType, message_type
from ariane.protocol.records import compression
from ariane.protocol.records.record import Record
from ariane.proxy import api
from ariane.proxy.conversion import field_checks
from ariane.proxy.conversion.grpc_statuses import CallRefused, StatusCode

BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
TRACE_CONTEXT = "TRACE_CONTEXT"
DLQ_TOPIC, DLQ_MESSAGE_ID = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"
GZIP = 2  # Encoding
MD5 = 2  # DigestType
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


MESSAGE_TYPES = {kind: number for number, kind in enumerate(OF_MESSAGES, 1)}
"""MessageType of the protocol, by the type."""


class SendLimits(NamedTuple):
    """Limits of messages that are sent."""

    body_bytes_max: int
    delay_ms_max: int


class OutgoingMessage(NamedTuple):
    """A checked message of a call."""

    topic: str
    body: bytes
    properties: dict[str, str]
    kind: TopicMessageType
    born_ms: int
    message_group: str
    """Empty without one."""


def outgoing(message: Any, limits: SendLimits, now_ms: int) -> OutgoingMessage:
    """Return a message that is to be sent. Raise CallRefused if it is not valid."""
    system = message.system_properties
    topic = field_checks.topic_name(message.topic)
    user = dict(message.user_properties)
    field_checks.check_properties(user, system.tag, *system.keys)
    if not system.message_id.strip():
        raise CallRefused(StatusCode.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    properties = {**user, names.UNIQ_KEY: system.message_id}
    if system.HasField("tag") and system.tag:
        field_checks.check_tag(system.tag)
        properties[names.TAGS] = system.tag
    if system.keys:
        field_checks.check_keys(system.keys)
        properties[names.KEYS] = " ".join(system.keys)
    if system.HasField("message_group"):
        field_checks.check_message_group(system.message_group)
        properties[names.SHARDING_KEY] = system.message_group
    if system.HasField("delivery_timestamp"):
        properties[names.TIMER_DELIVER_MS] = str(_delivery_ms(system.delivery_timestamp, limits, now_ms))
    if system.message_type == MESSAGE_TYPES[TopicMessageType.TRANSACTION]:
        properties[names.TRAN_MSG] = "true"
        properties[names.PGROUP] = topic  # that of its sends; brokers of Apache do not add it
        if system.HasField("orphaned_transaction_recovery_duration"):
            properties[names.CHECK_IMMUNITY_TIME] = str(_recovery_s(system.orphaned_transaction_recovery_duration))
    if system.HasField("trace_context"):
        properties[TRACE_CONTEXT] = system.trace_context
    born_ms = system.born_timestamp.ToMilliseconds() if system.HasField("born_timestamp") else now_ms
    properties[BORN_TIMESTAMP] = str(born_ms)
    if system.born_host:
        properties[BORN_HOST] = system.born_host
    return OutgoingMessage(
        topic,
        _stored_body(message.body, system.body_encoding, limits.body_bytes_max),
        {name: value for name, value in properties.items() if value},
        message_type(properties),
        born_ms,
        system.message_group,
    )


def _delivery_ms(timestamp: Any, limits: SendLimits, now_ms: int) -> int:
    delivery_ms: int = timestamp.ToMilliseconds()
    if delivery_ms - now_ms > limits.delay_ms_max:
        text = f"the max delay time of message is too large, max is {limits.delay_ms_max}"
        raise CallRefused(StatusCode.ILLEGAL_DELIVERY_TIME, text)
    return max(delivery_ms, 0)


def _recovery_s(duration: Any) -> int:
    seconds: int = duration.seconds
    if seconds > field_checks.RECOVERY_S_MAX:
        text = f"the max transaction recovery time of message is too large, max is {field_checks.RECOVERY_S_MAX}"
        raise CallRefused(StatusCode.BAD_REQUEST, text)
    return max(seconds, 0)


def _stored_body(body: bytes, encoding: int, bytes_max: int) -> bytes:
    if not body:
        raise CallRefused(StatusCode.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if encoding == GZIP:
        stream = zlib.decompressobj(_GZIP_OR_ZLIB)
        try:
            body = stream.decompress(body, bytes_max + 1)
        except zlib.error as error:
            raise CallRefused(StatusCode.MESSAGE_CORRUPTED, f"the body is not in gzip format: {error}") from None
        if not stream.eof and len(body) <= bytes_max:
            raise CallRefused(StatusCode.MESSAGE_CORRUPTED, "the gzip body ends too early")
    if len(body) > bytes_max:
        raise CallRefused(StatusCode.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {bytes_max}")
    return body


def received(record: Record, topic: Any, *, handle: str = "") -> Any:
    """Return a stored message for a client.

    Args:
        record: The message.
        topic: The `Resource` that the client named.
        handle: Its receipt handle; empty in a check of a transaction.
    """
    properties = record.property_map()
    try:
        body = compression.decompress(record.body, record.sys_flag)
    except ArianeError:  # the client finds out that it cannot be read
        body = record.body
    message_id = properties.get(names.UNIQ_KEY) or ids.offset_message_id(record.store_host, record.offset)
    system: dict[str, Any] = {
        "keys": properties.get(names.KEYS, "").split(),
        "message_id": message_id,
        "body_digest": {"type": MD5, "checksum": hashlib.md5(body, usedforsecurity=False).hexdigest().upper()},
        "body_encoding": 1,
        "message_type": MESSAGE_TYPES[message_type(properties)],
        "born_timestamp": _timestamp(names.parse_ms(properties.get(BORN_TIMESTAMP, "")) or record.born_ms),
        "born_host": properties.get(BORN_HOST) or host.text(record.born_host),
        "store_timestamp": _timestamp(record.store_ms),
        "store_host": host.text(record.store_host),
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "delivery_attempt": record.reconsume_times + 1,
    }
    if handle:
        system["receipt_handle"] = handle
    if tag := properties.get(names.TAGS):
        system["tag"] = tag
    if group := properties.get(names.SHARDING_KEY):
        system["message_group"] = group
    if trace_context := properties.get(TRACE_CONTEXT):
        system["trace_context"] = trace_context
    if deliver_ms := names.parse_ms(properties.get(names.TIMER_DELIVER_MS, "")):
        system["delivery_timestamp"] = _timestamp(deliver_ms)
    if DLQ_TOPIC in properties:
        origin = {"topic": properties[DLQ_TOPIC], "message_id": properties.get(DLQ_MESSAGE_ID, "")}
        system["dead_letter_queue"] = origin
    return api.Message(
        topic=topic,
        user_properties={name: value for name, value in properties.items() if is_users(name)},
        system_properties=system,
        body=body,
    )


def is_users(name: str) -> bool:
    """Return whether clients show a property to applications."""
    return not field_checks.is_reserved(name) and name not in (names.SHARDING_KEY, TRACE_CONTEXT, names.CLUSTER)


def _timestamp(milliseconds: int) -> dict[str, int]:
    seconds, rest = divmod(milliseconds, 1000)
    return {"seconds": seconds, "nanos": rest * 1_000_000}
