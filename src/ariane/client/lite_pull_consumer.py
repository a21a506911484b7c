"""Lite-pull consumer: the application polls when it is ready for more messages. [DefaultLitePullConsumer]

    async with LitePullConsumer("127.0.0.1:9876", "stock", {"orders": "*"}, start="first") as consumer:
        while True:
            for message in await consumer.poll():
                …
            await consumer.commit()                  # or leave it to the next poll (`auto_commit`)

With `subscriptions` the members of the group share the queues; without them, `assign` names the queues to read. Polled messages
count as consumed with the next poll (`auto_commit`) or with `commit`; after a crash before that they are read again.
Lite-pull consumers use no retry topic: handling failed messages is up to the application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, Unpack, cast, overload

from ariane.client.client_arguments import LitePullConsumerArguments
from ariane.client.consuming.assignment_strategy import AssignmentStrategy, average
from ariane.client.consuming.fetched_messages import FetchedMessages
from ariane.client.consuming.payload_messages import M, PayloadMessage
from ariane.client.consuming.subscriptions import TopicSubscriptions
from ariane.client.delivery.delivery_strategy import DeliveryServices, DeliveryStrategy
from ariane.client.delivery.polling_delivery import PollingDelivery
from ariane.client.instance import validation
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.hooks import ConsumeHook
from ariane.client.instance.settings import ClientSettings, ConsumerSettings, TraceSettings
from ariane.client.instance.telemetry import NO_TELEMETRY, ClientTelemetry
from ariane.client.instance.validation import StartPosition
from ariane.client.membership.seekable_member import SeekableMember
from ariane.errors import ConfigError
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.payloads import P, PayloadCodec
from ariane.protocol.requests.messaging import LITE_PULL, SUBSCRIPTION

POLL_S = 5.0


class LitePullConsumer(SeekableMember, Generic[M]):
    """A member of a consumer group that polls for messages.

    Args:
        namesrv: Name server addresses, `"host:port;host:port"` or a list; or an open `ClientInstance` to share.
        group: Name of the consumer group.
        subscriptions: A topic or a list of topics, for all of their messages; or a mapping of each topic to its tag expression
            (`"*"`, or tags joined by `||`) or `Sql(…)`. Omit it to choose queues
            with `assign`.
        start: Where to start while the group has no stored offset of a queue: `"first"`, `"last"`, or a `datetime` with a time
            zone.
        auto_commit: Whether each poll acknowledges the messages of the previous one.
        strategy: Rule by which the members share queues; all members must use the same.
        settings: Limits and intervals of the consumer.
        client: Settings of the client instance; a shared one has its own.
        trace: True or `TraceSettings` to record each message as consumed: from the poll that returned it until the poll or
            commit that acknowledged it.
        hooks: Functions that receive `ConsumeStarted` when a poll returns messages, and `ConsumeFinished` when they are
            acknowledged, or when their queue is revoked before (FAILED).
        telemetry: Opens a span per poll, from the messages to their acknowledgement. It is not the current span.
        payload: Codec of the bodies, such as `ariane.payloads.Json(Order)`: `poll` returns messages with `payload`, an `Order`. A
            message whose body it cannot decode is logged and becomes a dead letter.

    Raises:
        ConfigError: an argument cannot be used; raised before anything is connected.

    Example:
        async with LitePullConsumer("127.0.0.1:9876", "reports", {"orders": "*"}, auto_commit=False) as consumer:
            messages = await consumer.poll(max_messages=32, timeout=10)
            await consumer.commit()
    """

    @overload
    def __init__(
        self: LitePullConsumer[ReceivedMessage],
        namesrv: str | Sequence[str] | ClientInstance,
        group: str,
        subscriptions: TopicSubscriptions | None = ...,
        *,
        payload: None = ...,
        **arguments: Unpack[LitePullConsumerArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: LitePullConsumer[PayloadMessage[P]],
        namesrv: str | Sequence[str] | ClientInstance,
        group: str,
        subscriptions: TopicSubscriptions | None = ...,
        *,
        payload: PayloadCodec[P],
        **arguments: Unpack[LitePullConsumerArguments],
    ) -> None: ...

    def __init__(
        self,
        namesrv: str | Sequence[str] | ClientInstance,
        group: str,
        subscriptions: TopicSubscriptions | None = None,
        *,
        start: StartPosition = "last",
        auto_commit: bool = True,
        strategy: AssignmentStrategy = average,
        settings: ConsumerSettings | None = None,
        client: ClientSettings | None = None,
        trace: TraceSettings | bool = False,
        hooks: Sequence[ConsumeHook] = (),
        telemetry: ClientTelemetry = NO_TELEMETRY,
        payload: PayloadCodec[Any] | None = None,
    ) -> None:
        super().__init__(
            namesrv,
            group,
            subscriptions,
            start=start,
            strategy=strategy,
            settings=settings,
            client=client,
            trace=trace,
            hooks=hooks,
            telemetry=telemetry,
            payload=payload,
            is_polled=True,
            # The request carries the expression, so it applies even before a heartbeat has reached the broker.
            pull_flags=SUBSCRIPTION | LITE_PULL,
        )
        if self.settings.message_model != "clustering":
            fix = "expected 'clustering'; to read every queue, assign all queues"
            raise ConfigError("message_model", self.settings.message_model, fix)
        self._auto_commit = validation.of_kind("auto_commit", auto_commit, bool)
        self._delivery: PollingDelivery | None = None  # fetched and polled messages; None unless the consumer is open

    async def __aexit__(self, *exception: object) -> None:
        delivery, self._delivery = self._delivery, None
        # A waiting poll ends immediately, with ClientClosed, instead of after the last requests.
        if delivery is not None:
            delivery.fetched.available.set()
        await super().__aexit__(*exception)

    # --- messages ---

    async def poll(self, *, max_messages: int | None = None, timeout: float | timedelta = POLL_S) -> list[M]:
        """Return the next messages of one queue.

        A body that cannot be expanded is returned as stored, with `body_error` set; with a codec (`payload=`), such a message is
        not returned, but becomes a dead letter.

        Args:
            max_messages: At most this many messages; `settings.pull_batch` if None.
            timeout: How long to wait for a message, in seconds or as a `timedelta`.

        Returns:
            The messages; an empty list if none arrived within `timeout`.

        Raises:
            ClientClosed: the consumer is not open, or was closed while waiting.
            ConfigError: an argument cannot be used, or no queues were assigned.
        """
        delivery = self._polling()
        if max_messages is not None:
            validation.whole("max_messages", max_messages, 1, 2**31 - 1)
        wait_s = validation.seconds("timeout", timeout, high=validation.POLL_MAX_S)
        self._check_assigned("`poll`")
        if self._auto_commit:
            await delivery.acknowledge()
        deadline = asyncio.get_running_loop().time() + wait_s
        count = max_messages or self.settings.pull_batch
        while not (messages := await delivery.take(count, self._paused)):
            delivery.fetched.available.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await delivery.fetched.available.wait()
            except TimeoutError:
                return []
            self._polling()
        return cast(list[M], messages)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit consumed offsets at the brokers.

        Failed commits are logged and repeated every `commit_interval`.

        Args:
            offsets: The offset of the next message to consume, of each queue; it may be lower than the committed one.
                None: everything polled so far.

        Raises:
            ClientClosed: the consumer is not open.
        """
        membership, delivery = self._running(), self._polling()
        await delivery.acknowledge(offsets)
        if offsets is not None:
            for queue, offset in offsets.items():
                membership.offsets.seek(queue, offset)
        await membership.offsets.commit(membership.rebalancer.queues if offsets is None else offsets)

    # --- wiring ---

    def _new_delivery(self, services: DeliveryServices) -> DeliveryStrategy:
        self._delivery = PollingDelivery(services)
        return self._delivery

    def _fetched(self) -> FetchedMessages:
        return self._polling().fetched

    def _polling(self) -> PollingDelivery:
        if self._membership is None or self._delivery is None:
            raise self._closed()
        return self._delivery
