"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320). [SendMessageProcessor]

Checks come in the order of reference remoting-protocol 4.1; every answer, also a refusal, tells region and trace switch.
A message that asks for a delay is kept until it is due (`delay`), a transactional one becomes a half message (`transactions`).
Sizes are the store's to check.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ariane.broker import delayed_delivery
from ariane.broker.config import BrokerConfig
from ariane.broker.dynamic_config import DynamicConfig
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.broker.transaction_service import TransactionService
from ariane.errors import FlushFailed, MessageRefused, ProtocolError, ReplyError, StoreError
from ariane.model import ids
from ariane.model.message import (
    CLUSTER,
    DELAY,
    PGROUP,
    TAGS,
    TIMER_DEL_UNIQKEY,
    TRAN_MSG,
    TRANSACTION_MASK,
    UNIQ_KEY,
    WAIT,
)
from ariane.model.topic import (
    AUTO_CREATE_TOPIC,
    HALF_TOPIC,
    PERM_WRITE,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SEND_FORBIDDEN,
    TIMER_TOPIC,
    TopicConfig,
    dlq_topic,
    topic_name_fault,
)
from ariane.net.connection import Handled, Handler, Peer, Reply
from ariane.protocol import batch, properties
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import rules, typed
from ariane.protocol.requests.messaging import LONG_NAMES, SendMessage
from ariane.store.message_store import AppendResult, MessageStore, RecordDraft

MULTI_TAGS = 0x2


class SendHandler(NamedTuple):
    """What a send needs. `durable` waits until the log is flushed up to an offset (False: not in time); None when sends
    are answered without waiting. `stored` is told after each put, to have it dispatched. `kept` gives a draft with these
    properties the place where it waits for its time, if it has to."""

    settings: DynamicConfig
    topics: TopicRegistry
    groups: GroupRegistry
    store: MessageStore
    store_host: bytes
    durable: Callable[[int], Awaitable[bool]] | None
    stored: Callable[[], None]
    now_ms: Callable[[], int]
    kept: Callable[[RecordDraft, dict[str, str]], RecordDraft]
    stats: BrokerStats
    transactions: TransactionService
    recalled: Callable[[str, Peer], AppendResult]
    """Takes back the message of this name that waits for its time, and tells where that was noted."""
    replicated: Callable[[int], Awaitable[ResponseCode]] | None = None
    """Waits for a slave (SYNC_MASTER); None when nobody does."""

    @property
    def config(self) -> BrokerConfig:
        """What is in force now."""
        return self.settings.current


def handlers(parts: SendHandler) -> dict[int, Handler]:
    return {
        RequestCode.SEND_MESSAGE: lambda command, peer: send(
            parts, typed(command, SendMessage, LONG_NAMES), command, peer
        ),
        RequestCode.SEND_MESSAGE_V2: lambda command, peer: send(parts, typed(command, SendMessage), command, peer),
        RequestCode.SEND_BATCH_MESSAGE: lambda command, peer: send(parts, typed(command, SendMessage), command, peer),
    }


def send(parts: SendHandler, request: SendMessage, command: Command, peer: Peer) -> Handled:
    """Store one message or a batch, and say where."""
    config = parts.config
    context = {"MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}
    try:
        topic = _topic(parts, config, request)
        queue_id = _queue_id(request, topic)
        outer = properties.decode(request.properties) if request.properties else {}
        wait = outer.get(WAIT, "true") != "false"
        if not request.batch:  # 4.9.4 keeps it in the records of a batch
            outer.pop(WAIT, None)
        if request.batch:
            drafts = _batch(parts, request, topic, queue_id, outer, command.body, peer)
            draft, began = drafts[0], parts.stats.timer()
            placed = parts.store.put_batch(drafts)
        else:
            draft = _single(parts, request, topic, queue_id, outer, command.body, peer)
            began = parts.stats.timer()
            placed = [_put(parts, draft, outer, request, peer, context)]
    except ReplyError as error:
        return Reply(error.code, context, error.remark)
    except StoreError as error:
        parts.stats.record_put_failure()
        return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, context, str(error))
    except (ProtocolError, MessageRefused) as error:
        return Reply(ResponseCode.MESSAGE_ILLEGAL, context, str(error))
    parts.stored()
    host = parts.store_host
    context["msgId"] = (
        ids.offset_message_id(host, placed[0].offset)
        if len(placed) == 1
        else ",".join([ids.offset_message_id(host, one.offset) for one in placed])
    )
    context["queueId"] = str(queue_id)
    context["queueOffset"] = str(placed[0].queue_offset)
    if parts.durable is None or not wait:
        _count(parts.stats, draft, placed, began)
        answered: Reply | Awaitable[Reply] = Reply(0, context)
    else:
        answered = _when_durable(parts.durable, parts.stats, draft, placed, began, context)
    if parts.replicated is None or not wait:
        return answered
    return _when_replicated(parts.replicated(placed[-1].offset + placed[-1].size), answered, context)


def _put(
    parts: SendHandler,
    draft: RecordDraft,
    own: dict[str, str],
    request: SendMessage,
    peer: Peer,
    context: dict[str, str],
) -> AppendResult:
    """Store one message, and do what its kind asks for."""
    if TIMER_DEL_UNIQKEY in own:  # not a message, but the end of one
        return parts.recalled(own[TIMER_DEL_UNIQKEY], peer)
    placed = parts.store.put(draft)
    if draft.topic == HALF_TOPIC:
        parts.transactions.on_half_stored(placed.queue_offset)
    elif draft.topic == TIMER_TOPIC and UNIQ_KEY in own:
        broker, due_ms = parts.config.broker_name, draft.tags_code or 0
        context["recallHandle"] = ids.recall_handle(request.topic, broker, due_ms, own[UNIQ_KEY])
    return placed


def target(parts: SendHandler, request: SendMessage) -> tuple[TopicConfig, int]:
    """The topic and the queue that a send goes to, for replies too; ReplyError for every refusal."""
    topic = _topic(parts, parts.config, request)
    return topic, _queue_id(request, topic)


def _count(stats: BrokerStats, first: RecordDraft, placed: list[AppendResult], began: float) -> None:
    size = placed[-1].offset + placed[-1].size - placed[0].offset
    if first.topic == SCHEDULE_TOPIC:
        stats.record_delayed_send(first.queue_id, len(placed), size)
    else:
        stats.record_send(first.topic, len(placed), size)
    stats.record_put_time(stats.timer() - began)


async def _when_durable(
    durable: Callable[[int], Awaitable[bool]],
    stats: BrokerStats,
    first: RecordDraft,
    placed: list[AppendResult],
    began: float,
    fields: dict[str, str],
) -> Reply:
    try:
        flushed = await durable(placed[-1].offset + placed[-1].size)
    except FlushFailed as error:
        stats.record_put_failure()
        fields = {name: fields[name] for name in ("MSG_REGION", "TRACE_ON")}
        return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, fields, str(error))
    _count(stats, first, placed, began)
    return Reply(ResponseCode.SUCCESS if flushed else ResponseCode.FLUSH_DISK_TIMEOUT, fields)


async def _when_replicated(
    replicated: Awaitable[ResponseCode], answered: Reply | Awaitable[Reply], fields: dict[str, str]
) -> Reply:
    """Disk and slave are waited for side by side; what is wrong with the slave is told before a slow disk, as in Java."""
    copied = asyncio.ensure_future(replicated)
    try:
        answer = answered if isinstance(answered, Reply) else await answered
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            return answer
        code = await copied
    finally:
        copied.cancel()
    return answer if code == ResponseCode.SUCCESS else Reply(code, fields)


def _topic(parts: SendHandler, config: BrokerConfig, request: SendMessage) -> TopicConfig:
    """The topic to store to, made when it may be; every refusal that does not depend on the message."""
    name = request.topic
    since = config.start_accept_send_request_time_stamp
    if since and since > parts.now_ms():
        raise ReplyError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {since}")
    topic = parts.topics.get(name)
    if topic is not None and topic.order and not config.broker_permission & PERM_WRITE:
        raise ReplyError(ResponseCode.NO_PERMISSION, f"the broker {config.broker_name} may not be written to")
    if name in SEND_FORBIDDEN:
        raise ReplyError(ResponseCode.NO_PERMISSION, f"sending to topic {name} is forbidden: it is the broker's own")
    if topic is not None:
        return topic
    if fault := topic_name_fault(name):
        raise ReplyError(ResponseCode.SYSTEM_ERROR, fault)
    topic = parts.topics.create_from_template(request.default_topic, name, request.default_topic_queue_nums)
    if topic is None and name.startswith(RETRY_PREFIX):
        topic = parts.topics.get_or_create_internal(name, 1)
    if topic is None:
        how = (
            f"create it, or send with the default topic {AUTO_CREATE_TOPIC}"
            if config.auto_create_topic_enable
            else "create it: autoCreateTopicEnable is false"
        )
        raise ReplyError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist on {config.broker_name}; {how}")
    return topic


def _queue_id(request: SendMessage, topic: TopicConfig) -> int:
    queues = max(topic.read_queue_nums, topic.write_queue_nums)
    if request.queue_id >= queues:
        remark = f"request queueId[{request.queue_id}] is illegal, {topic.topic_name} has {queues} queues"
        raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
    if request.queue_id >= 0:
        return request.queue_id
    return random.randrange(max(1, topic.write_queue_nums))  # noqa: S311 - spreads load, hides nothing


def _single(
    parts: SendHandler,
    request: SendMessage,
    topic: TopicConfig,
    queue_id: int,
    outer: dict[str, str],
    body: bytes,
    peer: Peer,
) -> RecordDraft:
    name = topic.topic_name
    reconsume_times = request.reconsume_times or 0
    if name.startswith(RETRY_PREFIX):
        name, queue_id = _retry_target(parts, request, reconsume_times, queue_id)
        if name != topic.topic_name:
            delayed_delivery.remove_delay(outer)  # a dead letter is not delayed once more
    if _is_half(outer, request.topic, reconsume_times):
        return _half(parts, request, name, topic, queue_id, outer, body, peer)
    _refuse_transaction_bits(outer, request.sys_flag)
    draft = _draft(parts, request, name, topic, queue_id, outer, body, request.flag, reconsume_times, peer)
    return parts.kept(draft, outer)


def _is_half(own: dict[str, str], topic: str, reconsume_times: int) -> bool:
    """Whether a message begins a transaction. Clients before 4.6.1 leave TRAN_MSG on the messages that they send to a retry
    topic; these are ordinary messages, also if they end as dead letters."""
    mark = own.get(TRAN_MSG)
    if mark is None or mark.lower() != "true":
        return False
    return reconsume_times == 0 or not (topic.startswith(RETRY_PREFIX) or own.get(DELAY, "0") != "0")


def _half(
    parts: SendHandler,
    request: SendMessage,
    name: str,
    topic: TopicConfig,
    queue_id: int,
    own: dict[str, str],
    body: bytes,
    peer: Peer,
) -> RecordDraft:
    """The half message of a transaction; it goes to the broker's own topic."""
    config = parts.config
    if config.reject_transaction_message:
        remark = f"the broker[{config.broker_ip1}] sending transaction message is forbidden: rejectTransactionMessage"
        raise ReplyError(ResponseCode.NO_PERMISSION, remark)
    delays = delayed_delivery.delay_properties(own)
    if delays:
        raise ProtocolError(f"{', '.join(sorted(delays))}: a transactional message cannot be delayed")
    rules.PRODUCER_GROUP.check("producerGroup", request.producer_group)
    own.setdefault(PGROUP, request.producer_group)
    wait = properties.decode(request.properties or "").get(WAIT)
    if wait is not None:
        own[WAIT] = wait  # 4.9.4 keeps it in half messages only
    reconsume_times = request.reconsume_times or 0
    draft = _draft(parts, request, name, topic, queue_id, own, body, request.flag, reconsume_times, peer)
    return parts.transactions.redirect(draft, own)


def _batch(
    parts: SendHandler,
    request: SendMessage,
    topic: TopicConfig,
    queue_id: int,
    outer: dict[str, str],
    body: bytes,
    peer: Peer,
) -> list[RecordDraft]:
    if topic.topic_name.startswith(RETRY_PREFIX):
        raise ProtocolError("a batch cannot be sent to a retry topic")
    if len(body) > parts.config.max_message_size:
        raise ProtocolError(f"a batch of {len(body)} bytes, at most {parts.config.max_message_size} are allowed")
    _refuse_bad_transactions(outer, request.sys_flag)
    drafts = []
    for entry in batch.decode(body):
        own = properties.decode(entry.properties)
        own.update(outer)
        _refuse_bad_transactions(own, request.sys_flag)
        if delays := delayed_delivery.delay_properties(own):
            raise ProtocolError(
                f"{', '.join(sorted(delays))}: the messages of a batch cannot be delayed; send them one by one"
            )
        drafts.append(_draft(parts, request, topic.topic_name, topic, queue_id, own, entry.body, entry.flag, 0, peer))
    if not drafts:
        raise ProtocolError("the batch holds no message")
    return drafts


def _draft(
    parts: SendHandler,
    request: SendMessage,
    name: str,
    topic: TopicConfig,
    queue_id: int,
    own: dict[str, str],
    body: bytes,
    flag: int,
    reconsume_times: int,
    peer: Peer,
) -> RecordDraft:
    own[CLUSTER] = parts.config.broker_cluster_name
    return RecordDraft(
        topic=name,
        queue_id=queue_id,
        body=body,
        properties=properties.join(own),
        tags=own.get(TAGS, ""),
        flag=flag,
        sys_flag=request.sys_flag | MULTI_TAGS if topic.topic_filter_type == "MULTI_TAG" else request.sys_flag,
        born_ms=request.born_ms,
        born_host=peer.packed,
        reconsume_times=reconsume_times,
    )


def _retry_target(parts: SendHandler, request: SendMessage, reconsume_times: int, queue_id: int) -> tuple[str, int]:
    """A message sent to %RETRY%group directly: it stays there, or goes to %DLQ%group when it was retried enough."""
    group = request.topic.removeprefix(RETRY_PREFIX)
    config = parts.groups.get_or_create(group)
    if config is None:
        remark = f"subscription group not exist, {group}; create it"
        raise ReplyError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    most = config.retry_max_times if request.max_reconsume_times is None else request.max_reconsume_times
    if reconsume_times < most:
        return request.topic, queue_id
    return parts.topics.get_or_create_internal(dlq_topic(group), 1).topic_name, 0


def _refuse_transaction_bits(own: dict[str, str], sys_flag: int) -> None:
    if sys_flag & TRANSACTION_MASK and own.get(TRAN_MSG, "").lower() != "true":
        raise ProtocolError(f"sysFlag {sys_flag:#x} has transaction bits, and the message no {TRAN_MSG}")


def _refuse_bad_transactions(own: dict[str, str], sys_flag: int) -> None:
    """Refuse what no message of a batch may be: part of a transaction."""
    _refuse_transaction_bits(own, sys_flag)
    if own.get(TRAN_MSG, "").lower() == "true":
        raise ProtocolError(f"{TRAN_MSG}: a batch cannot be transactional, send its messages one by one")
