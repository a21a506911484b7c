"""Records of transactions, as 4.9.4 writes them, and the steps from one to the next. Pure.

    half message   RMQ_SYS_TRANS_HALF_TOPIC/0      the message with REAL_TOPIC and REAL_QID, its transaction bits cleared
    its copies     the same                        with TRANSACTION_CHECK_TIMES, and TRAN_PREPARED_QUEUE_OFFSET: its root
    op message     RMQ_SYS_TRANS_OP_HALF_TOPIC/0   tag d; body: queue offset of the completed copy, as decimal text
    committed      REAL_TOPIC/REAL_QID             same properties, sysFlag 8, prepared offset = log offset of the half message

The root of a half message is the queue offset of its first copy. [TransactionalMessageBridge, TransactionalMessageUtil]
"""

from __future__ import annotations

import logging

import msgspec

from ariane.errors import ProtocolError
from ariane.model.message import (
    CHECK_TIMES,
    PREPARED_QUEUE_OFFSET,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    WAIT,
)
from ariane.model.topic import HALF_TOPIC, OP_HALF_TOPIC
from ariane.protocol.records import properties, record
from ariane.protocol.records.properties import parse_number
from ariane.protocol.records.record import Record
from ariane.store.message_store import RecordDraft

log = logging.getLogger("ariane.broker.transactions.transaction_service")

END_TAG = "d"
OP_PROPERTIES = properties.encode({WAIT: "true", TAGS: END_TAG})  # the order of 4.9.4
_PREPARED = PREPARED_QUEUE_OFFSET.encode()


def half_draft(draft: RecordDraft, table: dict[str, str]) -> RecordDraft:
    """Return the half message to append instead of a message with the properties `table`."""
    table = {**table, REAL_TOPIC: draft.topic, REAL_QID: str(draft.queue_id)}
    for name in (PREPARED_QUEUE_OFFSET, CHECK_TIMES):
        table.pop(name, None)  # set by brokers only: a client must not declare its message a copy of another one
    return msgspec.structs.replace(
        draft,
        topic=HALF_TOPIC,
        queue_id=0,
        properties=properties.join(table),
        sys_flag=draft.sys_flag & ~TRANSACTION_MASK,
    )


def copy_draft(half: Record, table: dict[str, str], topic: str = HALF_TOPIC) -> RecordDraft:
    """Return a copy of a half message with other properties."""
    return RecordDraft(
        topic=topic,
        queue_id=0,
        body=half.body,
        born_ms=half.born_ms,
        born_host=half.born_host,
        properties=properties.join(table),
        tags=table.get(TAGS, ""),
        flag=half.flag,
        sys_flag=half.sys_flag,
        reconsume_times=half.reconsume_times,
    )


def committed_draft(half: Record) -> RecordDraft:
    """Return the message that consumers receive after the commit."""
    table = half.property_map()
    return msgspec.structs.replace(
        copy_draft(half, table),
        topic=table.get(REAL_TOPIC, ""),
        queue_id=parse_number(table.get(REAL_QID), -1),
        properties=half.properties,
        sys_flag=half.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT,
        prepared_offset=half.offset,
    )


def op_draft(offset: int, now_ms: int, store_host: bytes) -> RecordDraft:
    """Return the op message that completes the copy at a queue offset."""
    return RecordDraft(
        topic=OP_HALF_TOPIC,
        queue_id=0,
        body=str(offset).encode(),
        born_ms=now_ms,
        born_host=store_host,
        properties=OP_PROPERTIES,
        tags=END_TAG,
    )


def check_body(half: Record) -> bytes:
    """Return the body of CHECK_TRANSACTION_STATE: the copy as a record of the topic of its message.

    Raises:
        KeyError, ValueError: the properties do not name this topic and queue.
    """
    table = half.property_map()
    return record.encode(
        table[REAL_TOPIC].encode(),
        half.body,
        half.properties.encode(),
        queue_id=int(table[REAL_QID]),
        queue_offset=half.queue_offset,
        offset=half.offset,
        born_ms=half.born_ms,
        born_host=half.born_host,
        store_ms=half.store_ms,
        store_host=half.store_host,
        flag=half.flag,
        sys_flag=half.sys_flag,
        reconsume_times=half.reconsume_times,
    )


def root_of(table: dict[str, str], offset: int) -> int:
    """Return the root of the copy at a queue offset."""
    # A copy is stored after its root: no other value is trusted.
    root = parse_number(table.get(PREPARED_QUEUE_OFFSET), offset)
    return root if root < offset else offset


def root_of_record(data: bytes | None, offset: int) -> int:
    """Return the root of an encoded record (None: unreadable). Only possible copies are decoded: a start reads many."""
    if data is None or _PREPARED not in data:
        return offset
    try:
        return root_of(record.decode(data).property_map(), offset)
    except ProtocolError:
        return offset


def decode_ended(data: bytes | None) -> list[int]:
    """Return the queue offsets that an encoded op message completes: one in 4.9.4, several joined by commas in 5.x."""
    try:
        op = record.decode(data or b"")
    except ProtocolError as error:
        log.error("Cannot read an op message: %s", error)
        return []
    return ended_offsets(op)


def ended_offsets(op: Record) -> list[int]:
    """Return the queue offsets that a decoded op message completes."""
    if op.property_map().get(TAGS) != END_TAG:
        log.error("Ignoring op message %d without tag %s", op.queue_offset, END_TAG)
        return []
    return [parse_number(text, -1) for text in op.body.decode("ascii", "replace").split(",")]
