"""Producer: sends messages, batches and requests. [DefaultMQProducer]

    async with Producer("127.0.0.1:9876", "shop", trace=True) as producer:
        result = await producer.send(Message(topic="orders", body=b"created", keys=["ORDER-17"]), order_key="ORDER-17")

Any number of sends can be in flight (`asyncio.gather`, a task each): their requests are pipelined on one connection.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Generic, Self, Unpack, overload

from ariane.client.instance import validation
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.hooks import SendHook
from ariane.client.instance.send_types import PreparedMessage, SendResult
from ariane.client.instance.settings import ClientSettings, ProducerSettings, TraceSettings
from ariane.client.instance.telemetry import NO_TELEMETRY, ClientTelemetry
from ariane.client.sending import request_reply, send_codec
from ariane.client.sending.message_arguments import (
    MessageFields,
    QueueChoice,
    QueueSelector,
    SendFields,
    choose_queue,
    message_of,
)
from ariane.client.sending.sender import MessageSender
from ariane.client.tracing.trace_dispatcher import TraceCounts, TraceDispatcher, trace_settings
from ariane.errors import ArianeError, ClientClosed, ReplyError, RequestTimeout, RouteNotFound
from ariane.model.clock_offset import ClockOffset
from ariane.model.message import Message, MessageQueue, ReceivedMessage
from ariane.payloads import P, PayloadCodec
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.messaging import RecallMessage

log = logging.getLogger("ariane.client")

REPLY_TIMEOUT_S = 3.0


class Producer(Generic[P]):
    """A member of a producer group.

    Args:
        namesrv: Name server addresses, `"host:port;host:port"` or a list; or an open `ClientInstance` to share.
        group: Name of the producer group.
        settings: Timeouts, retries and limits of the producer.
        client: Settings of the client instance; a shared one has its own.
        trace: True or `TraceSettings` to record when and with what result each message was sent.
        hooks: Functions that receive a `SendEvent` after each attempt that got a response.
        telemetry: Opens a span around each send: `ariane.otel.OpenTelemetry`.
        payload: Codec of payloads, such as `ariane.payloads.Json(Order)`, for `send("orders", payload=order)`. None: a payload
            is bytes.

    Raises:
        ConfigError: an argument cannot be used; raised before anything is connected.

    Example:
        async with Producer("127.0.0.1:9876", "shop") as producer:
            result = await producer.send(Message(topic="orders", body=b"created", keys=["ORDER-17"]))
            print(result.status.name, result.message_id)
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | ClientInstance,
        group: str,
        *,
        settings: ProducerSettings | None = None,
        client: ClientSettings | None = None,
        trace: TraceSettings | bool = False,
        hooks: Sequence[SendHook] = (),
        telemetry: ClientTelemetry = NO_TELEMETRY,
        payload: PayloadCodec[P] | None = None,
    ) -> None:
        self.group = validation.group_name(group)
        self._settings = validation.optional("settings", settings, ProducerSettings) or ProducerSettings()
        self._instance = ClientInstance.shared_or_new(namesrv, client)  # connections, routes and heartbeats
        self._owns_instance = self._instance is not namesrv  # whether to open and close the instance with this producer
        self.group = self._instance.namespace.check_group(self.group)
        self._instance.namespace.exclude(self._settings.create_topic_key)  # a template of brokers
        self._trace_settings = trace_settings(trace)  # None: messages are not traced
        self._hooks = validation.callbacks("hooks", hooks, "event")
        self._telemetry = telemetry  # opens a span around each send
        self._codec: PayloadCodec[Any] | None = validation.codec(payload)  # encodes payloads; None: they are bodies
        self._sender: MessageSender | None = None  # None unless the producer is open
        self._open = AsyncExitStack()  # what `__aexit__` has to close, in reverse order
        self.trace: TraceDispatcher | None = None
        """Trace queue; None unless `trace` is set and the client was opened. `trace_counts` is for applications."""

    @property
    def trace_counts(self) -> TraceCounts:
        """How many trace records were sent, dropped and lost; also after closing."""
        return TraceCounts.of(self.trace)

    @property
    def clock_offsets(self) -> dict[str, ClockOffset]:
        """Offsets of the brokers' clocks from this machine's, by address, as far as they were measured; empty without `trace`."""
        return {} if self.trace is None else self.trace.clock_offsets

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            if self._owns_instance:
                await opening.enter_async_context(self._instance)
            self._instance.register_producer(self.group)
            opening.push_async_callback(self._instance.unregister, producer_group=self.group)
            if self._trace_settings is not None:
                tracer = TraceDispatcher.of_client(self._instance, self.group, "PRODUCE", self._trace_settings)
                self.trace = await opening.enter_async_context(tracer)
            self._sender = MessageSender(self._instance, self.group, self._settings, self._hooks, self.trace)
            opening.callback(self._forget_sender)
            await self._discover_brokers()
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._open.aclose()

    @overload
    async def send(self, message: Message, /, **choice: Unpack[QueueChoice]) -> SendResult: ...

    @overload
    async def send(self, topic: str, body: bytes, /, **fields: Unpack[SendFields]) -> SendResult: ...

    @overload
    async def send(self, topic: str, /, *, payload: P, **fields: Unpack[SendFields]) -> SendResult: ...

    async def send(
        self,
        message: Message | str,
        body: bytes | None = None,
        /,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        **fields: Any,
    ) -> SendResult:
        """Send a message and wait until the broker has stored it.

        Messages with the same `order_key` go to the same queue. They are consumed in the order of sending if each send is
        awaited before the next.

        Args:
            message: The message, or the name of its topic.
            body: Body of the message, if `message` is the name of a topic.
            queue: Queue to send to.
            order_key: Key whose hash selects the queue.
            selector: Function of the topic's queues and the message that returns one of the queues.
            fields: Further fields of `Message`, if `message` is the name of a topic: `keys`, `tags`, `delay`, …; and `payload`
                in place of the body, which the producer's codec encodes.

        With any of `queue`, `order_key` and `selector` there is one attempt, otherwise `1 + settings.retries`.

        Returns:
            Queue, offset and ids of the stored message. A `status` other than SEND_OK means that the message is stored, but
            flush or replication was late.

        Raises:
            ClientClosed: the producer is not open.
            MessageRefused: the message cannot be sent as it is.
            RouteNotFound: no broker accepts messages of the topic.
            RequestTimeout, ConnectionLost, ReplyError: not acknowledged after all attempts; the message may be stored.

        Example:
            result = await producer.send("orders", b"paid", keys=["ORDER-17"], order_key="ORDER-17")
        """
        sender = self._running()
        sent = message_of(message, body, fields, self._codec)
        if self._telemetry is NO_TELEMETRY and order_key is None and selector is None:  # most sends: no span to pay for
            return await sender.send(self._prepare(sent), queue)
        with self._telemetry.sending(self.group, (sent,)) as span:
            (sent,) = span.messages
            prepared = self._prepare(sent)
            if queue is None and (order_key is not None or selector is not None):
                queue = choose_queue(await sender.publish_queues(sent.topic), sent, order_key, selector)
            result = await sender.send(prepared, queue)
            span.on_result(result)
        return result

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, order_key: str | None = None
    ) -> SendResult:
        """Send messages of one topic in one request: stored next to each other in one queue, or not at all.

        Args:
            messages: Messages of the same topic, without delays.
            queue: Queue to send to.
            order_key: Key whose hash selects the queue.

        Returns:
            One result for the batch: ids are joined by commas, and `queue_offset` is that of the first message.

        Raises:
            ClientClosed: the producer is not open.
            MessageRefused: the batch cannot be sent as it is.
            RouteNotFound: no broker accepts messages of the topic.
            RequestTimeout, ConnectionLost, ReplyError: not acknowledged after all attempts; the batch may be stored.
        """
        sender = self._running()
        with self._telemetry.sending(self.group, messages) as span:
            prepared = send_codec.prepare_batch(span.messages, self._instance.new_message_id, self._settings)
            if queue is None and order_key is not None:
                queue = send_codec.queue_for_key(await sender.publish_queues(prepared.topic), order_key)
            result = await sender.send(prepared, queue)
            span.on_result(result)
        return result

    async def send_batches(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, order_key: str | None = None
    ) -> AsyncIterator[SendResult]:
        """Send messages of one topic in as few batches as `message_max` allows, in their order, one batch after another.

        Each batch is stored as `send_batch` says, and its result is yielded before the next one is sent. So the program knows
        what is stored when a later batch fails. Raises as `send_batch` does; nothing is sent if one of the messages cannot be.

        Args:
            messages: Messages of the same topic, without delays.
            queue: Queue to send to.
            order_key: Key whose hash selects the queue.

        Yields:
            The result of each batch, as `send_batch` returns it.

        Example:
            async for result in producer.send_batches(messages):
                print(result.queue_offset, result.message_id)
        """
        self._running()
        for batch in send_codec.split_batch(messages, self._instance.new_message_id, self._settings):
            yield await self.send_batch(batch, queue=queue, order_key=order_key)

    @overload
    async def send_one_way(self, message: Message, /, *, queue: MessageQueue | None = ...) -> None: ...

    @overload
    async def send_one_way(
        self, topic: str, body: bytes, /, *, queue: MessageQueue | None = ..., **fields: Unpack[MessageFields]
    ) -> None: ...

    @overload
    async def send_one_way(
        self, topic: str, /, *, payload: P, queue: MessageQueue | None = ..., **fields: Unpack[MessageFields]
    ) -> None: ...

    async def send_one_way(
        self,
        message: Message | str,
        body: bytes | None = None,
        /,
        *,
        queue: MessageQueue | None = None,
        **fields: Any,
    ) -> None:
        """Send a message without waiting for a response; a failure at the broker is not reported.

        Args:
            message: The message, or the name of its topic.
            body: Body of the message, if `message` is the name of a topic.
            queue: Queue to send to; by default the queues take turns.
            fields: Further fields of `Message`, if `message` is the name of a topic; and `payload` in place of the body.

        Raises:
            ClientClosed: the producer is not open.
            MessageRefused: the message cannot be sent as it is.
            RouteNotFound: no broker accepts messages of the topic.
            ConnectionLost: the broker cannot be reached.
            RequestTimeout: the broker does not read the messages sent before.
        """
        sender = self._running()
        with self._telemetry.sending(self.group, (message_of(message, body, fields, self._codec),)) as span:
            (message,) = span.messages
            await sender.send_one_way(self._prepare(message), queue)

    async def recall(self, sent: SendResult) -> None:
        """Cancel the delivery of a message that was sent with `deliver_at`.

        Args:
            sent: The result of the send.

        Raises:
            ClientClosed: the producer is not open.
            ReplyError: the message was delivered or recalled already; code 3: the broker does not support timers (Apache 4.x).
            RouteNotFound: the broker that stores the message is not in the routes.
        """
        sender = self._running()
        await sender.publish_queues(sent.queue.topic)  # fetches the route
        for addr in sender.master_addresses([sent.queue]):
            header = RecallMessage(sent.recall_handle or sent.offset_message_id, sent.queue.topic, self.group)
            timeout_ms = self._settings.send_timeout * 1000
            code = RequestCode.RECALL_MESSAGE
            response = await self._instance.peers.request(addr, code, header, timeout_ms=timeout_ms)
            if self.trace is not None:
                await self.trace.on_recall(sent, is_success=response.code == ResponseCode.SUCCESS)
            if response.code != ResponseCode.SUCCESS:
                raise ReplyError(response.code, response.remark, addr)
            return
        raise RouteNotFound(
            sent.queue.topic, f"broker {sent.queue.broker}, which stores the message, has no address in the routes"
        )

    @overload
    async def request(
        self, message: Message, /, *, timeout: float | timedelta = ..., **choice: Unpack[QueueChoice]
    ) -> ReceivedMessage: ...

    @overload
    async def request(
        self, topic: str, body: bytes, /, *, timeout: float | timedelta = ..., **fields: Unpack[SendFields]
    ) -> ReceivedMessage: ...

    @overload
    async def request(
        self, topic: str, /, *, payload: P, timeout: float | timedelta = ..., **fields: Unpack[SendFields]
    ) -> ReceivedMessage: ...

    async def request(
        self,
        message: Message | str,
        body: bytes | None = None,
        /,
        *,
        timeout: float | timedelta = REPLY_TIMEOUT_S,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        **fields: Any,
    ) -> ReceivedMessage:
        """Send a message and wait for the message that a consumer replies with (`reply`).

        Args:
            message: The request, or the name of its topic.
            body: Body of the request, if `message` is the name of a topic.
            timeout: How long to wait for the reply, in seconds or as a `timedelta`.
            queue: Queue to send to.
            order_key: Key whose hash selects the queue.
            selector: Function of the topic's queues and the message that returns one of the queues.
            fields: Further fields of `Message`, if `message` is the name of a topic; and `payload` in place of the body.

        Returns:
            The reply.

        Raises:
            ClientClosed: the producer is not open.
            MessageRefused: the message cannot be sent as it is, or too many requests are pending.
            RequestTimeout: no reply within `timeout`.
            RouteNotFound, ConnectionLost, ReplyError: the request was not acknowledged.

        Example:
            reply = await producer.request("questions", b"ping", timeout=3)
        """
        sender, instance = self._running(), self._instance
        request = message_of(message, body, fields, self._codec)
        timeout_s = validation.seconds("timeout", timeout, high=validation.TIMEOUT_MAX_S)
        correlation_id = str(uuid.uuid4())
        response = instance.replies.expect(correlation_id)
        try:
            async with asyncio.timeout(timeout_s):
                with self._telemetry.sending(self.group, (request,)) as span:
                    (request,) = span.messages
                    prepared = request_reply.prepare_request(
                        self._prepare(request), correlation_id, instance.client_id, round(timeout_s * 1000)
                    )
                    queues = await sender.publish_queues(request.topic)
                    if queue is None and (order_key is not None or selector is not None):
                        queue = choose_queue(queues, request, order_key, selector)
                    await self._ensure_registered(sender.master_addresses([queue] if queue else queues))
                    try:
                        span.on_result(await sender.send(prepared, queue))
                    except ArianeError:
                        # The reply may arrive although the acknowledgement of the send was lost.
                        if not response.done():
                            raise
                return await response
        except TimeoutError:
            raise RequestTimeout(f"a consumer of {request.topic}", timeout_s * 1000) from None
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
        """Reply to a message that was sent by `request`, with this client or Java's.

        The reply goes through the broker that delivered the request, because the requester is connected to that one.

        Args:
            request: The request, as the listener received it.
            body: Body of the reply.
            tags: Tag of the reply.
            keys: Keys of the reply.
            properties: Application properties of the reply.

        Returns:
            The result of sending the reply.

        Raises:
            ClientClosed: the producer is not open.
            MessageRefused: the message is not a request.
            ReplyError: the requester no longer waits.
            RequestTimeout, ConnectionLost, RouteNotFound: the reply was not acknowledged.
        """
        sender = self._running()
        response = request_reply.build_reply(request, body, tags=tags, keys=keys, properties=properties or {})
        with self._telemetry.sending(self.group, (response,)) as span:
            (response,) = span.messages
            prepared = request_reply.prepare_reply(request, response, self._instance.new_message_id(), self._settings)
            self._instance.namespace.exclude(prepared.topic)  # of the cluster
            queues = await sender.publish_queues(prepared.topic)
            queue = next((queue for queue in queues if queue.broker == request.queue.broker), None)
            result = await sender.send(prepared, queue)
            span.on_result(result)
        return result

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of `topic` that can be written to.

        Raises:
            ClientClosed: the producer is not open.
            RouteNotFound: no broker accepts messages of the topic.
        """
        return await self._running().publish_queues(topic)

    def _prepare(self, message: Message) -> PreparedMessage:
        return send_codec.prepare(
            message, send_codec.message_id_of(message, self._instance.new_message_id), self._settings
        )

    def _running(self) -> MessageSender:
        if self._sender is None:
            raise ClientClosed(f"producer {self.group} is not open: use it within `async with`")
        return self._sender

    async def _ensure_registered(self, addresses: Sequence[str]) -> None:
        """Send these brokers a heartbeat, so that they can push the reply to this client."""
        results = await asyncio.gather(*map(self._instance.send_initial_heartbeat, addresses), return_exceptions=True)
        for addr, error in zip(addresses, results, strict=True):
            if isinstance(error, ArianeError):
                log.warning(
                    "Producer %s: broker %s cannot push replies to this client yet: %s", self.group, addr, error
                )
            elif error is not None:
                raise error

    def _forget_sender(self) -> None:
        self._sender = None

    async def _discover_brokers(self) -> None:
        """Find brokers by the default topic and send them a heartbeat, so that they list this group before its first send."""
        try:
            await self._instance.routes.publish_queues(
                self._settings.create_topic_key,
                self._settings.create_topic_key,
                self._settings.default_topic_queue_nums,
            )
        except ArianeError as error:  # auto-creation may be off, or the cluster may still be starting
            log.info("Producer %s found no brokers yet and will register with its first send: %s", self.group, error)
        await self._instance.heartbeat()
