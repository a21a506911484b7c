"""Trace records: from what hooks report to their texts and keys. Pure. [TraceDataEncoder, *TraceHookImpl]

    SendEvent, TransactionEnd, ConsumeStarted, ConsumeFinished ─→ TraceEvent ─→ text and keys (`protocol.trace_batches`)

Each message of a batch has a record of its own, and so has a refused send or recall. A send or a recall without a response has
none, because its message may or may not be stored or cancelled.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from ariane.client.instance.hooks import (
    ConsumeFinished,
    ConsumeReturn,
    ConsumeStarted,
    LocalState,
    SendEvent,
    TransactionEnd,
)
from ariane.client.instance.instants import duration_ms
from ariane.client.instance.send_types import PreparedMessage, SendResult, SendStatus, StoredSend
from ariane.model import message as names
from ariane.model.message import Message, ReceivedMessage
from ariane.model.trace_event import (
    ConsumeEndEvent,
    ConsumeStartEvent,
    EndTransactionEvent,
    MessageType,
    PublishEvent,
    RecallEvent,
    TraceEvent,
)
from ariane.protocol import trace_codec as trace_text
from ariane.protocol.trace_batches import keys_text
from ariane.protocol.trace_codec import ABSENT, FIELD_END, RECORD_END

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
    is_stored = result is not None and result.status is SendStatus.SEND_OK
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


def events_of_recall(
    sent: SendResult, group: str, answered_ms: int, is_success: bool, trace_topic: str
) -> list[TraceEvent]:
    """Return one Recall record, as 5.3.2 writes it; none if the send of the message has no record."""
    if sent.queue.topic.startswith(trace_topic) or not sent.trace_on:
        return []
    return [
        RecallEvent(
            timestamp_ms=answered_ms,
            region=sent.region,
            group=group,
            topic=sent.queue.topic,
            message_id=sent.message_id,
            success=is_success,
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


def events_of_stored(send: StoredSend, group: str, trace_topic: str) -> list[TraceEvent]:
    """Return the records of a send, as `events_of_send` does."""
    message, addr, started_ms, started_s, ended_ms, ended_s, result = send
    event = SendEvent(
        group=group,
        prepared=message,
        queue=result.queue,
        broker_addr=addr,
        started_ms=started_ms,
        cost_ms=duration_ms(ended_ms - started_ms, ended_s - started_s),
        result=result,
    )
    return events_of_send(event, trace_topic)


def texts_of_stored(sends: Iterable[StoredSend], group: str, trace_topic: str) -> tuple[list[str], list[str]]:
    """Return the records of sends and their keys: what `events_of_send` says about each, without events for most."""
    texts: list[str] = []
    keys: list[str] = []
    traced_topic = safe_region = safe_addr = None  # those of the send before: most sends have the same
    for send in sends:
        message, addr, started_ms, started_s, ended_ms, ended_s, result = send
        region, offset_id, topic = result.region, result.offset_message_id, message.topic
        if (
            len(message.ids) != 1
            or message.is_delayed
            or message.sys_flag & names.TRANSACTION_MASK
            or not result.trace_on
            or (topic is not traced_topic and topic.startswith(trace_topic))
            # Ids and properties of a message contain no separators; what a broker says may.
            or FIELD_END in offset_id
            or RECORD_END in offset_id
            or ((addr is not safe_addr or region != safe_region) and not _is_safe(region, addr))
        ):
            events = events_of_stored(send, group, trace_topic)
            texts += map(trace_text.encode, events)
            keys += map(keys_text, events)
            continue
        traced_topic, safe_region, safe_addr = topic, region, addr
        cost_ms = ended_ms - started_ms
        if not -1 < (ended_s - started_s) * 1000 - cost_ms < 1:
            cost_ms = duration_ms(cost_ms, ended_s - started_s)
        sent, key = message.messages[0], message.ids[0]
        business_keys = " ".join(sent.keys) if sent.keys else ""
        # A name for each separator would cost half as much again.
        texts.append(
            f"Pub\x01{started_ms}\x01{region or ABSENT}\x01{group}\x01{topic}\x01{key}\x01{sent.tags or ABSENT}"
            f"\x01{business_keys or ABSENT}\x01{addr}\x01{len(message.body)}\x01{cost_ms}\x010\x01{offset_id or ABSENT}"
            f"\x01{'true' if result.status is _SEND_OK else 'false'}\x02"
        )
        keys.append(f"{key} {business_keys}" if business_keys else key)
    return texts, keys


_SEND_OK = SendStatus.SEND_OK  # a look-up less per record


@lru_cache(maxsize=256)
def _is_safe(region: str, addr: str) -> bool:
    """Return whether neither text contains a separator, and there is an address."""
    return bool(addr) and not any(end in text for end in (FIELD_END, RECORD_END) for text in (region, addr))
