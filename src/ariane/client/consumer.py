"""Consumer: messages are iterated over. [the ergonomics of aiokafka and nats.py; no Java class]

    async with Consumer("127.0.0.1:9876", "stock", {"orders": "*"}, start="first") as consumer:
        async for message in consumer:
            …                                # asking for the next message acknowledges this one

Delivery is at least once: only acknowledged messages are committed, so messages may repeat after a crash or a rebalance, and none
is skipped. docs/decisions/0012-async-for-consumer.md has the reasons of the design.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Generic, Literal

from ariane.client.consuming.assignment_strategy import AssignmentStrategy, average
from ariane.client.consuming.fetched_messages import FetchedMessages
from ariane.client.consuming.subscriptions import TopicSubscriptions
from ariane.client.delivery.consumer_message import ConsumerMessage
from ariane.client.delivery.delivery_strategy import DeliveryServices, DeliveryStrategy
from ariane.client.delivery.iterator_delivery import IteratorDelivery
from ariane.client.instance import validation
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.hooks import ConsumeHook
from ariane.client.instance.settings import ClientSettings, ConsumerSettings, TraceSettings
from ariane.client.instance.telemetry import NO_TELEMETRY, ClientTelemetry
from ariane.client.instance.validation import StartPosition
from ariane.client.membership.seekable_member import SeekableMember
from ariane.errors import ConfigError
from ariane.payloads import P, PayloadCodec

BATCH = 32  # messages, as many as a broker returns per pull by default


class Consumer(SeekableMember, Generic[P]):
    """A member of a consumer group whose messages are iterated over.

    Several tasks may iterate over one consumer; each message goes to one of them. Tasks share nothing else: each has its own
    `async for`, which acknowledges its own messages.

    With `ack="auto"` a message counts as consumed when its loop asks for the next one. A loop that ends before (by an
    exception, `break` or a cancellation) leaves its message unacknowledged. While the consumer stays open, or if it is closed
    by that exception, the message is sent back, as if a listener had raised; otherwise the next owner of the queue gets it.
    With `ack="manual"` the application calls `ack`, `retry` or `reject` of each message, from any task.

    A message that is not settled within `settings.consume_timeout` is sent back, and an acknowledgement after that does not
    count. In an orderly consumer it is delivered again to the next loop that asks, even if the first one still works on it:
    choose a timeout that processing never takes.

    Args:
        namesrv: Name server addresses, `"host:port;host:port"` or a list; or an open `ClientInstance` to share.
        group: Name of the consumer group. All members must use the same subscriptions.
        subscriptions: A topic or a list of topics, for all of their messages; or a mapping of each topic to its tag expression
            (`"*"`, or tags joined by `||`) or `Sql(…)`. Omit it to choose queues
            with `assign`; such a consumer does not read the group's retry topic, so it retries messages itself, after
            `settings.local_retry_delay`.
        ack: `"auto"` or `"manual"`.
        start: Where to start while the group has no stored offset of a queue: `"first"`, `"last"`, or a `datetime` with a time
            zone.
        orderly: Deliver each queue in order, one message at a time, under the broker's lock. After a failure the queue pauses
            and the same message follows.
        strategy: Rule by which the members share queues; all members must use the same.
        settings: Limits and intervals of the consumer.
        client: Settings of the client instance; a shared one has its own.
        trace: True or `TraceSettings` to record when and with what result each message was consumed.
        hooks: Functions that receive `ConsumeStarted` before a message is delivered, and `ConsumeFinished` when it is settled.
        telemetry: Opens a span around each iteration of a loop, current in its task: `ariane.otel.OpenTelemetry`.
        payload: Codec of the bodies, such as `ariane.payloads.Json(Order)`: `message.payload` is then an `Order`. A message
            whose body it cannot decode is logged and becomes a dead letter. None: `message.payload` is the body.

    Raises:
        ConfigError: an argument cannot be used; raised before anything is connected.

    Example:
        async with Consumer("127.0.0.1:9876", "stock", {"orders": "*"}, ack="manual", start="first") as consumer:
            async for message in consumer:
                await message.ack()
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | ClientInstance,
        group: str,
        subscriptions: TopicSubscriptions | None = None,
        *,
        ack: Literal["auto", "manual"] = "auto",
        start: StartPosition = "last",
        orderly: bool = False,
        strategy: AssignmentStrategy = average,
        settings: ConsumerSettings | None = None,
        client: ClientSettings | None = None,
        trace: TraceSettings | bool = False,
        hooks: Sequence[ConsumeHook] = (),
        telemetry: ClientTelemetry = NO_TELEMETRY,
        payload: PayloadCodec[P] | None = None,
    ) -> None:
        super().__init__(
            namesrv,
            group,
            subscriptions,
            start=start,
            orderly=orderly,
            strategy=strategy,
            settings=settings,
            client=client,
            trace=trace,
            hooks=hooks,
            telemetry=telemetry,
            payload=payload,
        )
        if ack not in ("auto", "manual"):
            raise ConfigError("ack", ack, "expected 'auto' or 'manual'")
        self._is_auto = ack == "auto"
        # Fetched and delivered messages; None unless the consumer is open.
        self._delivery: IteratorDelivery | None = None

    async def __aexit__(self, *exception: object) -> None:
        _, error, _ = exception
        delivery, self._delivery = self._delivery, None
        if delivery is not None:
            # Before the first `await`: a loop that this exception has ended reports its message right after it.
            delivery.stop(gives_up=not isinstance(error, Exception))
        await super().__aexit__(*exception)

    def __aiter__(self) -> AsyncIterator[ConsumerMessage[P]]:
        """Start a loop over messages.

        Raises:
            ClientClosed: the consumer is not open.
            ConfigError: no queues were assigned.
        """
        return _Messages(self._new_loop(1, 0))

    def batches(
        self, max_messages: int = BATCH, *, timeout: float | timedelta = 0
    ) -> AsyncIterator[list[ConsumerMessage[P]]]:
        """Start a loop over lists of messages, which may come from several queues. With `ack="auto"` a list is acknowledged when
        the loop asks for the next one. An orderly consumer puts one message of each queue into a list.

        Args:
            max_messages: At most this many messages.
            timeout: How long to wait for more messages after the first one, in seconds or as a `timedelta`. 0: the list has
                what was fetched already.

        Raises:
            ClientClosed: the consumer is not open.
            ConfigError: an argument cannot be used, or no queues were assigned.

        Example:
            async for messages in consumer.batches(100, timeout=0.5):
                await store([message.body for message in messages])
        """
        validation.whole("max_messages", max_messages, 1, 2**31 - 1)
        return _Batches(self._new_loop(max_messages, validation.seconds("timeout", timeout)))

    def stop(self) -> None:
        """End all loops: each when it asks for its next message, which acknowledges its last one. For signal handlers.

        Example:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
        """
        if self._delivery is not None:
            self._delivery.stop()

    # --- wiring ---

    def _new_delivery(self, services: DeliveryServices) -> DeliveryStrategy:
        self._delivery = IteratorDelivery(services, lambda queue: queue in self._paused)
        return self._delivery

    def _new_loop(self, count: int, linger_s: float) -> ConsumerLoop[P]:
        delivery = self._delivering()
        self._check_assigned("iterating")
        acknowledge = self._is_auto
        return ConsumerLoop(delivery, self._telemetry, self.group, count, linger_s, acknowledge=acknowledge)

    def _fetched(self) -> FetchedMessages:
        return self._delivering().fetched

    def _delivering(self) -> IteratorDelivery:
        if self._membership is None or self._delivery is None:
            raise self._closed()
        return self._delivery


class ConsumerLoop(Generic[P]):
    """One `async for` over a consumer: its current messages, and the span around them."""

    def __init__(
        self,
        delivery: IteratorDelivery,
        telemetry: ClientTelemetry,
        group: str,
        count: int,
        linger_s: float,
        *,
        acknowledge: bool,
    ) -> None:
        self._delivery = delivery  # of the consumer, shared by its loops
        self._telemetry = telemetry  # opens the spans
        self._group = group  # for the spans
        self._count = count  # messages per iteration, at most
        self._linger_s = linger_s  # seconds to wait for more messages after the first one
        self._acknowledges = acknowledge  # whether the next iteration acknowledges the current messages
        self._loop = asyncio.get_running_loop()  # `__del__` may run in any thread
        self._current: list[ConsumerMessage[P]] = []  # those of the current iteration
        self._span: AbstractContextManager[None] | None = None  # open during an iteration

    async def next(self) -> list[ConsumerMessage[P]]:
        """Acknowledge the current messages if this loop does that, and return the next ones.

        Raises:
            StopAsyncIteration: the consumer closes.
        """
        self._end_span()
        if self._acknowledges:
            for message in self._current:
                if message.is_pending:
                    await message.ack()
        self._current = []
        messages = await self._delivery.receive(self._count, self._linger_s)
        if not messages:
            raise StopAsyncIteration
        self._current = messages
        self._span = self._telemetry.processing(self._group, messages)
        self._span.__enter__()
        return messages

    def _end_span(self) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.__exit__(None, None, None)

    def __del__(self) -> None:
        # Python drops the iterator of an `async for` as soon as an exception, a `break` or a `return` ends it. That is the only
        # sign of it. Where it comes late (another interpreter, a reference that is retained) the timeouts hold.
        self._end_span()
        if self._acknowledges and self._current and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._delivery.abandon, self._current)


class _Messages(AsyncIterator[ConsumerMessage[P]]):
    """A loop over single messages."""

    def __init__(self, loop: ConsumerLoop[P]) -> None:
        self._loop = loop

    async def __anext__(self) -> ConsumerMessage[P]:
        return (await self._loop.next())[0]


class _Batches(AsyncIterator[list[ConsumerMessage[P]]]):
    """A loop over lists of messages."""

    def __init__(self, loop: ConsumerLoop[P]) -> None:
        self._loop = loop

    async def __anext__(self) -> list[ConsumerMessage[P]]:
        return list(await self._loop.next())
