"""Trace events: what clients report about the life of a message, one frozen value each. [TraceContext, TraceBean]

Times are in ms since the epoch, on the client's clock. Missing text is empty; numbers that older clients did not send are None.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec


class MessageType(IntEnum):
    """Type of a sent message. Only 5.x clients report ORDER."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class PublishEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A send finished. `success` is False if it was rejected, or stored with a late flush or replica."""

    timestamp_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str
    keys: str
    store_host: str
    body_length: int
    cost_ms: int
    message_type: int
    offset_message_id: str
    success: bool
    client_host: str = ""


class ConsumeStartEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The listener is about to be called. `request_id` joins this event with its SubAfter."""

    timestamp_ms: int
    region: str
    group: str
    request_id: str
    message_id: str
    retry_times: int
    keys: str
    client_host: str = ""


class ConsumeEndEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The listener returned. `context_code`: 0 success, 1 time-out, 2 exception, 3 null, 4 failed."""

    request_id: str
    message_id: str
    cost_ms: int
    success: bool
    keys: str
    context_code: int
    timestamp_ms: int | None
    group: str


class EndTransactionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on a half message was sent. `state`: COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW."""

    timestamp_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str
    keys: str
    store_host: str
    message_type: int
    transaction_id: str
    state: str
    from_check: bool


class RecallEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A delayed message was cancelled. Reported from 5.3.2 on."""

    timestamp_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    success: bool


TraceEvent = PublishEvent | ConsumeStartEvent | ConsumeEndEvent | EndTransactionEvent | RecallEvent
