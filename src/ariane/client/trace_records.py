"""Trace records: from what hooks report to the text and keys of a trace message. Pure. [TraceDataEncoder, *TraceHookImpl]

    SendEvent, TransactionEnd, ConsumeStarted, ConsumeFinished ─→ TraceEvent ─→ TraceEntry ─→ TraceBatch: one trace message

Each message of a batch has a record of its own, and so has a refused send. A send without a response has none, because its
message may or may not be stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ariane.client import send_codec
from ariane.client.hooks import ConsumeFinished, ConsumeReturn, ConsumeStarted, LocalState, SendEvent, TransactionEnd
from ariane.client.send_codec import PreparedMessage, SendResult
from ariane.model import message as names
from ariane.model.message import Message, ReceivedMessage
from ariane.model.trace_event import (
    ConsumeEndEvent,
    ConsumeStartEvent,
    EndTransactionEvent,
    MessageType,
    PublishEvent,
    TraceEvent,
)
from ariane.protocol import trace_codec as trace_text

DEFAULT_REGION = "DefaultRegion"
STATES = {
    LocalState.COMMIT: "COMMIT_MESSAGE",
    LocalState.ROLLBACK: "ROLLBACK_MESSAGE",
    LocalState.UNKNOWN: "UNKNOW",  # spelled like this in 4.9.4
}


# --- from hook events to records ---------------------------------------------------------------------------------------


def events_of_send(event: SendEvent, trace_topic: str) -> list[TraceEvent]:
    """Return one Pub record per message; none for trace messages, or if the broker has traces switched off."""
    prepared, result = event.prepared, event.result
    if prepared.topic.startswith(trace_topic) or (result is not None and not result.trace_on):
        return []
    offset_ids = _offset_ids(result, len(prepared.messages))
    is_stored = result is not None and result.status is send_codec.SendStatus.SEND_OK
    return [
        PublishEvent(
            timestamp_ms=event.started_ms,
            region=result.region if result is not None else DEFAULT_REGION,
            group=event.group,
            topic=prepared.topic,
            message_id=message_id,
            tags=message.tags,
            keys=" ".join(message.keys),
            store_host=event.broker_addr,
            body_length=len(message.body) if prepared.is_batch else len(prepared.body),
            cost_ms=event.cost_ms,
            message_type=_type(prepared, message),
            offset_message_id=offset_id,
            success=is_stored,
        )
        for message, message_id, offset_id in zip(prepared.messages, prepared.ids, offset_ids, strict=True)
    ]


def _offset_ids(result: SendResult | None, messages: int) -> list[str]:
    """Return the ids that the broker gave the messages of a request; empty texts without a result."""
    if result is not None and messages == 1:
        return [result.offset_message_id]
    offset_ids = result.offset_message_id.split(",") if result is not None else []
    return offset_ids if len(offset_ids) == messages else [""] * messages


def _type(prepared: PreparedMessage, message: Message) -> MessageType:
    if prepared.sys_flag & names.TRANSACTION_MASK == names.TRANSACTION_PREPARED:
        return MessageType.HALF
    return MessageType.DELAY if message.is_delayed else MessageType.NORMAL


def events_of_transaction_end(event: TransactionEnd, trace_topic: str) -> list[TraceEvent]:
    """Return one EndTransaction record; none for trace messages. Its type is COMMIT in every state, as in 4.9.4."""
    if event.topic.startswith(trace_topic):
        return []
    return [
        EndTransactionEvent(
            timestamp_ms=event.ended_ms,
            region=event.region,
            group=event.group,
            topic=event.topic,
            message_id=event.message_id,
            tags=event.tags,
            keys=event.keys,
            store_host=event.broker_addr,
            message_type=MessageType.COMMIT,
            transaction_id=event.transaction_id,
            state=STATES[event.state],
            from_check=event.from_check,
        )
    ]


def events_of_consume(event: ConsumeStarted | ConsumeFinished) -> list[TraceEvent]:
    """Return one SubBefore or SubAfter record per message, except for messages whose own trace switch is off."""
    call = event.started if isinstance(event, ConsumeFinished) else event
    messages = [message for message in call.messages if message.properties.get(names.TRACE_ON) != "false"]
    if isinstance(event, ConsumeFinished):
        return [_consume_end(event, call, message) for message in messages]
    region = call.messages[-1].properties.get(names.MSG_REGION, "")
    return [
        ConsumeStartEvent(
            timestamp_ms=call.started_ms,
            region=region,
            group=call.group,
            request_id=call.request_id,
            message_id=message.message_id,
            retry_times=message.reconsume_times,
            keys=message.properties.get(names.KEYS, ""),
        )
        for message in messages
    ]


def _consume_end(event: ConsumeFinished, call: ConsumeStarted, message: ReceivedMessage) -> ConsumeEndEvent:
    return ConsumeEndEvent(
        request_id=call.request_id,
        message_id=message.message_id,
        cost_ms=event.cost_ms // len(call.messages),
        success=event.outcome is ConsumeReturn.SUCCESS,
        keys=message.properties.get(names.KEYS, ""),
        context_code=int(event.outcome),
        timestamp_ms=event.ended_ms,
        group=call.group,
    )


# --- from records to messages ------------------------------------------------------------------------------------------


class TraceEntry(NamedTuple):
    """A pending record: its text, the distinct keys by which its trace message can be found, and when it was queued."""

    text: bytes
    keys: tuple[str, ...]
    key_bytes: int
    since: float


class TraceBatch(NamedTuple):
    """Contents of one trace message: the first `records` pending entries and their keys."""

    records: int
    body: bytes
    keys: tuple[str, ...]
    dropped_keys: int


def to_entry(event: TraceEvent, now: float) -> TraceEntry:
    """Encode a record that is queued at monotonic time `now`."""
    keys = trace_text.keys(event)
    if len(keys) > 1:
        keys = tuple(dict.fromkeys(keys))
    return TraceEntry(trace_text.encode(event).encode(), keys, _size(keys), now)


def next_batch(entries: Iterable[TraceEntry], body_max: int, keys_max: int) -> TraceBatch:
    """Return as many of the first entries as fit into both limits, at least one.

    If a single record has more keys than `keys_max`, the last ones are dropped; its ids come first.
    """
    texts: list[bytes] = []
    body_bytes = key_bytes = dropped_keys = 0
    keys: dict[str, None] = {}
    for entry in entries:
        new = [key for key in entry.keys if key not in keys]
        new_bytes = entry.key_bytes if len(new) == len(entry.keys) else _size(new)
        if texts and (body_bytes + len(entry.text) > body_max or key_bytes + new_bytes > keys_max):
            break
        texts.append(entry.text)
        body_bytes += len(entry.text)
        if key_bytes + new_bytes <= keys_max:
            keys.update(dict.fromkeys(new))
            key_bytes += new_bytes
            continue
        for key in new:
            size = _size([key])
            if key_bytes + size > keys_max:
                dropped_keys += 1
                continue
            keys[key] = None
            key_bytes += size
    return TraceBatch(len(texts), b"".join(texts), tuple(keys), dropped_keys)


def _size(keys: Sequence[str]) -> int:
    """Return the bytes that keys take in a message, with the separator after each."""
    return len(" ".join(keys).encode()) + 1 if keys else 0
