"""Sending messages. [DefaultMQProducer]

    async with Producer("shop", "127.0.0.1:9876", trace=True) as producer:
        result = await producer.send(Message(topic="orders", body=b"created", keys=["ORDER-17"]), order_key="ORDER-17")

Many sends may be under way at once (`asyncio.gather`, a task each): their requests leave together on one connection.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from ariane.client import request_reply, send_codec, validation
from ariane.client.client_instance import ClientInstance
from ariane.client.hooks import SendHook
from ariane.client.send_codec import SendResult
from ariane.client.sender import MessageSender
from ariane.client.settings import ClientSettings, ProducerSettings, TraceSettings
from ariane.client.trace_dispatcher import TraceDispatcher, trace_settings
from ariane.errors import ArianeError, ClientClosed, MessageRefused, RequestTimeout, RouteNotFound
from ariane.model.message import Message, MessageQueue, ReceivedMessage
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.messaging import RecallMessage

log = logging.getLogger("ariane.client")

REPLY_TIMEOUT_S = 3.0

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


class Producer:
    """A member of a producer group. Give either `namesrv` or an open `instance` that is to be shared."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        settings: ProducerSettings | None = None,
        client: ClientSettings | None = None,
        trace: TraceSettings | bool = False,
        hooks: Sequence[SendHook] = (),
        instance: ClientInstance | None = None,
    ) -> None:
        self.group = validation.group_name(group)
        self._settings = validation.optional("settings", settings, ProducerSettings) or ProducerSettings()
        self._instance = ClientInstance.shared_or_new(namesrv, client, instance)
        self._owns_instance = instance is None
        self._trace_settings = trace_settings(trace)
        self._hooks = validation.callbacks("hooks", hooks, "event")
        self._sender: MessageSender | None = None
        self._open = AsyncExitStack()
        self.trace: TraceDispatcher | None = None
        """The trace queue and its counters (`sent`, `dropped`, `failed`), when tracing is on."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            if self._owns_instance:
                await opening.enter_async_context(self._instance)
            self._instance.register_producer(self.group)
            opening.push_async_callback(self._instance.unregister, producer_group=self.group)
            hooks = self._hooks
            if self._trace_settings is not None:
                tracer = TraceDispatcher.of_client(self._instance, self.group, "PRODUCE", self._trace_settings)
                self.trace = await opening.enter_async_context(tracer)
                hooks = (*hooks, self.trace.on_send)
            self._sender = MessageSender(self._instance, self.group, self._settings, hooks)
            opening.callback(self._forget_sender)
            await self._discover_brokers()
            self._open = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
    ) -> SendResult:
        """Send and wait until the broker has stored it.

        Messages of the same `order_key` go to the same queue, and are consumed in the order in which they were sent when
        each is awaited before the next. `selector` chooses among the topic's queues, `queue` names one. With any of the
        three there is one attempt, otherwise 1 + `retries`.
        """
        sender = self._running()
        out = send_codec.prepare(
            message, send_codec.message_id_of(message, self._instance.new_message_id), self._settings
        )
        if queue is None and (order_key is not None or selector is not None):
            queue = self._select_queue(await sender.publish_queues(message.topic), message, order_key, selector)
        return await sender.send(out, queue)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, order_key: str | None = None
    ) -> SendResult:
        """Send messages of one topic in one request; they are stored next to each other in one queue, or not at all."""
        sender = self._running()
        out = send_codec.prepare_batch(messages, self._instance.new_message_id, self._settings)
        if queue is None and order_key is not None:
            queue = send_codec.queue_for_key(await sender.publish_queues(out.topic), order_key)
        return await sender.send(out, queue)

    async def send_one_way(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send and do not wait for an answer: what goes wrong at the broker is not known here."""
        sender = self._running()
        await sender.send_one_way(
            send_codec.prepare(
                message, send_codec.message_id_of(message, self._instance.new_message_id), self._settings
            ),
            queue,
        )

    async def recall(self, sent: SendResult) -> None:
        """Take back a message that was sent with `deliver_at_ms` and is not delivered yet. ReplyError when it is, or was taken
        back before; brokers that do not know timers (Apache 4.x) answer 3."""
        sender = self._running()
        await sender.publish_queues(sent.queue.topic)  # so that the route is known
        for addr in sender.master_addresses([sent.queue]):
            header = RecallMessage(sent.recall_handle or sent.offset_message_id, sent.queue.topic, self.group)
            timeout_ms = self._settings.send_timeout_ms
            await self._instance.peers.request_ok(addr, RequestCode.RECALL_MESSAGE, header, timeout_ms=timeout_ms)
            return
        raise RouteNotFound(sent.queue.topic, f"no address of {sent.queue.broker} is known, which has the message")

    async def request(
        self,
        message: Message,
        *,
        timeout_s: float = REPLY_TIMEOUT_S,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
    ) -> ReceivedMessage:
        """Send, and wait for the message that a consumer replies with (`reply`). RequestTimeout when none comes in time."""
        sender, instance = self._running(), self._instance
        validation.seconds("timeout_s", timeout_s)
        out = send_codec.prepare(message, send_codec.message_id_of(message, instance.new_message_id), self._settings)
        correlation_id = str(uuid.uuid4())
        out = request_reply.prepare_request(out, correlation_id, instance.client_id, round(timeout_s * 1000))
        answer = instance.replies.expect(correlation_id)
        try:
            async with asyncio.timeout(timeout_s):
                queues = await sender.publish_queues(message.topic)
                if queue is None and (order_key is not None or selector is not None):
                    queue = self._select_queue(queues, message, order_key, selector)
                await self._ensure_registered(sender.master_addresses([queue] if queue else queues))
                try:
                    await sender.send(out, queue)
                except ArianeError:
                    if not answer.done():  # the reply overtook a send that nobody answered
                        raise
                return await answer
        except TimeoutError:
            raise RequestTimeout(f"a consumer of {message.topic}", timeout_s * 1000) from None
        finally:
            instance.replies.forget(correlation_id)

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tags: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> SendResult:
        """Answer a message that was sent by `request`, here or by a Java client; ReplyError when nobody waits any more.

        It goes through the broker that the request came by: who asked is connected to that one for sure.
        """
        sender = self._running()
        answer = request_reply.build_reply(request, body, tags=tags, keys=keys, properties=properties or {})
        out = request_reply.prepare_reply(request, answer, self._instance.new_message_id(), self._settings)
        queues = await sender.publish_queues(out.topic)
        return await sender.send(out, next((one for one in queues if one.broker == request.queue.broker), None))

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Queues that `topic` may be sent to."""
        return await self._running().publish_queues(topic)

    def _running(self) -> MessageSender:
        if self._sender is None:
            raise ClientClosed(f"producer {self.group} is not open: use it within `async with`")
        return self._sender

    async def _ensure_registered(self, addresses: Sequence[str]) -> None:
        """Have these brokers know where to push a reply to."""
        met = await asyncio.gather(*map(self._instance.send_initial_heartbeat, addresses), return_exceptions=True)
        for addr, error in zip(addresses, met, strict=True):
            if isinstance(error, ArianeError):
                log.warning("producer %s: broker %s cannot push replies yet: %s", self.group, addr, error)
            elif error is not None:
                raise error

    def _forget_sender(self) -> None:
        self._sender = None

    async def _discover_brokers(self) -> None:
        """Learn the brokers from the default topic, so that they know this group before its first send."""
        try:
            await self._instance.routes.publish_queues(
                self._settings.create_topic_key,
                self._settings.create_topic_key,
                self._settings.default_topic_queue_nums,
            )
        except ArianeError as error:  # a cluster may have auto-creation off, or be still starting
            log.info("producer %s meets its brokers with its first send: %s", self.group, error)
        await self._instance.heartbeat()

    @staticmethod
    def _select_queue(
        queues: Sequence[MessageQueue], message: Message, order_key: str | None, selector: QueueSelector | None
    ) -> MessageQueue:
        if selector is None:
            assert order_key is not None
            return send_codec.queue_for_key(queues, order_key)
        if order_key is not None:
            raise MessageRefused("give an order_key or a selector, not both")
        chosen = selector(queues, message)
        if not isinstance(chosen, MessageQueue):
            raise MessageRefused(f"the selector gave {chosen!r}: it must return one of the queues it was given")
        return chosen
