"""SendMessage and RecallMessage. [SendMessageActivity, RecallMessageActivity]

message ─▶ checks (`field_checks`) ─▶ type accepted by the topic? ─▶ queue: of its group, or the next ─▶ MessageService.send
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ariane.errors import ArianeError, ProtocolError, ReplyError
from ariane.model import ids
from ariane.model.hashes import string_hash
from ariane.model.message import TRANSACTION_PREPARED, UNIQ_KEY, MessageQueue
from ariane.model.topic import PERM_WRITE
from ariane.model.topic_attributes import TopicMessageType
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records import properties
from ariane.protocol.requests.messaging import RecallMessage, SendMessage
from ariane.proxy import api
from ariane.proxy.calls.call import Call, ProxySettings, kinds_on
from ariane.proxy.conversion import field_checks, grpc_messages, grpc_statuses
from ariane.proxy.conversion.grpc_messages import OutgoingMessage
from ariane.proxy.conversion.grpc_statuses import CallRefused, StatusCode
from ariane.proxy.message_service import BrokerTopic, MessageService
from ariane.proxy.traces.message_traces import MessageTraces, TracedSend
from ariane.proxy.transaction_ids import transaction_id

HASH_MULTIPLIER = 2_862_933_555_777_941_757  # of Guava's consistentHash


@dataclass(frozen=True, kw_only=True)
class SendCalls:
    """Calls that store messages, or cancel stored ones."""

    service: MessageService
    settings: ProxySettings
    traces: MessageTraces
    now_ms: Callable[[], int]
    turn: itertools.count[int] = field(
        default_factory=itertools.count
    )  # messages without a group take the queues of all brokers in turn

    async def send_message(self, request: Any, call: Call) -> Any:
        """Store messages, each with a result of its own."""
        if not request.messages:
            raise CallRefused(StatusCode.MESSAGE_CORRUPTED, "no message to send")
        field_checks.check_entries(request.messages)
        if any(message.topic != request.messages[0].topic for message in request.messages):
            raise CallRefused(StatusCode.MESSAGE_CORRUPTED, "topic in message is not same")
        limits, now_ms = self.settings.send_limits, self.now_ms()
        messages = [grpc_messages.outgoing(message, limits, now_ms) for message in request.messages]
        on_brokers = await self._topic(messages, call)
        entries = [await self._send(message, self._queue(message, on_brokers), call) for message in messages]
        return api.SendMessageResponse(
            status=grpc_statuses.of_entries([entry.status for entry in entries]), entries=entries
        )

    async def recall_message(self, request: Any, call: Call) -> Any:
        """Cancel a delayed message."""
        name = field_checks.topic_name(request.topic)
        on_brokers = await self.service.topic(call.caller, name)
        kinds = [kinds_on(on_broker, self.settings) for on_broker in on_brokers]
        if not any(TopicMessageType.DELAY in of_broker for of_broker in kinds):
            raise _conflict(kinds[0], TopicMessageType.DELAY)
        broker = ids.recall_broker(request.recall_handle)
        try:
            key = await self.service.recall(call.caller, broker, RecallMessage(request.recall_handle, name))
        except ArianeError:
            self.traces.recalled(call.caller.peer, name, ids.recalled_key(request.recall_handle), is_success=False)
            raise
        self.traces.recalled(call.caller.peer, name, key, is_success=True)
        return api.RecallMessageResponse(status=grpc_statuses.ok(), message_id=key)

    async def _topic(self, messages: list[OutgoingMessage], call: Call) -> list[BrokerTopic]:
        """Return the topic on the brokers that accept all messages."""
        try:
            on_brokers = await self.service.topic(call.caller, messages[0].topic)
        except ReplyError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            raise CallRefused(StatusCode.TOPIC_NOT_FOUND, f"{error.remark}: create it first") from None
        sent = dict.fromkeys(message.kind for message in messages)
        kinds = [kinds_on(on_broker, self.settings) for on_broker in on_brokers]
        accepting = [
            on_broker
            for on_broker, of_broker in zip(on_brokers, kinds, strict=True)
            if all(kind in of_broker for kind in sent)
        ]
        if not accepting:
            raise _conflict(kinds[0], next((kind for kind in sent if kind not in kinds[0]), messages[0].kind))
        writable = [each for each in accepting if each.topic.perm & PERM_WRITE and each.topic.write_queue_nums]
        if not writable:
            raise CallRefused(StatusCode.FORBIDDEN, "no writable queue")
        call.session.note_topic(messages[0].topic)
        return writable

    async def _send(self, message: OutgoingMessage, queue: MessageQueue, call: Call) -> Any:
        try:
            text = properties.encode(message.properties)
        except ProtocolError as error:
            raise CallRefused(StatusCode.ILLEGAL_MESSAGE_PROPERTY_KEY, str(error)) from None
        is_half = message.kind is TopicMessageType.TRANSACTION
        header = SendMessage(
            producer_group=queue.topic,  # as in 5.x: transactions are checked with any producer of the topic
            topic=queue.topic,
            default_topic="",
            default_topic_queue_nums=0,
            queue_id=queue.queue_id,
            sys_flag=TRANSACTION_PREPARED if is_half else 0,
            born_ms=message.born_ms,
            flag=0,
            properties=text,
        )
        trace = TracedSend(call.caller.peer, header, message.properties, len(message.body), self.now_ms())
        try:
            stored = await self.service.send(call.caller, queue.broker, header, message.body)
        except ArianeError as error:
            self.traces.sent(trace, None)
            return api.SendResultEntry(status=grpc_statuses.of_refusal(call.refusal_of(error)))
        self.traces.sent(trace, stored)
        message_id = message.properties[UNIQ_KEY]
        transaction = message_id
        if is_half:
            log_offset = ids.parse_offset_message_id(stored.message_id)[1]
            transaction = transaction_id(message_id, stored.queue_offset, log_offset, queue.broker)
        return api.SendResultEntry(
            status=grpc_statuses.ok(),
            message_id=message_id,
            transaction_id=transaction,
            offset=stored.queue_offset,
            recall_handle=stored.recall_handle or "",
        )

    def _queue(self, message: OutgoingMessage, on_brokers: list[BrokerTopic]) -> MessageQueue:
        """Return the queue of a message: queues are numbered over all brokers.

        That of a message group is always the same, for its order. Other messages avoid brokers that do not answer.
        """
        group = message.message_group
        if not group:
            on_brokers = [each for each in on_brokers if each.answers] or on_brokers
        count = sum(each.topic.write_queue_nums for each in on_brokers)
        number = consistent_hash(string_hash(group), count) if group else next(self.turn) % count
        place = 0
        while number >= on_brokers[place].topic.write_queue_nums:
            number -= on_brokers[place].topic.write_queue_nums
            place += 1
        return MessageQueue(message.topic, on_brokers[place].broker, number)


def consistent_hash(value: int, buckets: int) -> int:
    """Return the bucket of a number; more buckets change few of them. [Hashing.consistentHash]"""
    state, bucket, following = value & 0xFFFF_FFFF_FFFF_FFFF, -1, 0
    while following < buckets:
        bucket = following
        state = (state * HASH_MULTIPLIER + 1) & 0xFFFF_FFFF_FFFF_FFFF
        following = int((bucket + 1) / ((float((state >> 33) + 1)) / float(1 << 31)))
    return bucket


def _conflict(kinds: tuple[TopicMessageType, ...], kind: TopicMessageType) -> CallRefused:
    expected = " or ".join(each.name for each in kinds)
    text = f"TopicMessageType validate failed, the expected type is {expected}, but actual type is {kind.name}"
    return CallRefused(StatusCode.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
