"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320). [SendMessageProcessor]

Most sends never come here: `send_turns` stores the plain ones of a read at once (one message each, no delay, no transaction). The
connection passes all others on, one by one:

    frame → IncomingMessage → draft: delayed, half message, dead letter or as sent → append → wait until flushed → reply

Checks come in the order of reference remoting-protocol 4.1. Every response, including errors, carries region and trace switch.
A delayed message is redirected to a delay topic (`delayed_delivery`), a transactional one becomes a half message
(`transaction_service`). The store checks sizes.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from ariane.broker.collaborators import DelayScheduler, Durability, SlaveAcknowledgement
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.delivery import delayed_delivery
from ariane.broker.handlers.sending.send_target import SendTargets
from ariane.broker.lifecycle.offset_waiters import OffsetWaiter
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.broker.transactions.transaction_service import TransactionService
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
from ariane.model.topic import HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, TopicConfig
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import batch, properties
from ariane.protocol.requests import decode_header, rules
from ariane.protocol.requests.messaging import LONG_NAMES, SendMessage
from ariane.store.message_store import AppendResult, MessageStore, RecordDraft

MULTI_TAGS = 0x2


class IncomingMessage(msgspec.Struct, frozen=True, gc=False):
    """A send request whose target is resolved: what the handler passes from step to step."""

    request: SendMessage  # decoded header
    topic: TopicConfig  # resolved target; may have been created for this request
    queue_id: int  # chosen by the broker if the request has a negative one
    properties: dict[str, str]
    """Properties of the request; WAIT is removed from those of a single message."""
    body: bytes  # one message, or the entries of a batch
    peer: Peer  # its address is stored as the born host


class StoredMessages(msgspec.Struct, frozen=True, gc=False):
    """What one send appended, and what its statistics need."""

    first: RecordDraft
    results: list[AppendResult]
    end_offset: int
    """End of the last record in the commit log."""
    started: float
    """When storing began, by the timer of the statistics."""


class TimerRecall(Protocol):
    """Cancels timers. [RecallHandler]"""

    def cancel(self, name: str, born_host: bytes) -> tuple[delayed_delivery.DeliveryTimer, AppendResult]:
        """Cancel the timer with this message id, unique key or recall handle.

        Raises:
            ReplyError: no pending timer has this name.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class SendHandler:
    """Stores single messages and batches, and replies with their ids."""

    settings: DynamicConfig  # permissions, limits, region
    targets: SendTargets  # resolves and checks topic and queue
    store: MessageStore  # assigns log offset, queue offset and store time
    store_host: bytes  # packed address of this broker: the first half of each message id
    delays: DelayScheduler  # redirects delayed messages
    durability: Durability  # waits for the flush in synchronous mode
    transactions: TransactionService  # redirects half messages
    recalls: TimerRecall  # for sends that cancel a timer (TIMER_DEL_UNIQKEY)
    stats: BrokerStats  # puts, put times and rejections
    slaves: SlaveAcknowledgement | None = None  # None unless this is a SYNC_MASTER

    def send(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE. In synchronous flush mode the reply is an awaitable."""
        return self._send(decode_header(command, SendMessage), command.body, peer)

    def send_v1(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle SEND_MESSAGE: the same header with long field names."""
        return self._send(decode_header(command, SendMessage, LONG_NAMES), command.body, peer)

    def _send(self, request: SendMessage, body: bytes, peer: Peer) -> HandlerResult:
        config = self.settings.current
        context = {"MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}
        try:
            topic = self.targets.topic(request)
            queue_id = self.targets.queue_id(request, topic)
            property_map = properties.decode(request.properties) if request.properties else {}
            waits = property_map.get(WAIT, "true") != "false"
            if not request.batch:  # 4.9.4 stores it in the records of a batch
                property_map.pop(WAIT, None)
            message = IncomingMessage(request, topic, queue_id, property_map, body, peer)
            stored = self._store_batch(message) if request.batch else self._store_single(message, context)
        except ReplyError as error:
            return Reply(error.code, context, error.remark)
        except StoreError as error:
            self.stats.record_put_failure()
            return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, context, str(error))
        except (ProtocolError, MessageRefused) as error:
            return Reply(ResponseCode.MESSAGE_ILLEGAL, context, str(error))
        self.delays.on_stored()

        results, host = stored.results, self.store_host
        context["msgId"] = (
            ids.offset_message_id(host, results[0].offset)
            if len(results) == 1
            else ",".join([ids.offset_message_id(host, result.offset) for result in results])
        )
        context["queueId"] = str(queue_id)
        context["queueOffset"] = str(results[0].queue_offset)
        flushed = self.durability.wait_flushed(stored.end_offset) if waits else None
        if flushed is None:
            self._count(stored)
            reply: Reply | Awaitable[Reply] = Reply(0, context)
        else:
            reply = flushed.then(partial(self._flushed_reply, stored, context))
        if self.slaves is None or not waits:
            return reply
        return _reply_when_replicated(self.slaves.wait_replicated(stored.end_offset), reply, context)

    # --- storing ---

    def _store_single(self, message: IncomingMessage, context: dict[str, str]) -> StoredMessages:
        """Append one message; add its recall handle to the response if it is a timer."""
        draft = self._draft_single(message)
        started = self.stats.timer()
        property_map = message.properties
        if TIMER_DEL_UNIQKEY in property_map:
            # A client without RECALL_MESSAGE cancels a timer this way: the send itself is not stored as a message.
            _, result = self.recalls.cancel(property_map[TIMER_DEL_UNIQKEY], message.peer.packed)
            return StoredMessages(draft, [result], result.offset + result.size, started)
        result = self.store.put(draft)
        if draft.topic == HALF_TOPIC:
            self.transactions.on_half_stored(result.queue_offset)
        elif draft.topic == TIMER_TOPIC and UNIQ_KEY in property_map:
            broker, due_ms = self.settings.current.broker_name, draft.tags_code or 0
            topic, unique_key = message.request.topic, property_map[UNIQ_KEY]
            context["recallHandle"] = ids.recall_handle(topic, broker, due_ms, unique_key)
        return StoredMessages(draft, [result], result.offset + result.size, started)

    def _store_batch(self, message: IncomingMessage) -> StoredMessages:
        drafts = self._draft_batch(message)
        started = self.stats.timer()
        results = self.store.put_batch(drafts)
        return StoredMessages(drafts[0], results, results[-1].offset + results[-1].size, started)

    def _draft_single(self, message: IncomingMessage) -> RecordDraft:
        """Return the record to append: as sent, delayed, as a half message, or as a dead letter."""
        request, topic, property_map = message.request, message.topic, message.properties
        name, queue_id = topic.topic_name, message.queue_id
        reconsume_times = request.reconsume_times or 0
        if name.startswith(RETRY_PREFIX):
            name, queue_id = self.targets.retry_target(request, queue_id)
            if name != topic.topic_name:
                delayed_delivery.remove_delay(property_map)  # a dead letter is stored without a further delay
        is_half = _is_half_message(property_map, request.topic, reconsume_times)
        if is_half:
            self._check_half_message(message)
        else:
            _check_transaction_bits(property_map, request.sys_flag)
        property_map[CLUSTER] = self.settings.current.broker_cluster_name
        draft = RecordDraft(
            topic=name,
            queue_id=queue_id,
            body=message.body,
            properties=properties.join(property_map),
            tags=property_map.get(TAGS, ""),
            flag=request.flag,
            sys_flag=_stored_sys_flag(message),
            born_ms=request.born_ms,
            born_host=message.peer.packed,
            reconsume_times=reconsume_times,
        )
        if is_half:
            return self.transactions.redirect(draft, property_map)
        return self.delays.schedule(draft, property_map)

    def _draft_batch(self, message: IncomingMessage) -> list[RecordDraft]:
        request, topic = message.request, message.topic
        if topic.topic_name.startswith(RETRY_PREFIX):
            raise ProtocolError("a batch cannot be sent to a retry topic")
        max_bytes = self.settings.current.max_message_size
        if len(message.body) > max_bytes:
            raise ProtocolError(f"a batch of {len(message.body)} bytes, at most {max_bytes} are allowed")
        _check_batch_entry(message.properties, request.sys_flag)
        cluster, sys_flag, drafts = self.settings.current.broker_cluster_name, _stored_sys_flag(message), []
        # 5.x clients give the batch an id, too; stored, it would replace that of each message.
        common = {name: value for name, value in message.properties.items() if name != UNIQ_KEY}
        entries = batch.decode(message.body)
        if batch.exceeds_stored_max(entries, common):  # known before any text is built
            raise _too_large_batch()
        size = 0
        for entry in entries:
            # The properties of the request hold for each message of the batch and win over its own.
            property_map = properties.decode(entry.properties)
            property_map.update(common)
            _check_batch_entry(property_map, request.sys_flag)
            if delays := delayed_delivery.delay_properties(property_map):
                names = ", ".join(sorted(delays))
                raise ProtocolError(f"{names}: the messages of a batch cannot be delayed; send them one by one")
            property_map[CLUSTER] = cluster
            text = properties.join(property_map)
            size += len(entry.body) + len(text)
            if size > batch.STORED_MAX:
                raise _too_large_batch()
            drafts.append(
                RecordDraft(
                    topic=topic.topic_name,
                    queue_id=message.queue_id,
                    body=entry.body,
                    properties=text,
                    tags=property_map.get(TAGS, ""),
                    flag=entry.flag,
                    sys_flag=sys_flag,
                    born_ms=request.born_ms,
                    born_host=message.peer.packed,
                    reconsume_times=0,
                )
            )
        if not drafts:
            raise ProtocolError("the batch contains no messages")
        return drafts

    def _check_half_message(self, message: IncomingMessage) -> None:
        """Validate a half message and add to its properties what its commit needs."""
        config, request, property_map = self.settings.current, message.request, message.properties
        if config.reject_transaction_message:
            remark = (
                f"the broker[{config.broker_ip1}] sending transaction message is forbidden: rejectTransactionMessage"
            )
            raise ReplyError(ResponseCode.NO_PERMISSION, remark)
        if delays := delayed_delivery.delay_properties(property_map):
            raise ProtocolError(f"{', '.join(sorted(delays))}: a transactional message cannot be delayed")
        rules.PRODUCER_GROUP.check("producerGroup", request.producer_group)
        property_map.setdefault(PGROUP, request.producer_group)
        wait = properties.decode(request.properties or "").get(WAIT)
        if wait is not None:
            property_map[WAIT] = wait  # of single messages, 4.9.4 stores it in half messages only

    # --- replying ---

    def _flushed_reply(self, stored: StoredMessages, context: dict[str, str], flushed: OffsetWaiter[bool]) -> Reply:
        try:
            is_flushed = flushed.result()
        except FlushFailed as error:
            # The record may be lost with the disk: the response must not carry the id of a message that may not exist.
            self.stats.record_put_failure()
            context = {name: context[name] for name in ("MSG_REGION", "TRACE_ON")}
            return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, context, str(error))
        self._count(stored)
        # A timeout is not a failure: the record is in the file and may still reach the disk, so the client learns
        # FLUSH_DISK_TIMEOUT together with the message id and decides for itself whether to resend.
        return Reply(ResponseCode.SUCCESS if is_flushed else ResponseCode.FLUSH_DISK_TIMEOUT, context)

    def _count(self, stored: StoredMessages) -> None:
        stats, first, results = self.stats, stored.first, stored.results
        size = stored.end_offset - results[0].offset
        if first.topic == SCHEDULE_TOPIC:
            stats.record_delayed_send(first.queue_id, len(results), size)
        else:
            stats.record_send(first.topic, len(results), size)
        stats.record_put_time(stats.timer() - stored.started)


async def _reply_when_replicated(
    replicated: OffsetWaiter[ResponseCode], reply: Reply | Awaitable[Reply], context: dict[str, str]
) -> Reply:
    """Wait for disk and slave in parallel. A slave's failure wins over a flush timeout, as in Java."""
    flushed = reply if isinstance(reply, Reply) else await reply
    if flushed.code == ResponseCode.SERVICE_NOT_AVAILABLE:
        return flushed
    code = await replicated
    return flushed if code == ResponseCode.SUCCESS else Reply(code, context)


def _stored_sys_flag(message: IncomingMessage) -> int:
    sys_flag = message.request.sys_flag
    return sys_flag | MULTI_TAGS if message.topic.topic_filter_type == "MULTI_TAG" else sys_flag


def _is_half_message(property_map: dict[str, str], topic: str, reconsume_times: int) -> bool:
    """Return True if a message begins a transaction.

    Clients before 4.6.1 leave TRAN_MSG on the messages that they send to a retry topic; these are ordinary messages, also
    if they end as dead letters.
    """
    mark = property_map.get(TRAN_MSG)
    if mark is None or mark.lower() != "true":
        return False
    return reconsume_times == 0 or not (topic.startswith(RETRY_PREFIX) or property_map.get(DELAY, "0") != "0")


def _check_transaction_bits(property_map: dict[str, str], sys_flag: int) -> None:
    # The bits alone would mark the record as prepared or committed without a half message that checks could find.
    if sys_flag & TRANSACTION_MASK and property_map.get(TRAN_MSG, "").lower() != "true":
        raise ProtocolError(f"sysFlag {sys_flag:#x} has transaction bits, but the message has no {TRAN_MSG} property")


def _check_batch_entry(property_map: dict[str, str], sys_flag: int) -> None:
    """Raise ProtocolError if a message of a batch is transactional."""
    _check_transaction_bits(property_map, sys_flag)
    if property_map.get(TRAN_MSG, "").lower() == "true":
        raise ProtocolError(f"{TRAN_MSG}: a batch cannot be transactional, send its messages one by one")


def _too_large_batch() -> ProtocolError:
    return ProtocolError(
        f"a batch whose messages have more than {batch.STORED_MAX} bytes with the properties of the request"
    )
