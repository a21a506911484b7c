"""Requests from brokers to their clients, on their own account or for a tool: 220–223, 307, 309, 326.

    tool ─ 222, 223, 307, 309 ─→ broker ─ 220, 221, 307, 309 ─→ members of a group
    replier ─────── 324, 325 ─→ broker ─────────────── 326 ─→ sender of the request

The members of body Structs are in the order in which Java prints them. Tables with queues as keys are fastjson's:
`{{"brokerName":"b","queueId":1,"topic":"T"}:5}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from ariane.errors import ProtocolError
from ariane.model.message import MessageQueue
from ariane.protocol import fastjson
from ariane.protocol.requests.clients import SubscriptionData, WireQueue
from ariane.protocol.requests.messaging import Int32, Int64

TABLE_MAX = 4 * 1024 * 1024  # bytes of a table of queues and offsets: some 30,000 queues

QueueTable = dict[MessageQueue, int]


class ResetOffset(msgspec.Struct, frozen=True, rename="camel"):
    """INVOKE_BROKER_TO_RESET_OFFSET (222) and RESET_CONSUMER_CLIENT_OFFSET (220); `timestamp` in ms, -1: to the end."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool = False


class ConsumerStatus(msgspec.Struct, frozen=True, rename="camel"):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) and GET_CONSUMER_STATUS_FROM_CLIENT (221); `client_addr` is a client id."""

    topic: str
    group: str
    client_addr: str | None = None


class RunningInfoRequest(msgspec.Struct, frozen=True, rename="camel"):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectly(msgspec.Struct, frozen=True, rename="camel"):
    """CONSUME_MESSAGE_DIRECTLY (309). `msg_id` is an offset id; the broker puts the record into the body, and its name here."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class OfGroup(msgspec.Struct, frozen=True, rename="camel"):
    """The consumer group that 220, 221, 307 or 309 is about: one of the two names."""

    consumer_group: str | None = None
    group: str | None = None


class PushReply(msgspec.Struct, frozen=True, rename={
    "producer_group": "producerGroup", "default_topic": "defaultTopic", "default_topic_queue_nums": "defaultTopicQueueNums",
    "queue_id": "queueId", "sys_flag": "sysFlag", "born_ms": "bornTimestamp", "reconsume_times": "reconsumeTimes",
    "unit_mode": "unitMode", "born_host": "bornHost", "store_host": "storeHost", "store_ms": "storeTimestamp",
}):  # fmt: skip
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326); hosts are `ip:port`."""

    producer_group: str  # of the replying client
    topic: str  # reply topic of the cluster
    default_topic: str  # as in a send; without effect
    default_topic_queue_nums: Int32  # as in a send; without effect
    queue_id: Int32  # as in a send; without effect
    sys_flag: Int32  # whether the body is compressed, as in a send
    born_ms: Int64  # when the reply was sent, by its sender's clock
    flag: Int32  # the application's, uninterpreted
    born_host: str  # of the client that replied
    store_host: str  # of the broker
    store_ms: Int64  # when the broker received the reply, by its clock
    properties: str | None = None  # the correlation id finds the waiting request
    reconsume_times: Int32 | None = None  # 0: replies are not redelivered
    unit_mode: bool = False  # carried as sent


class QueueOffset(msgspec.Struct, frozen=True, rename="camel"):
    """One entry of the list that C++ clients accept in place of a table."""

    broker_name: str
    offset: int
    queue_id: int
    topic: str


class ProcessQueueInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A queue of a running consumer; times in ms, `droped` as Java spells it."""

    cached_msg_count: int = 0  # messages that were fetched and not consumed yet
    cached_msg_max_offset: int = 0  # highest offset of these
    cached_msg_min_offset: int = 0  # lowest offset of these
    cached_msg_size_in_mi_b: int = 0  # their size in MiB, rounded down; Java's spelling of the JSON key
    commit_offset: int = 0  # next offset to commit
    droped: bool = False
    last_consume_timestamp: int = 0  # of the last call of the listener
    last_lock_timestamp: int = 0  # when the queue lock was last confirmed; 0 without a lock
    last_pull_timestamp: int = 0  # of the last pull; an old one means that flow control pauses the queue
    locked: bool = False  # the broker's lock is held and still trusted
    transaction_msg_count: int = 0  # Java's name for messages in a call of an orderly listener; 0 here
    transaction_msg_max_offset: int = 0  # highest offset of these
    transaction_msg_min_offset: int = 0  # lowest offset of these
    try_unlock_times: int = 0  # attempts of Java to unlock a queue whose listener is running; 0 here


class ConsumeStatus(msgspec.Struct, frozen=True, rename={
    "consume_failed_msgs": "consumeFailedMsgs", "consume_failed_tps": "consumeFailedTPS", "consume_ok_tps": "consumeOKTPS",
    "consume_rt": "consumeRT", "pull_rt": "pullRT", "pull_tps": "pullTPS",
}):  # fmt: skip
    """Statistics of one topic: messages per second and ms per call over the last minute, failures of the last hour."""

    consume_failed_msgs: int = 0  # of the last hour
    consume_failed_tps: float = 0.0  # messages per second
    consume_ok_tps: float = 0.0  # messages per second
    consume_rt: float = 0.0  # mean duration of a call of the listener in ms
    pull_rt: float = 0.0  # mean duration of a pull in ms
    pull_tps: float = 0.0  # messages per second


class RunningInfo(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to 307. [ConsumerRunningInfo]"""

    jstack: str | None = None
    mq_table: dict[WireQueue, ProcessQueueInfo] = {}
    properties: dict[str, str] = {}
    status_table: dict[str, ConsumeStatus] = {}
    subscription_set: tuple[SubscriptionData, ...] = ()


class DirectResult(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to 309. [ConsumeMessageDirectlyResult]"""

    auto_commit: bool = True
    consume_result: str = "CR_SUCCESS"
    order: bool = False
    remark: str | None = None
    spent_time_mills: int = 0


def reset_body(offsets: Mapping[MessageQueue, int], *, as_list: bool = False) -> bytes:
    """ResetOffsetBody of 220 and 222; `as_list` as C++ clients read it."""
    if as_list:
        entries = [QueueOffset(queue.broker, offset, queue.queue_id, queue.topic) for queue, offset in offsets.items()]
        return fastjson.write({"offsetTable": entries})
    return fastjson.write({"offsetTable": _keyed(offsets)})


def reset_table(body: bytes) -> QueueTable:
    """The offsets of a ResetOffsetBody, in either form."""
    table = _member(body, "offsetTable")
    if isinstance(table, list):
        entries = _converted(table, list[QueueOffset])
        return {MessageQueue(entry.topic, entry.broker_name, entry.queue_id): entry.offset for entry in entries}
    return _queue_table(table)


def status_body(offsets: Mapping[MessageQueue, int]) -> bytes:
    """A client's response to 221."""
    return fastjson.write({"consumerTable": {}, "messageQueueTable": _keyed(offsets)})


def status_table(body: bytes) -> QueueTable:
    """The offsets in a client's answer to 221."""
    return _queue_table(_member(body, "messageQueueTable"))


def statuses_body(offsets_of: Mapping[str, Mapping[MessageQueue, int]]) -> bytes:
    """A broker's response to 223, by client id."""
    table = {client_id: _keyed(offsets) for client_id, offsets in offsets_of.items()}
    return fastjson.write({"consumerTable": table, "messageQueueTable": {}})


def _keyed(offsets: Mapping[MessageQueue, int]) -> dict[WireQueue, int]:
    return {WireQueue.of(queue): offset for queue, offset in offsets.items()}


def _member(body: bytes, name: str) -> Any:
    value = fastjson.read(body, TABLE_MAX)
    if not isinstance(value, dict) or name not in value:
        raise ProtocolError(f"Invalid body: no member {name}")
    return value[name]


def _queue_table(table: Any) -> QueueTable:
    if not isinstance(table, dict):
        raise ProtocolError(f"Invalid body: expected a table of queues and offsets, got {type(table).__name__}")
    offsets = _converted(table, dict[str, int])
    return {_queue(key): offset for key, offset in offsets.items()}


def _queue(key: str) -> MessageQueue:
    return fastjson.decode(key.encode(), WireQueue).queue()


def _converted(value: Any, kind: Any) -> Any:
    try:
        return cast(Any, msgspec.convert(value, kind, strict=False))
    except fastjson.UNREADABLE as error:
        raise ProtocolError(f"Invalid table of offsets: {error}") from None
