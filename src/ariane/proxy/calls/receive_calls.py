"""Receiving, acknowledging, changing the invisible time, and dead letters. [ReceiveMessageActivity, AckMessageActivity]

ReceiveMessage ─▶ POP_MESSAGE of all queues, parked until messages arrive ─▶ status, messages, delivery timestamp
    └ delivered more often than the group allows ─▶ dead letter and acknowledged, not sent to the client

A call that is cancelled, or whose client is lost, ends the parked request. Messages that were not sent are visible again at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ariane.errors import ArianeError, ReplyError
from ariane.filter import tags
from ariane.kernels.grpc_port import ReceivedMessage, Reception
from ariane.model import message as names
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records import record
from ariane.protocol.records.record import Record
from ariane.protocol.requests.messaging import TAG, ConsumerSendMsgBack
from ariane.protocol.requests.pop import FROM_END, AckMessage, ChangeInvisibleTime, PopMessage
from ariane.proxy import api
from ariane.proxy.calls.call import Call, ReceivedEncoder
from ariane.proxy.conversion import client_settings, field_checks, grpc_messages, grpc_statuses, receipt_handles
from ariane.proxy.conversion.client_settings import ClientKind
from ariane.proxy.conversion.grpc_statuses import CallRefused, StatusCode
from ariane.proxy.conversion.receipt_handles import DeliveryKey, ReceiptHandle
from ariane.proxy.handle_renewal import HandleRenewal
from ariane.proxy.message_service import MessageService, PoppedRecords
from ariane.proxy.traces.message_traces import DeliveredMessage, MessageTraces

ALL_QUEUES = -1
BATCH_MAX = 32
POLL_MS_MIN, POLL_MS_MAX = 5_000, 20_000
ANSWER_BEFORE_MS = 200  # of the deadline: a client that misses it pauses for a second
RENEWED_INVISIBLE_MS = 60_000
DEAD_LETTER_LEVEL = -1
ACKS_PER_TURN = 64  # acknowledgements of one call without a pause: some 5 ms
NACK_MS = 1  # a message that was not delivered is visible again at once


class _Reception(NamedTuple):
    """A receive call whose fields are checked."""

    topic: Any  # as the client named it
    broker: str
    request: PopMessage
    is_renewed: bool


class _SentPart(NamedTuple):
    """What is sent to the client at once."""

    reply: Any
    """A reply with one message, or several replies as bytes."""
    deliveries: list[tuple[ReceiptHandle, DeliveredMessage]]


@dataclass(frozen=True, kw_only=True)
class ReceiveCalls:
    """Calls of consumers."""

    service: MessageService
    renewal: HandleRenewal
    traces: MessageTraces
    tasks: BackgroundTasks  # for work that outlives its call
    now_ms: Callable[[], int]

    async def receive(self, request: Any, call: Call) -> AsyncIterator[Any]:
        """Yield the messages of a receive call. An empty one waits, and ends with MESSAGE_NOT_FOUND."""
        reception = await self._check(request, call)
        popped = reception.request
        try:
            taken = await self.service.pop(call.caller, reception.broker, popped) if popped.max_msg_nums else None
        except ReplyError as error:
            if error.code != ResponseCode.POLLING_TIMEOUT:
                raise
            taken = None
        parts = [] if taken is None else await self._deliver(reception, taken, call)
        if parts:
            yield api.ReceiveMessageResponse(status=grpc_statuses.ok())
        else:
            text = "no new message" if taken is None else "no match message"
            yield api.ReceiveMessageResponse(status=grpc_statuses.status(StatusCode.MESSAGE_NOT_FOUND, text))
        sent = 0
        try:
            for part in parts:
                if self.traces.tracks_deliveries:  # before the client can acknowledge the messages
                    self._trace_deliveries(part, popped, call)
                yield part.reply
                sent += 1
                if reception.is_renewed and taken is not None:
                    for handle, _ in part.deliveries:
                        self.renewal.add(
                            call.caller, call.session, popped, handle, retains_handle=taken.retains_handles
                        )
            now = api.ReceiveMessageResponse()
            now.delivery_timestamp.FromMilliseconds(self.now_ms())
            yield now
        finally:
            if unsent := [handle for part in parts[sent:] for handle, _ in part.deliveries]:
                self._release(reception, unsent, call)

    async def ack_message(self, request: Any, call: Call) -> Any:
        """Acknowledge messages, each with a result of its own."""
        group, topic = field_checks.group_name(request.group), field_checks.topic_name(request.topic)
        field_checks.check_entries(request.entries)
        if not request.entries:
            raise CallRefused(StatusCode.INTERNAL_SERVER_ERROR, "ack message result is empty")
        if len(request.entries) == 1:  # most calls; it needs no task of its own
            entries = [await self._acknowledge(request.entries[0], group, topic, call)]
        else:
            entries = await self._acknowledge_many(request.entries, group, topic, call)
        status = grpc_statuses.of_entries([entry.status for entry in entries])
        return api.AckMessageResponse(status=status, entries=entries)

    async def change_invisible_duration(self, request: Any, call: Call) -> Any:
        """Change when a message is delivered again."""
        group, topic = field_checks.group_name(request.group), field_checks.topic_name(request.topic)
        invisible_ms = request.invisible_duration.ToMilliseconds()
        field_checks.check_invisible_ms(invisible_ms, 0)
        named = receipt_handles.parse(request.receipt_handle)
        handle = self.renewal.current(group, topic, named)
        stored = handle.stored_topic(group, topic)
        changed = await self.service.change_invisible_time(
            call.caller,
            handle.broker,
            ChangeInvisibleTime(group, stored, handle.queue_id, handle.extra_info, handle.offset, invisible_ms),
        )
        key, new = named.key(group, topic), handle.changed(changed)
        self.renewal.close(key, named.taken_ms)  # refused changes end nothing: the caller may lack the permission
        self._trace_change(key, named, new, call)
        return api.ChangeInvisibleDurationResponse(status=grpc_statuses.ok(), receipt_handle=str(new))

    async def forward_message_to_dead_letter_queue(self, request: Any, call: Call) -> Any:
        """Store a message as a dead letter of its group, and acknowledge it."""
        group, topic = field_checks.group_name(request.group), field_checks.topic_name(request.topic)
        handle = receipt_handles.parse(request.receipt_handle)
        await self._bury(group, topic, handle, call)
        key = handle.key(group, topic)
        self.renewal.close(key, handle.taken_ms)
        self.traces.returned(key, handle.taken_ms)
        return api.ForwardMessageToDeadLetterQueueResponse(status=grpc_statuses.ok())

    # --- receiving ---

    async def _check(self, request: Any, call: Call) -> _Reception:
        group = field_checks.group_name(request.group)
        topic = field_checks.topic_name(request.message_queue.topic)
        subscription = client_settings.subscription_data(
            request.message_queue.topic, request.filter_expression, self.now_ms()
        )
        poll_ms = self._poll_ms(request, call)
        if request.auto_renew:
            invisible_ms = RENEWED_INVISIBLE_MS
        else:
            invisible_ms = request.invisible_duration.ToMilliseconds()
            field_checks.check_invisible_ms(invisible_ms, field_checks.INVISIBLE_MS_MIN)
        call.session.note_subscription(group, subscription)
        is_ordered = (await self.service.group(call.caller, group)).is_ordered
        has_queue = is_ordered and request.auto_renew  # of QueryAssignment; a simple consumer receives from all
        popped = PopMessage(
            consumer_group=group,
            topic=topic,
            queue_id=request.message_queue.id if has_queue else ALL_QUEUES,
            max_msg_nums=min(max(request.batch_size, 0), BATCH_MAX),
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=self.now_ms(),
            init_mode=FROM_END,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=is_ordered,
            attempt_id=request.attempt_id if request.HasField("attempt_id") else None,
        )
        return _Reception(request.message_queue.topic, request.message_queue.broker.name, popped, request.auto_renew)

    def _poll_ms(self, request: Any, call: Call) -> int:
        """Return how long a call may wait for messages: it is answered before its deadline."""
        settings = call.session.settings
        timeout_ms = settings.request_timeout_ms if settings is not None else client_settings.REQUEST_TIMEOUT_MS
        if request.HasField("long_polling_timeout"):
            poll_ms: int = request.long_polling_timeout.ToMilliseconds()
        elif call.remaining_ms is not None:
            poll_ms = int(call.remaining_ms) - timeout_ms // 2
        else:
            poll_ms = POLL_MS_MAX
        poll_ms = min(max(poll_ms, POLL_MS_MIN), POLL_MS_MAX)
        if call.remaining_ms is None:
            return poll_ms
        if call.remaining_ms < POLL_MS_MIN:
            text = "The deadline time remaining is not enough for polling, please check network condition"
            raise CallRefused(StatusCode.ILLEGAL_POLLING_TIME, text)
        return min(poll_ms, int(call.remaining_ms) - ANSWER_BEFORE_MS)

    async def _deliver(self, reception: _Reception, taken: PoppedRecords, call: Call) -> list[_SentPart]:
        """Return the messages to deliver, with their handles. Those without attempts left become dead letters."""
        popped, delivered = reception.request, list[_SentPart]()
        group = await self.service.group(call.caller, popped.consumer_group)
        attempts_max = client_settings.max_attempts(group)
        encoded = None if call.encoder is None else _encoded(reception, taken, attempts_max, call.encoder)
        if encoded is not None:
            return encoded
        records = record.decode_all(taken.records)
        for item, handle in receipt_handles.with_handles(records, popped, taken.broker, taken.header):
            if item.reconsume_times >= attempts_max and not popped.order:
                await self._bury(popped.consumer_group, popped.topic, handle, call)
            elif not _has_tag(item, popped):
                await self._end(popped.consumer_group, popped.topic, handle, call)
            else:
                message = grpc_messages.received(item, reception.topic, handle=str(handle))
                reply = api.ReceiveMessageResponse(message=message)
                delivered.append(_SentPart(reply, [(handle, DeliveredMessage.of(item))]))
        return delivered

    def _trace_deliveries(self, part: _SentPart, popped: PopMessage, call: Call) -> None:
        for handle, message in part.deliveries:
            key = handle.key(popped.consumer_group, popped.topic)
            visible_ms = handle.taken_ms + handle.invisible_ms
            self.traces.delivered(call.caller.peer, key, message, handle.taken_ms, visible_ms)

    def _release(self, reception: _Reception, handles: list[ReceiptHandle], call: Call) -> None:
        """Make messages visible that the client did not get."""

        async def change() -> None:
            group, topic = reception.request.consumer_group, reception.request.topic
            for handle in handles:
                self.traces.returned(handle.key(group, topic), handle.taken_ms)
                stored = handle.stored_topic(group, topic)
                request = ChangeInvisibleTime(group, stored, handle.queue_id, handle.extra_info, handle.offset, NACK_MS)
                await self.service.change_invisible_time(call.caller, handle.broker, request)

        self.tasks.start(change(), f"release messages of {call.caller.peer.addr}")

    # --- ending deliveries ---

    async def _acknowledge_many(self, entries: Sequence[Any], group: str, topic: str, call: Call) -> list[Any]:
        """Acknowledge messages, with pauses for other calls. They wait for the disk together."""
        tasks = []
        async with asyncio.TaskGroup() as acknowledging:
            for number, entry in enumerate(entries, start=1):
                tasks.append(acknowledging.create_task(self._acknowledge(entry, group, topic, call)))
                if number % ACKS_PER_TURN == 0:
                    await asyncio.sleep(0)
        return [task.result() for task in tasks]

    async def _acknowledge(self, entry: Any, group: str, topic: str, call: Call) -> Any:
        try:
            handle = receipt_handles.parse(entry.receipt_handle)
            await self._end(group, topic, handle, call)
            key = handle.key(group, topic)
            self.renewal.close(key, handle.taken_ms)
            self.traces.acknowledged(key, handle.taken_ms)
            status = grpc_statuses.ok()
        except ArianeError as error:
            status = grpc_statuses.of_refusal(call.refusal_of(error))
        return api.AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
        )

    def _trace_change(self, key: DeliveryKey, handle: ReceiptHandle, new: ReceiptHandle, call: Call) -> None:
        """Note a change: a push consumer returns a message by it, a simple one goes on consuming it."""
        settings = call.session.settings
        if settings is not None and settings.kind is ClientKind.PUSH_CONSUMER:
            self.traces.returned(key, handle.taken_ms)
        else:
            self.traces.hidden(key, handle.taken_ms, new.taken_ms, new.taken_ms + new.invisible_ms)

    async def _bury(self, group: str, topic: str, handle: ReceiptHandle, call: Call) -> None:
        """Store a message as a dead letter, then acknowledge it: a crash in between stores it twice, and never loses it."""
        await self.service.send_back(
            call.caller,
            handle.broker,
            ConsumerSendMsgBack(handle.log_offset, group, DEAD_LETTER_LEVEL, origin_topic=topic, max_reconsume_times=0),
        )
        await self._end(group, topic, handle, call)

    async def _end(self, group: str, topic: str, handle: ReceiptHandle, call: Call) -> None:
        """Acknowledge a message."""
        current = self.renewal.current(group, topic, handle)
        stored = current.stored_topic(group, topic)
        request = AckMessage(group, stored, current.queue_id, current.extra_info, current.offset)
        await self.service.acknowledge(call.caller, current.broker, request)


def _has_tag(item: Record, popped: PopMessage) -> bool:
    """Return whether the tag is one of the subscription: the broker compares hashes, which may collide."""
    selected = _tags(popped)
    return selected is None or item.property_map().get(names.TAGS, "") in selected


def _tags(popped: PopMessage) -> frozenset[str] | None:
    """Return the tags of a subscription; None for all messages, and another expression."""
    return tags.parse(popped.exp) if popped.exp_type == TAG else None


def _encoded(
    reception: _Reception, taken: PoppedRecords, attempts_max: int, encoder: ReceivedEncoder
) -> list[_SentPart] | None:
    """Return messages as the transport encodes them together; None if there is a decision about one of them."""
    popped, header = reception.request, taken.header
    starts = receipt_handles.first_offsets(header)
    if any(retry for retry, _ in starts):
        return None
    shared = Reception(
        reception.topic.resource_namespace,
        popped.topic,
        taken.broker,
        (header.pop_time, header.invisible_time, header.revive_qid),
        {queue_id: start for (_, queue_id), start in starts.items()},
        (None if popped.order else attempts_max, _tags(popped)),
    )
    parts = encoder.encode_received(taken.records, shared)

    def delivery(message: ReceivedMessage) -> tuple[ReceiptHandle, DeliveredMessage]:
        start, queue_id, offset, log_offset, message_id, keys, reconsume_times, is_traced = message
        handle = ReceiptHandle(start, *shared.delivery, taken.broker, queue_id, offset, log_offset)
        return handle, DeliveredMessage(message_id, keys, reconsume_times, is_traced)

    return None if parts is None else [_SentPart(framed, list(map(delivery, messages))) for framed, messages in parts]
