"""POP of 5.x: POP_MESSAGE (200050), its acknowledgements, and requests about parked ones.

[PopMessageProcessor, AckMessageProcessor, ChangeInvisibleTimeProcessor, NotificationProcessor]

POP_MESSAGE → checks, filter (`pull_filter`) → PopService.take of each queue ─ messages ─→ reply
                                                                            └ none ─────→ ParkedPolls → reply
ACK_MESSAGE, BATCH_ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME → PopService → reply when the change is durable
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from ariane.broker.collaborators import LockDurability
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.delivery.pop.delivery_clients import DeliveryClients
from ariane.broker.delivery.pop.parked_polls import ParkedPolls, PollKey
from ariane.broker.delivery.pop.pop_service import BATCH_BYTES_MAX, PopService, TakenBatch
from ariane.broker.handlers.reading.pull import pulled_messages
from ariane.broker.handlers.reading.pull_filter import PullFilterBuilder
from ariane.broker.state.pop_table import QueueKey
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.clock import Clock
from ariane.errors import FlushFailed, ReplyError, StoreError
from ariane.model.topic import pop_topics, popping_topics
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.net.replies import abandon
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_body, decode_header, encode_header
from ariane.protocol.requests.messaging import SUBSCRIPTION, PullMessage
from ariane.protocol.requests.pop import (
    FROM_END,
    ORDERED_QUEUE,
    AckedDelivery,
    AckMessage,
    BatchAck,
    BatchAckBody,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PollingInfo,
    PollingInfoResponse,
    PopMessage,
    PopMessageResponse,
    PopNotification,
    PopNotificationResponse,
    parse_handle,
)
from ariane.store.message_store import MessageStore, RecordFilter

log = logging.getLogger("ariane.broker")

COUNT_MAX = 32  # messages of one request, as in 5.x
HOLD_MAX_MS = 120_000  # longer than any client waits for its response
ALL_QUEUES = -1
ALL_QUEUES_MAX = 1_024  # queues of a topic whose messages can be taken from all of them at once: some 30 µs for each


class _Poll(NamedTuple):
    """A request that may be parked."""

    request: PopMessage
    record_filter: RecordFilter
    peer: Peer
    reply: list[Reply]
    """Empty until it is answered."""


@dataclass(frozen=True, kw_only=True)
class PopHandler:
    """Delivers messages to POP consumers."""

    settings: DynamicConfig
    filters: PullFilterBuilder  # checks and filter of a request
    topics: TopicRegistry
    store: MessageStore
    service: PopService
    polls: ParkedPolls[_Poll]  # requests that found nothing
    clients: DeliveryClients  # for tools
    durability: LockDurability  # an acknowledgement is answered once it survives a restart
    stats: BrokerStats  # messages and bytes by group
    clock: Clock
    turn: Iterator[int] = field(default_factory=itertools.count)  # each request begins with another queue

    def pop(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle POP_MESSAGE. The reply is an awaitable if the request is parked."""
        request = decode_header(command, PopMessage)
        try:
            poll = _Poll(request, self._check(request), peer, [])
        except ReplyError as error:
            return _nothing(error.code, error.remark)
        if self._serve(poll):
            return self._when_durable(poll.reply[0])
        if request.poll_time <= 0:
            return _nothing(ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        return self._park(poll, self.store.commit_log_max)

    def ack(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle ACK_MESSAGE. A delivery that has ended is acknowledged once more, without effect."""
        request = decode_header(command, AckMessage)
        handle = parse_handle(request.extra_info)
        key = QueueKey(request.consumer_group, request.topic, request.queue_id)
        self._check_offsets(key, (request.offset,))
        self.service.acknowledge(key, handle.taken_ms, (request.offset,))
        return self._acknowledged(key, is_ordered=handle.revive_queue == ORDERED_QUEUE)

    def batch_ack(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle BATCH_ACK_MESSAGE. Offsets that the queue does not have are ignored."""
        acks = decode_body(command, BatchAckBody).acks
        if not acks:
            return Reply(ResponseCode.NO_MESSAGE, remark="the request acknowledges no message")
        keys = [QueueKey(ack.group, _stored_topic(ack), ack.queue_id) for ack in acks]
        self.service.acknowledge_all([(key, ack.taken_ms, ack.offsets) for key, ack in zip(keys, acks, strict=True)])
        for ack in acks:
            self.polls.wake(ack.group, ack.topic)
        return self._when_durable(Reply())

    def ack_all(self, deliveries: Sequence[AckedDelivery]) -> Awaitable[None] | None:
        """Acknowledge what several requests of ACK_MESSAGE would, all or nothing.

        Returns:
            None if that survives a restart; otherwise an awaitable that raises FlushFailed.

        Raises:
            ReplyError: a queue does not have one of the offsets.
            StoreError: the acknowledgements cannot be stored.
        """
        acks = []
        for each in deliveries:
            key = QueueKey(each.group, each.topic, each.queue_id)
            self._check_offsets(key, each.offsets)
            acks.append((key, each.taken_ms, each.offsets))
        self.service.acknowledge_all(acks)
        for each in deliveries:
            if each.is_ordered:  # the next messages of the queue may be taken
                self.polls.wake(each.group, each.topic)
        return self.durability.wait_locks_durable()

    def change_invisible_time(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle CHANGE_MESSAGE_INVISIBLETIME: the response has the parts of the new handle.

        The change of a delivery that has ended succeeds without effect: its response has the handle of the request, since a new
        one could be that of the delivery that followed.
        """
        request = decode_header(command, ChangeInvisibleTime)
        handle, now_ms = parse_handle(request.extra_info), self.clock.now_ms()
        key = QueueKey(request.consumer_group, request.topic, request.queue_id)
        try:
            self._check_offsets(key, (request.offset,))
        except ReplyError as error:  # clients of 5.x need the fields of any response
            return Reply(error.code, encode_header(ChangeInvisibleTimeResponse()), error.remark)
        is_ordered = handle.revive_queue == ORDERED_QUEUE
        if is_ordered and request.offset < self.service.committed(key):
            return Reply(fields=encode_header(ChangeInvisibleTimeResponse()))
        # An ordered batch keeps its handle: the other messages of it are acknowledged with the same.
        taken_ms = handle.taken_ms if is_ordered else max(now_ms, handle.taken_ms + 1)
        visible_ms = max(now_ms, taken_ms) + max(1, request.invisible_time)
        if self.service.hide(key, handle.taken_ms, request.offset, taken_ms, visible_ms):
            self.clients.renew(key, handle.taken_ms, taken_ms)
        else:
            taken_ms = handle.taken_ms
        for topic in popping_topics(key.group, key.topic):
            self.polls.schedule(key.group, topic)
        fields = ChangeInvisibleTimeResponse(taken_ms, visible_ms - taken_ms, handle.revive_queue)
        return self._when_durable(Reply(fields=encode_header(fields)))

    def notification(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle NOTIFICATION: whether there are messages to take, parked until there are."""
        request = decode_header(command, PopNotification)
        poll = _Poll(
            PopMessage(
                request.consumer_group,
                request.topic,
                request.queue_id,
                max_msg_nums=0,
                invisible_time=0,
                poll_time=request.poll_time,
                order=request.order,
                attempt_id=request.attempt_id,
            ),
            RecordFilter(),
            peer,
            [],
        )
        self._check(msgspec.structs.replace(poll.request, max_msg_nums=1))
        if self._serve(poll):
            return poll.reply[0]
        if request.poll_time <= 0:
            return Reply(fields=encode_header(PopNotificationResponse(False)))
        return self._park(poll, self.store.commit_log_max)

    def polling_info(self, command: Command, peer: Peer) -> Reply:
        """Handle POLLING_INFO: how many requests are parked."""
        request = decode_header(command, PollingInfo)
        count = self.polls.count(request.consumer_group, request.topic, request.queue_id)
        return Reply(fields=encode_header(PollingInfoResponse(count)))

    # --- checks ---

    def _check(self, request: PopMessage) -> RecordFilter:
        """Return the filter of a request. Raise ReplyError as pulls do."""
        ip = self.settings.current.broker_ip1
        if self.settings.current.is_slave:
            raise ReplyError(
                ResponseCode.NO_PERMISSION, f"the broker[{ip}] is a slave: messages are taken from the master"
            )
        if not 0 < request.max_msg_nums <= COUNT_MAX:
            remark = f"the broker[{ip}] pop message's num is not from 1 to {COUNT_MAX}: {request.max_msg_nums}"
            raise ReplyError(ResponseCode.INVALID_PARAMETER, remark)
        topic = self.topics.get(request.topic)
        if topic is not None and not ALL_QUEUES <= request.queue_id < topic.read_queue_nums:
            remark = (
                f"queueId[{request.queue_id}] is illegal, topic:[{request.topic}]"
                f" topicConfig.readQueueNums:[{topic.read_queue_nums}]"
            )
            raise ReplyError(ResponseCode.INVALID_PARAMETER, remark)
        if topic is not None and request.queue_id == ALL_QUEUES and topic.read_queue_nums > ALL_QUEUES_MAX:
            remark = (
                f"queueId[{ALL_QUEUES}] is illegal, topic:[{request.topic}] topicConfig.readQueueNums:[{topic.read_queue_nums}]:"
                f" all queues of a topic are served together up to {ALL_QUEUES_MAX}; name one of them"
            )
            raise ReplyError(ResponseCode.INVALID_PARAMETER, remark)
        pull = PullMessage(
            request.consumer_group,
            request.topic,
            max(0, request.queue_id),
            0,
            request.max_msg_nums,
            SUBSCRIPTION,
            subscription=request.exp or "*",
            expression_type=request.exp_type,
        )
        return self.filters.build(pull)

    def _check_offsets(self, key: QueueKey, offsets: Sequence[int]) -> None:
        topic = self.topics.get(key.topic)
        if topic is None:
            raise ReplyError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{key.topic}] does not exist")
        if not 0 <= key.queue_id < topic.read_queue_nums:
            remark = f"queueId[{key.queue_id}] is illegal, topic:[{key.topic}] readQueueNums:[{topic.read_queue_nums}]"
            raise ReplyError(ResponseCode.MESSAGE_ILLEGAL, remark)
        first, end = self.store.min_offset(key.topic, key.queue_id), self.store.max_offset(key.topic, key.queue_id)
        for offset in offsets:
            if not first <= offset < end:
                remark = f"offset is illegal, key:{key.topic}@{key.queue_id}, commit:{offset}, store:{first}~{end}"
                raise ReplyError(ResponseCode.NO_MESSAGE, remark)

    # --- taking ---

    def _serve(self, poll: _Poll, only: int | None = None) -> bool:
        """Answer a request with messages. [Serve]"""
        request, now_ms = poll.request, self.clock.now_ms()
        batches: list[TakenBatch] = []
        rest, room, size = 0, request.max_msg_nums, 0
        for key in self._keys(request, only):
            is_new = request.init_mode == FROM_END and key.topic == request.topic
            queue = self.service.queue(key, from_end=is_new)
            if room > 0 and size < BATCH_BYTES_MAX:
                batch = self._take(key, poll, room, now_ms)
                if batch is not None:
                    batches.append(batch)
                    room -= len(batch.offsets)
                    size += len(batch.records)
            rest += self.service.remaining(key, queue)
            is_blocked = request.order and queue.is_blocked(now_ms, request.attempt_id)
            if not request.max_msg_nums and not is_blocked and self.service.has_messages(key, queue, now_ms):
                poll.reply.append(Reply(fields=encode_header(PopNotificationResponse(True))))
                break
        if batches:
            reply = _found(request, batches, now_ms, rest)
            give_back = functools.partial(self._give_back, request, batches, now_ms)
            poll.reply.append(msgspec.structs.replace(reply, on_unsent=give_back))
            self.polls.schedule(request.consumer_group, request.topic)
        return bool(poll.reply)

    def _give_back(self, request: PopMessage, batches: list[TakenBatch], taken_ms: int) -> None:
        """Make the messages of a response that was not sent visible at once, and serve parked requests with them."""
        now_ms = self.clock.now_ms()
        try:
            for batch in batches:
                self.service.give_back(batch.key, taken_ms, batch.offsets, now_ms)
        except StoreError as error:
            log.warning("Messages of %s stay invisible to %s: %s", request.topic, request.consumer_group, error)
        self.polls.wake(request.consumer_group, request.topic)

    def _take(self, key: QueueKey, poll: _Poll, room: int, now_ms: int) -> TakenBatch | None:
        request, started = poll.request, self.stats.timer()
        batch = self.service.take(
            key,
            room,
            request.invisible_time,
            poll.record_filter,
            now_ms,
            is_ordered=request.order,
            attempt_id=request.attempt_id,
        )
        if batch is not None:
            self.clients.note(key, now_ms, poll.peer)
        if batch is not None and batch.result is not None and batch.result.sizes:
            pulled = pulled_messages(batch.result, self.stats.timer() - started, now_ms)
            self.stats.record_pull(key.topic, key.group, key.queue_id, pulled)
        return batch

    def _keys(self, request: PopMessage, only: int | None) -> list[QueueKey]:
        """Return the queues of a request, then those in which a broker of 5.x has stored retries; `only`: one of the topic."""
        group = request.consumer_group
        if only is not None:
            return [QueueKey(group, request.topic, only)]
        keys = [QueueKey(group, request.topic, queue_id) for queue_id in self._queue_ids(request)]
        for name in () if request.order else pop_topics(group, request.topic)[1:]:
            if (topic := self.topics.get(name)) is not None:
                keys += [QueueKey(group, name, queue_id) for queue_id in range(topic.read_queue_nums)]
        return keys

    def _queue_ids(self, request: PopMessage) -> list[int]:
        if request.queue_id != ALL_QUEUES:
            return [request.queue_id]
        topic = self.topics.get(request.topic)
        count = 0 if topic is None else topic.read_queue_nums
        first = next(self.turn) % count if count else 0
        return [*range(first, count), *range(first)]

    async def _park(self, poll: _Poll, log_end: int) -> Reply:
        request = poll.request
        if self.store.commit_log_max > log_end and self._serve(poll):  # messages since the handler found none
            return poll.reply[0]
        kind = f"{request.exp_type} {request.exp} {request.order} {bool(request.max_msg_nums)}"
        key = PollKey(request.consumer_group, request.topic, request.queue_id, kind)
        queues = [(request.topic, queue_id) for queue_id in self._queue_ids(request)]
        hold_ms = min(request.poll_time, HOLD_MAX_MS)
        try:
            is_served = await self.polls.park(key, queues, poll, self._serve, hold_ms)
        except asyncio.CancelledError:  # the connection was closed after the request was served
            if poll.reply:
                abandon(poll.reply[0])
            raise
        except ReplyError as error:
            return _nothing(error.code, error.remark)
        if is_served:
            reply = self._when_durable(poll.reply[0])
            return reply if isinstance(reply, Reply) else await reply
        if not request.max_msg_nums:
            return Reply(fields=encode_header(PopNotificationResponse(False)))
        return _nothing(ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")

    # --- replying ---

    def _acknowledged(self, key: QueueKey, *, is_ordered: bool) -> HandlerResult:
        if is_ordered:  # the next messages of the queue may be taken
            self.polls.wake(key.group, key.topic)
        return self._when_durable(Reply())

    def _when_durable(self, reply: Reply) -> Reply | Awaitable[Reply]:
        """Return a reply that leaves when its change is as safe as the flush mode promises.

        Deliveries wait, too: of one that a power loss takes back, the acknowledgement would have no effect.
        """
        durable = self.durability.wait_locks_durable()
        return reply if durable is None else _reply_when_durable(durable, reply)


async def _reply_when_durable(durable: Awaitable[None], reply: Reply) -> Reply:
    try:
        await durable
    except asyncio.CancelledError:  # the connection was closed meanwhile
        abandon(reply)
        raise
    except FlushFailed as error:
        abandon(reply)
        return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
    return reply


def _nothing(code: int, remark: str | None) -> Reply:
    return Reply(code, encode_header(PopMessageResponse()), remark)


def _stored_topic(ack: BatchAck) -> str:
    """Return the topic of the queue that an element of BATCH_ACK_MESSAGE names."""
    topics = pop_topics(ack.group, ack.topic)
    return topics[int(ack.retry)] if ack.retry in ("1", "2") else ack.topic


def _found(request: PopMessage, batches: list[TakenBatch], now_ms: int, rest: int) -> Reply:
    topics = pop_topics(request.consumer_group, request.topic)
    queues = [f"{topics.index(batch.key.topic)} {batch.key.queue_id}" for batch in batches]
    header = PopMessageResponse(
        pop_time=now_ms,
        invisible_time=request.invisible_time,
        revive_qid=ORDERED_QUEUE if request.order else 0,
        rest_num=rest,
        start_offset_info=";".join(f"{queue} {batch.offsets[0]}" for queue, batch in zip(queues, batches, strict=True)),
        msg_offset_info=";".join(
            f"{queue} {','.join(map(str, batch.offsets))}" for queue, batch in zip(queues, batches, strict=True)
        ),
        order_count_info=";".join(_order_counts(batches)) if request.order else None,
    )
    return Reply(ResponseCode.SUCCESS, encode_header(header), "FOUND", b"".join(batch.records for batch in batches))


def _order_counts(batches: list[TakenBatch]) -> Iterator[str]:
    """Yield how often messages were delivered before: of each queue, and of each message that is delivered again."""
    for batch in batches:
        yield f"0 {batch.key.queue_id} {max(batch.deliveries.values(), default=0)}"
        for offset, count in batch.deliveries.items():
            yield f"0 qo{batch.key.queue_id}%{offset} {count}"
