"""What a client tells of a message's way: one frozen event each. [TraceContext, TraceBean]

Times are the client's clock, in ms since the epoch. Text that is not known is empty; numbers that an older client did not
send are None.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec


class MessageType(IntEnum):
    """Kind of a message that was sent. ORDER comes from 5.x clients only."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class PublishEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A send was answered. `success` False: refused, or stored with a late flush or replica."""

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
    """The listener is about to be called with the message. `request_id` joins it with its SubAfter."""

    timestamp_ms: int
    region: str
    group: str
    request_id: str
    message_id: str
    retry_times: int
    keys: str
    client_host: str = ""


class ConsumeEndEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The listener has returned. `context_code`: 0 success, 1 time-out, 2 exception, 3 null, 4 failed."""

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
    """A message that waited for its time was taken back. From 5.3.2 on."""

    timestamp_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    success: bool


TraceEvent = PublishEvent | ConsumeStartEvent | ConsumeEndEvent | EndTransactionEvent | RecallEvent
