"""Sends messages for operators: new ones, copies of stored ones, and series that measure response times. [SendMessageCommand, …]

All use the asyncio producer, which is imported with the first send.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from ariane.cluster.connection import Change, ClusterConnection
from ariane.errors import ArianeError, RouteNotFound
from ariane.model.message import REAL_TOPIC, RETRY_TOPIC, Message, MessageQueue, ReceivedMessage
from ariane.model.topic import AUTO_CREATE_TOPIC, DLQ_PREFIX, PERM_WRITE, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from ariane.net.pools.server_health import ServerHealth
from ariane.protocol.codes import RequestCode

if TYPE_CHECKING:
    from ariane.client.instance.send_types import SendResult
    from ariane.client.producer import Producer
    from ariane.cluster.messages.replay import OriginalMessage

GROUP = "ARIANE_ADMIN"  # producer group of single messages


class TimedSend(NamedTuple):
    """One send of a series.

    Attributes:
        queue: Queue that was selected; None if the broker was left to the producer and the send failed.
        took_ms: Time until the response, or until the error.
        result: What the broker responded; None if the send failed.
        error: Why it failed; None if it did not.
    """

    queue: MessageQueue | None
    took_ms: int
    result: SendResult | None = None
    error: str | None = None


class MessageSendOperations(ClusterConnection):
    """Operations that send messages."""

    @asynccontextmanager
    async def open_producer(self, group: str = GROUP, *, trace: bool = False) -> AsyncIterator[Producer]:
        """Open a producer with the account and TLS of this connection."""
        from ariane.client.instance.client_instance import ClientInstance
        from ariane.client.producer import Producer

        async with (
            ClientInstance(self.name_servers, self.client, health=ServerHealth()) as instance,
            Producer(instance, group, trace=trace) as producer,
        ):
            yield producer

    async def send_message(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        trace: bool = False,
        group: str = GROUP,
        may_create: bool = False,
    ) -> SendResult | None:
        """Send a message. In a dry run check its topic only, and return None.

        Args:
            message: The message.
            queue: Queue to send to; None: the producer selects one.
            trace: Send a trace record, too.
            group: Producer group.
            may_create: Send to a topic that does not exist, for brokers that create it with default settings then.

        Raises:
            RouteNotFound: the topic does not exist, or no broker accepts messages of it.
            MessageRefused: the message cannot be sent as it is.
            ReplyError, ConnectionLost, RequestTimeout: not acknowledged; the message may be stored.
        """
        brokers = await self._writable_brokers(message.topic, may_create=may_create)
        where = queue.broker if queue is not None else ", ".join(brokers)
        summary = f"send a message of {len(message.body)} bytes to topic {message.topic}"
        change = Change(where, summary, RequestCode.SEND_MESSAGE_V2)
        if self.is_dry_run:
            self.changes.append(change)
            return None
        async with self.open_producer(group, trace=trace) as producer:
            result = await producer.send(message, queue=queue)
        self.changes.append(change)
        return result

    async def resend(self, message: ReceivedMessage, topic: str | None = None) -> SendResult | None:
        """Send a copy of a stored message under a new unique key. In a dry run check it only, and return None.

        The copy has the body, keys, tag, flag and the application's properties. It is delivered immediately, as a first
        attempt; its property REPLAYED_FROM names the original.

        Args:
            message: The stored message.
            topic: Target topic; None: the topic that stores it, or the original topic of a retried, dead or delayed message.

        Raises:
            MessageRefused: its body cannot be read, or a dead letter does not contain its original topic.
        """
        from ariane.cluster.messages.replay import build_message, original_topic

        original = to_original(message)
        stored_in = message.queue.topic
        if topic is None and stored_in in (SCHEDULE_TOPIC, TIMER_TOPIC):
            topic = message.properties.get(RETRY_TOPIC) or message.properties.get(REAL_TOPIC)
        elif topic is None and not stored_in.startswith((DLQ_PREFIX, RETRY_PREFIX)):
            topic = stored_in
        return await self.send_message(build_message(original, topic or original_topic(original), ""))

    async def measure_sends(
        self, topic: str, body: bytes, count: int, *, group: str = GROUP, by_queue: bool = False
    ) -> AsyncIterator[TimedSend]:
        """Send one message after another and yield the response time of each. In a dry run yield none.

        Args:
            topic: Topic to send to.
            body: Body of every message.
            count: Number of messages.
            group: Producer group.
            by_queue: Send to the queues in turn, whatever the state of their brokers, instead of the producer's choice.

        Raises:
            RouteNotFound: no broker accepts messages of the topic.
        """
        brokers = await self._writable_brokers(topic)
        if self.is_dry_run:
            summary = f"send {count} messages of {len(body)} bytes to topic {topic}"
            self.changes.append(Change(", ".join(brokers), summary, RequestCode.SEND_MESSAGE_V2))
            return
        queues = await self._writable_queues(topic) if by_queue else []
        async with self.open_producer(group) as producer:
            for number in range(count):
                queue = queues[number % len(queues)] if by_queue else None
                started = time.monotonic()
                try:
                    result = await producer.send(Message(topic=topic, body=body), queue=queue)
                except ArianeError as error:
                    yield TimedSend(queue, _ms_since(started), error=str(error))
                else:
                    yield TimedSend(result.queue, _ms_since(started), result)

    async def _writable_brokers(self, topic: str, *, may_create: bool = False) -> Sequence[str]:
        try:
            queues = await self._writable_queues(topic)
        except RouteNotFound:
            if not may_create:
                raise
            queues = await self._writable_queues(AUTO_CREATE_TOPIC)
        return sorted({queue.broker for queue in queues})

    async def _writable_queues(self, topic: str) -> list[MessageQueue]:
        route = await self.routing.fetch_route(topic)
        masters = {data.broker_name for data in route.broker_datas if data.master}
        queues = sorted(
            MessageQueue(topic, data.broker_name, number)
            for data in route.queue_datas
            if data.perm & PERM_WRITE and data.broker_name in masters
            for number in range(data.write_queue_nums)
        )
        if not queues:
            raise RouteNotFound(topic, "no broker accepts messages: none has a master and write permission")
        return queues


def to_original(message: ReceivedMessage) -> OriginalMessage:
    """Return a stored message as an original to resend."""
    from ariane.cluster.messages.replay import OriginalMessage, RecordId

    queue = message.queue
    record_id = RecordId(queue.topic, queue.broker, queue.queue_id, message.queue_offset)
    return OriginalMessage(
        record_id, message.message_id, message.properties, message.body, message.flag, message.sys_flag
    )


def _ms_since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
