"""Simple consumer: takes messages by POP, and acknowledges each one. [SimpleConsumer of RocketMQ 5]

    async with SimpleConsumer("127.0.0.1:9876", "stock", {"orders": "*"}, start="first") as consumer:
        while True:
            for message in await consumer.receive(32, invisible=30):
                …
                await message.ack()

No member owns a queue: each message goes to the member that asks, and is invisible to the others for a time. What is not
acknowledged in that time is delivered again. docs/decisions/0047-a-consumer-class-for-pop.md has the reasons of the design.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Generic, Literal, cast

import msgspec

from ariane.client.consuming.consume_rates import ConsumeRates
from ariane.client.consuming.group_options import GroupOptions
from ariane.client.consuming.offset_store import OffsetStore
from ariane.client.consuming.pop_requests import COUNT_MAX, PopRequests
from ariane.client.consuming.subscriptions import Sql, TopicSubscriptions, subscription_data
from ariane.client.delivery.consume_events import ConsumeEvents
from ariane.client.delivery.delivery_strategy import DeliveryServices
from ariane.client.delivery.listener_invoker import Listener
from ariane.client.delivery.popped_message import PoppedMessage, receipt_of
from ariane.client.delivery.pushed_delivery import PushedDelivery
from ariane.client.delivery.send_back import SendBack
from ariane.client.delivery.simple_delivery import INVISIBLE_MAX_S, SimpleDelivery
from ariane.client.instance import validation
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.hooks import ConsumeHook
from ariane.client.instance.settings import ClientSettings, ConsumerSettings, ProducerSettings, TraceSettings
from ariane.client.instance.telemetry import NO_TELEMETRY, ClientTelemetry
from ariane.client.membership.consuming_client import ConsumingClient
from ariane.client.membership.group_member import INNER_PRODUCER, RECONSUME_MAX
from ariane.client.membership.pop_membership import PopMembership
from ariane.client.sending.sender import MessageSender
from ariane.errors import ConfigError
from ariane.filter import tags
from ariane.payloads import P, PayloadCodec
from ariane.protocol.requests.callbacks import ConsumeStatus
from ariane.protocol.requests.clients import SubscriptionData

INVISIBLE_S = 30.0
INVISIBLE_MIN_S = 0.1  # shorter than a response takes, the message would be visible before the application has it
TIMEOUT_S = 20.0


class SimpleConsumer(ConsumingClient, Generic[P]):
    """A member of a consumer group that takes messages from any queue, and acknowledges each message.

    Needs brokers with POP: Ariane's, or Apache's of 5.x. All members of the group must take their messages by POP.
    Several tasks may call `receive` at the same time; each message goes to one of them.

    Args:
        namesrv: Name server addresses, `"host:port;host:port"` or a list; or an open `ClientInstance` to share.
        group: Name of the consumer group. All members must use the same subscriptions.
        subscriptions: A topic or a list of topics, for all of their messages; or a mapping of each topic to its tag expression
            (`"*"`, or tags joined by `||`) or `Sql(…)`.
        start: Where to start while the group has no stored offset of a queue: `"first"` or `"last"`.
        settings: `max_reconsume_times` counts (16 if it is not set), and for `push` `concurrency`, `consume_batch_max`,
            `consume_timeout` and `close_timeout`; the other fields have no effect.
        client: Settings of the client instance; a shared one has its own.
        trace: True or `TraceSettings` to record each message as consumed: from `receive` until it is settled or visible again.
        hooks: Functions that receive `ConsumeStarted` for each message that `receive` returns, and `ConsumeFinished` when it is
            acknowledged, rejected (FAILED), visible again (TIME_OUT), or left when the consumer closes (FAILED).
        telemetry: Opens a span per message, until it is settled. It is not the current span.
        payload: Codec of the bodies, such as `ariane.payloads.Json(Order)`: `message.payload` is then an `Order`. A message
            whose body it cannot decode is logged and becomes a dead letter. None: `message.payload` is the body.

    Raises:
        ConfigError: an argument cannot be used; raised before anything is connected.

    Example:
        async with SimpleConsumer("127.0.0.1:9876", "stock", {"orders": "*"}, start="first") as consumer:
            for message in await consumer.receive(32, invisible=30):
                await message.ack()
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | ClientInstance,
        group: str,
        subscriptions: TopicSubscriptions,
        *,
        start: Literal["first", "last"] = "last",
        settings: ConsumerSettings | None = None,
        client: ClientSettings | None = None,
        trace: TraceSettings | bool = False,
        hooks: Sequence[ConsumeHook] = (),
        telemetry: ClientTelemetry = NO_TELEMETRY,
        payload: PayloadCodec[P] | None = None,
    ) -> None:
        super().__init__(
            namesrv, group, settings=settings, client=client, trace=trace, hooks=hooks, telemetry=telemetry
        )
        if start not in ("first", "last"):
            raise ConfigError("start", start, 'choose "first" or "last"; `ariane offset reset` sets another position')
        if self.settings.message_model != "clustering":
            fix = "expected 'clustering'; a PushConsumer delivers each message to all members"
            raise ConfigError("message_model", self.settings.message_model, fix)
        self._options = GroupOptions(
            group=self.group,
            settings=self.settings,
            start=start,
            payload=validation.codec(payload),
            is_polled=True,
        )
        topics = validation.subscriptions(subscriptions)
        subscribed = [self._subscription(topic, expression) for topic, expression in topics.items()]
        self._subscriptions = {subscription.topic: subscription for subscription in subscribed}
        self._services: DeliveryServices | None = None  # None before the consumer is opened
        self._delivery: SimpleDelivery | None = None  # messages that are not settled; None unless the consumer is open
        self._membership: PopMembership | None = None  # None unless the consumer is open

    async def __aexit__(self, *exception: object) -> None:
        self._membership = self._delivery = None
        await super().__aexit__(*exception)

    # --- messages ---

    async def receive(
        self,
        max_messages: int = COUNT_MAX,
        *,
        invisible: float | timedelta = INVISIBLE_S,
        timeout: float | timedelta = TIMEOUT_S,
    ) -> list[PoppedMessage[P]]:
        """Take messages of one topic from one broker; further calls begin with the next topic and broker.

        With several topics or brokers, one call waits for up to a second at each, so a message may arrive that much later than
        with one; several tasks that receive at the same time wait at different ones.

        Args:
            max_messages: At most this many messages, up to 32.
            invisible: How long other members do not receive the messages, in seconds or as a `timedelta`, from 0.1 s to 12 hours.
                Acknowledge them in that time, or extend it with `change_invisible`.
            timeout: How long to wait for a message, in seconds or as a `timedelta`.

        Returns:
            The messages; an empty list if there were none within `timeout`.

        Raises:
            ClientClosed: the consumer is not open, or was closed while waiting.
            ConfigError: an argument cannot be used.
            PopUnsupported: a broker does not serve POP.
            ReplyError: a broker refuses the request, for example without permission.
            ConnectionLost, RequestTimeout, RouteNotFound: no broker could be asked until the time was over.
        """
        membership = self._running()
        validation.whole("max_messages", max_messages, 1, COUNT_MAX)
        invisible_s = validation.seconds("invisible", invisible, INVISIBLE_MIN_S, INVISIBLE_MAX_S)
        wait_s = validation.seconds("timeout", timeout, high=validation.POLL_MAX_S)
        return cast(list[PoppedMessage[P]], await membership.receive(max_messages, invisible_s, wait_s))

    async def ack(self, messages: Iterable[PoppedMessage[P]]) -> None:
        """Count messages as consumed, those of a topic at a broker with one request. `message.ack()` is for one message.

        Raises:
            ClientClosed: the consumer is not open.
            DeliveryExpired: the invisible time of some is over, so they may be delivered again. The others are acknowledged.
            ConnectionLost, RequestTimeout, ReplyError: a broker did not respond, or with an error. Messages that are not
                acknowledged are still pending (`is_pending`).
        """
        if self._delivery is None:
            raise self._closed()
        await self._delivery.acknowledge([receipt_of(message) for message in messages])

    async def push(
        self,
        listener: Callable[[list[PoppedMessage[P]]], Awaitable[None] | None],
        *,
        invisible: float | timedelta = INVISIBLE_S,
    ) -> None:
        """Pass messages to a listener until this is cancelled, or the consumer closes; then wait for calls that have begun.

        A listener is what it is for a `PushConsumer`: returning acknowledges the messages of a call; raising delivers them again
        after 10 s, 30 s, 1 min, …, or after the delay of `ReconsumeLater`. They stay invisible while the listener works.

        Args:
            listener: A coroutine function, or one that runs in a thread.
            invisible: How long messages stay invisible if this process dies, in seconds or as a `timedelta`.

        Raises:
            ClientClosed: the consumer is not open.
            ConfigError: an argument cannot be used.
            PopUnsupported: a broker does not serve POP.
            ReplyError: a broker refuses the request, for example without permission.

        Example:
            async with SimpleConsumer("127.0.0.1:9876", "stock", {"orders": "*"}, start="first") as consumer:
                await consumer.push(listener)
        """
        membership, delivery, services = self._running(), self._delivery, self._services
        assert delivery is not None and services is not None
        invisible_s = validation.seconds("invisible", invisible, INVISIBLE_MIN_S, INVISIBLE_MAX_S)
        called: Listener = validation.callback("listener", listener, "messages")

        async def receive(count: int) -> list[PoppedMessage[Any]]:
            return await membership.receive(count, invisible_s, TIMEOUT_S)

        await PushedDelivery(services, delivery, called, receive, invisible_s).run()

    # --- the group ---

    def rates(self) -> dict[str, ConsumeStatus]:
        """Return the rates of the last minute by subscribed topic; none if the consumer is not open."""
        return {} if self._membership is None else self._membership.rates()

    async def subscribe(self, topic: str, expression: str | Sql = tags.ALL) -> None:
        """Subscribe to a topic, or change its expression. All members of a group must have the same subscriptions.

        Raises:
            ClientClosed: the consumer is not open.
            ConfigError: the topic or the expression cannot be used.
            ReplyError: the broker does not accept the SQL92 expression; the subscriptions are unchanged.
        """
        membership, subscription = self._running(), self._subscription(topic, expression)
        await self._instance.routes.refresh([subscription.topic])
        await membership.check(subscription)
        self._subscriptions[subscription.topic] = subscription
        await membership.announce()

    async def unsubscribe(self, topic: str) -> None:
        """Stop taking messages of a topic.

        Raises:
            ClientClosed: the consumer is not open.
        """
        membership = self._running()
        self._subscriptions.pop(self._instance.namespace.unwrap(topic), None)
        await membership.announce()

    # --- wiring ---

    async def _join(self, opening: AsyncExitStack, offsets: OffsetStore, events: ConsumeEvents) -> None:
        instance, times_max = self._instance, self.settings.max_reconsume_times
        times_max = RECONSUME_MAX if times_max < 0 else times_max
        sender = MessageSender(instance, INNER_PRODUCER, ProducerSettings())
        self._services = services = DeliveryServices(
            instance=instance,
            options=self._options,
            offsets=offsets,
            send_back=SendBack(instance.peers, instance.routes, sender, self.group, times_max, instance.namespace),
            events=events,
            telemetry=self._telemetry,
            rates=ConsumeRates(instance.clock.monotonic),
        )
        requests = PopRequests(instance, self.group, from_end=self._options.start == "last")
        delivery = SimpleDelivery(services, requests, times_max)
        membership = PopMembership(services, self._subscriptions, requests, delivery)
        self._membership = await opening.enter_async_context(membership)
        self._delivery = delivery

    def _subscription(self, topic: str, expression: str | Sql) -> SubscriptionData:
        subscription = subscription_data(topic, expression, self._instance.clock.now_ms())
        name = self._instance.namespace.check_topic("subscriptions", topic)
        return subscription if name == topic else msgspec.structs.replace(subscription, topic=name)

    def _running(self) -> PopMembership:
        if self._membership is None:
            raise self._closed()
        return self._membership
