"""Push consumer: messages are passed to a listener. [DefaultMQPushConsumer]

    async def listener(messages):
        for message in messages: …            # returning acknowledges; raising delivers the messages again later

    async with PushConsumer("127.0.0.1:9876", "stock", {"orders": "paid || shipped"}, listener, start="first"):
        await stopped.wait()

Delivery is at least once: only consumed offsets are committed, so messages may repeat after a crash or a rebalance, and none is
skipped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Unpack, overload

from ariane.client.client_arguments import PushConsumerArguments
from ariane.client.consuming.assignment_strategy import AssignmentStrategy, average
from ariane.client.consuming.payload_messages import PayloadMessage
from ariane.client.consuming.subscriptions import TopicSubscriptions
from ariane.client.delivery.concurrent_delivery import ConcurrentDelivery
from ariane.client.delivery.delivery_strategy import DeliveryServices, DeliveryStrategy
from ariane.client.delivery.listener_invoker import Listener, ListenerInvoker
from ariane.client.delivery.orderly_delivery import OrderlyDelivery
from ariane.client.instance import validation
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.hooks import ConsumeHook
from ariane.client.instance.settings import ClientSettings, ConsumerSettings, TraceSettings
from ariane.client.instance.telemetry import NO_TELEMETRY, ClientTelemetry
from ariane.client.instance.validation import StartPosition
from ariane.client.membership.group_member import GroupMember
from ariane.payloads import P, PayloadCodec

PayloadListener = Callable[[list[PayloadMessage[P]]], Awaitable[None] | None]


class PushConsumer(GroupMember):
    """A member of a consumer group whose messages are passed to a listener.

    The members of a group share the queues of the subscribed topics; with
    `ConsumerSettings(message_model="broadcasting")` each member reads all of them.

    Args:
        namesrv: Name server addresses, `"host:port;host:port"` or a list; or an open `ClientInstance` to share.
        group: Name of the consumer group. All members must use the same subscriptions.
        subscriptions: A topic or a list of topics, for all of their messages; or a mapping of each topic to its tag expression
            (`"*"`, or tags joined by `||`) or `Sql(…)`.
        listener: Called with a list of messages, at most `consume_batch_max`. A coroutine function runs in the event loop,
            any other function in a pool of threads. Returning acknowledges the messages; raising delivers them again later
            (see `ReconsumeLater`).
        start: Where to start while the group has no stored offset of a queue: `"first"`, `"last"`, or a `datetime` with a time
            zone.
        orderly: Consume each queue in order, one call at a time, under the broker's lock.
        strategy: Rule by which the members share queues; all members must use the same.
        settings: Limits and intervals of the consumer.
        client: Settings of the client instance; a shared one has its own.
        trace: True or `TraceSettings` to record when and with what result each message was consumed.
        hooks: Functions that receive `ConsumeStarted` and `ConsumeFinished` events.
        telemetry: Opens a span around each call of the listener: `ariane.otel.OpenTelemetry`.
        payload: Codec of the bodies, such as `ariane.payloads.Json(Order)`: the listener receives each message with
            `payload`, an `Order`. A message whose body it cannot decode is logged and becomes a dead letter.

    Raises:
        ConfigError: an argument cannot be used; raised before anything is connected.

    Example:
        async with PushConsumer("127.0.0.1:9876", "stock", {"orders": "*"}, listener, start="first"):
            await stopped.wait()
    """

    @overload
    def __init__(
        self,
        namesrv: str | Sequence[str] | ClientInstance,
        group: str,
        subscriptions: TopicSubscriptions,
        listener: Listener,
        *,
        payload: None = ...,
        **arguments: Unpack[PushConsumerArguments],
    ) -> None: ...

    @overload
    def __init__(
        self,
        namesrv: str | Sequence[str] | ClientInstance,
        group: str,
        subscriptions: TopicSubscriptions,
        listener: PayloadListener[P],
        *,
        payload: PayloadCodec[P],
        **arguments: Unpack[PushConsumerArguments],
    ) -> None: ...

    def __init__(
        self,
        namesrv: str | Sequence[str] | ClientInstance,
        group: str,
        subscriptions: TopicSubscriptions,
        listener: Listener | PayloadListener[P],
        *,
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
        # None would mean assigned queues, which have no listener.
        topics = validation.subscriptions(subscriptions)
        super().__init__(
            namesrv,
            group,
            topics,
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
        self._listener: Listener = validation.callback("listener", listener, "messages")

    def _new_delivery(self, services: DeliveryServices) -> DeliveryStrategy:
        clock = services.instance.clock
        invoker = ListenerInvoker(
            self._listener,
            options=services.options,
            clock=clock,
            events=services.events,
            telemetry=services.telemetry,
            rates=services.rates,
            client_id=services.instance.client_id,
            scope=services.instance.namespace.wrap(self.group),
        )
        delivery_class = OrderlyDelivery if services.options.is_orderly else ConcurrentDelivery
        return delivery_class(invoker, services.offsets, services.send_back, self.settings, clock)
