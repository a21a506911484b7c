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

    timestamp_ms: int  # when the send began, by the client's clock
    region: str  # of the broker (regionId), not of the client
    group: str  # producer group
    topic: str  # target topic
    message_id: str  # unique id, which the producer generated; joins the events of a message
    tags: str  # the single tag, "" without one
    keys: str  # space-separated
    store_host: str  # address of the broker that responded
    body_length: int  # bytes before compression
    cost_ms: int  # from the start of the send to the response, retries included
    message_type: int  # a `MessageType`; a number, because later versions may add types
    offset_message_id: str  # where the broker stored it: address and log offset
    success: bool
    client_host: str = ""  # of the record if it has it (5.x), otherwise of the trace message that carried it


class ConsumeStartEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The listener is about to be called. `request_id` joins this event with its SubAfter."""

    timestamp_ms: int  # by the client's clock
    region: str  # of the broker
    group: str
    request_id: str
    message_id: str  # unique id, or the offset id of a message without one
    retry_times: int  # 0 at the first delivery
    keys: str  # space-separated
    client_host: str = ""  # of the record if it has it (5.x), otherwise of the trace message that carried it


class ConsumeEndEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The listener returned. `context_code`: 0 success, 1 time-out, 2 exception, 3 null, 4 failed."""

    request_id: str  # joins this event with its SubBefore
    message_id: str  # several messages of one call share the request id
    cost_ms: int  # duration of the call, divided by Java among its messages
    success: bool  # False schedules a redelivery
    keys: str  # space-separated
    context_code: int
    timestamp_ms: int | None  # when the call ended; None from clients that do not report it
    group: str  # consumer group; "" from clients that do not report it


class EndTransactionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on a half message was sent. `state`: COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW."""

    timestamp_ms: int  # by the client's clock
    region: str  # of the broker
    group: str  # producer group
    topic: str  # target topic, not the half topic
    message_id: str  # unique id of the half message
    tags: str  # the single tag, "" without one
    keys: str  # space-separated
    store_host: str  # broker of the half message
    message_type: int  # a `MessageType`; Java reports COMMIT for rollbacks, too
    transaction_id: str  # by default the unique id
    state: str
    from_check: bool  # the decision answers a check of the broker instead of following the local transaction


class RecallEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A delayed message was recalled, or the broker refused it. Reported by Java's clients from 5.3.2 on."""

    timestamp_ms: int  # by the client's clock
    region: str  # of the broker
    group: str  # producer group
    topic: str  # target topic of the delayed message
    message_id: str  # unique id of the delayed message
    success: bool  # False if the broker refused: the message was delivered or recalled before


TraceEvent = PublishEvent | ConsumeStartEvent | ConsumeEndEvent | EndTransactionEvent | RecallEvent
