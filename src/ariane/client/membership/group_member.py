"""A member of a consumer group: the construction that push consumers, iterated consumers and lite-pull consumers share.

arguments ─→ GroupOptions, subscriptions ─ `async with` ─→ DeliveryServices ─→ delivery strategy ─→ GroupMembership
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from ariane.client.consuming.assignment_strategy import AssignmentStrategy, on_wire
from ariane.client.consuming.consume_rates import ConsumeRates
from ariane.client.consuming.group_options import Assignment, GroupOptions
from ariane.client.consuming.local_offsets import DropFailed, LocalOffsets, offsets_path
from ariane.client.consuming.offset_store import OffsetStore
from ariane.client.consuming.subscriptions import Sql, TopicSubscriptions, subscription_data
from ariane.client.delivery.consume_events import ConsumeEvents
from ariane.client.delivery.delivery_strategy import DeliveryServices, DeliveryStrategy
from ariane.client.delivery.send_back import RetryLocally, SendBack, SendBackStrategy
from ariane.client.instance import validation
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.hooks import ConsumeHook
from ariane.client.instance.settings import ClientSettings, ConsumerSettings, ProducerSettings, TraceSettings
from ariane.client.instance.telemetry import ClientTelemetry
from ariane.client.instance.validation import StartPosition
from ariane.client.membership.consuming_client import ConsumingClient
from ariane.client.membership.group_membership import GroupMembership
from ariane.client.sending.sender import MessageSender
from ariane.errors import ConfigError
from ariane.filter import tags
from ariane.model.message import MessageQueue
from ariane.model.topic import retry_topic
from ariane.payloads import PayloadCodec
from ariane.protocol.requests.callbacks import ConsumeStatus
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.messaging import SUBSCRIPTION

INNER_PRODUCER = "CLIENT_INNER_PRODUCER"  # producer group under which every client sends its retries
RECONSUME_MAX = 16  # redeliveries of messages of concurrent consumers, unless max_reconsume_times is set
UNLIMITED = 2**31 - 1


class GroupMember(ConsumingClient):
    """A client in a consumer group. Subclasses choose the delivery strategy."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | ClientInstance,
        group: str,
        subscriptions: TopicSubscriptions | None,
        *,
        start: StartPosition,
        orderly: bool = False,
        strategy: AssignmentStrategy,
        settings: ConsumerSettings | None,
        client: ClientSettings | None,
        trace: TraceSettings | bool,
        hooks: Sequence[ConsumeHook],
        telemetry: ClientTelemetry,
        payload: PayloadCodec[Any] | None = None,
        is_polled: bool = False,
        pull_flags: int = 0,
    ) -> None:
        super().__init__(
            namesrv, group, settings=settings, client=client, trace=trace, hooks=hooks, telemetry=telemetry
        )
        # None means that queues are assigned by hand. An empty mapping is a mistake, not a choice.
        topics = {} if subscriptions is None else validation.subscriptions(subscriptions)
        assignment = Assignment.MANUAL if subscriptions is None else Assignment.SHARED
        if self._is_broadcasting:
            if subscriptions is None:
                fix = "expected 'clustering' without subscriptions; to read every queue, assign all queues"
                raise ConfigError("message_model", self.settings.message_model, fix)
            assignment = Assignment.ALL
        self._options = GroupOptions(
            group=self.group,
            settings=self.settings,
            start=validation.start(start),
            assignment=assignment,
            strategy=on_wire(
                validation.callback("strategy", strategy, "client_id", "members", "queues"),
                self._instance.namespace.wrap,
            ),
            is_orderly=validation.of_kind("orderly", orderly, bool),
            payload=validation.codec(payload),
            is_polled=is_polled,
            # With assigned queues the request carries the expression: no heartbeat has announced it.
            pull_flags=pull_flags | (SUBSCRIPTION if assignment is Assignment.MANUAL else 0),
        )
        subscribed = [self._subscription(topic, expression) for topic, expression in topics.items()]
        self._subscriptions = {subscription.topic: subscription for subscription in subscribed}
        if self._is_broadcasting:
            self._check_instance_name()
        elif assignment is Assignment.SHARED and not is_polled:
            # Redelivered messages arrive in the group's own topic.
            retry = retry_topic(self.group)
            self._subscriptions[retry] = self._subscription(retry, tags.ALL)
        self._membership: GroupMembership | None = None  # None unless the consumer is open

    async def __aexit__(self, *exception: object) -> None:
        self._membership = None
        await super().__aexit__(*exception)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues assigned to this member, sorted.

        Raises:
            ClientClosed: the consumer is not open.
        """
        return self._running().rebalancer.queues

    def rates(self) -> dict[str, ConsumeStatus]:
        """Return the rates of the last minute by subscribed topic; none if the consumer is not open."""
        return {} if self._membership is None else self._membership.rates()

    async def subscribe(self, topic: str, expression: str | Sql = tags.ALL) -> None:
        """Subscribe to a topic, or change its expression. All members of a group must have the same subscriptions.

        Args:
            topic: Name of the topic.
            expression: Tags joined by `||`, `"*"` for every message, or `Sql(…)`.

        Raises:
            ClientClosed: the consumer is not open.
            ConfigError: the topic or the expression cannot be used, or queues are assigned by hand.
            ReplyError: the broker does not accept the SQL92 expression; the subscriptions are unchanged.
        """
        membership = self._running()
        if self._options.assignment is Assignment.MANUAL:
            fix = "this consumer reads assigned queues; construct it with subscriptions to share those of topics"
            raise ConfigError("subscribe", topic, fix)
        await membership.subscribe(self._subscription(topic, expression))

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic.

        Raises:
            ClientClosed: the consumer is not open.
        """
        await self._running().unsubscribe(self._instance.namespace.unwrap(topic))

    # --- wiring ---

    @abstractmethod
    def _new_delivery(self, services: DeliveryServices) -> DeliveryStrategy:
        """Return the strategy that passes messages to the application."""

    async def _join(self, opening: AsyncExitStack, offsets: OffsetStore, events: ConsumeEvents) -> None:
        rates = ConsumeRates(self._instance.clock.monotonic)
        services = DeliveryServices(
            instance=self._instance,
            options=self._options,
            offsets=offsets,
            send_back=self._send_back(),
            events=events,
            telemetry=self._telemetry,
            rates=rates,
        )
        membership = GroupMembership(
            instance=self._instance,
            options=self._options,
            subscriptions=self._subscriptions,
            offsets=offsets,
            delivery=self._new_delivery(services),
            rates=rates,
        )
        self._before_opening(membership)
        self._membership = await opening.enter_async_context(membership)

    def _before_opening(self, membership: GroupMembership) -> None:
        """Prepare the membership; by default there is nothing to prepare."""

    def _new_offsets(self) -> OffsetStore:
        if not self._is_broadcasting:
            return super()._new_offsets()
        instance = self._instance
        namespace = instance.namespace
        path = offsets_path(self.settings.offsets_dir, instance.client_id, namespace.wrap(self.group))
        timeout_ms = instance.settings.request_timeout * 1000
        return LocalOffsets(
            instance.peers, instance.routes, self.group, timeout_ms=timeout_ms, path=path, namespace=namespace
        )

    def _send_back(self) -> SendBackStrategy:
        if self._is_broadcasting:
            return DropFailed(self.group)
        times_max = self.settings.max_reconsume_times
        if times_max < 0:
            times_max = UNLIMITED if self._options.is_orderly else RECONSUME_MAX
        sender = MessageSender(self._instance, INNER_PRODUCER, ProducerSettings())
        instance = self._instance
        send_back = SendBack(instance.peers, instance.routes, sender, self.group, times_max, instance.namespace)
        # A member with assigned queues does not read the retry topic.
        return RetryLocally(send_back, times_max) if self._options.assignment is Assignment.MANUAL else send_back

    @property
    def _is_broadcasting(self) -> bool:
        return self.settings.message_model == "broadcasting"

    def _check_instance_name(self) -> None:
        name = self._instance.settings.instance_name
        if not name or "/" in name or name in (".", ".."):
            fix = (
                "a broadcasting consumer finds its offsets file by this name; choose one that stays the same after a "
                "restart, that no other process on this machine uses, and that is a valid directory name"
            )
            raise ConfigError("instance_name", name, fix)

    def _subscription(self, topic: str, expression: str | Sql) -> SubscriptionData:
        subscription = subscription_data(topic, expression, self._instance.clock.now_ms())
        name = self._instance.namespace.check_topic("subscriptions", topic)
        return subscription if name == topic else msgspec.structs.replace(subscription, topic=name)

    def _running(self) -> GroupMembership:
        if self._membership is None:
            raise self._closed()
        return self._membership
