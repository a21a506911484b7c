"""Membership of one client in a consumer group: the part that push and lite-pull consumers share.

    ClientInstance ─ heartbeats, notifications, admin requests ─→ GroupMembership
    GroupMembership ─→ Rebalancer ─→ fetch loops ─→ DeliveryStrategy (concurrent, orderly, polling) ─→ application
                    └→ OffsetStore ←── consumed offsets ──────────────┘

Opening registers the group, checks SQL92 subscriptions and starts the rebalancer. Closing works backwards, and in an order
that matters: fetching ends, running deliveries end, offsets are committed, locks are released, the group is unregistered.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Self

from ariane.client.consuming.consume_rates import ConsumeRates
from ariane.client.consuming.group_options import GroupOptions
from ariane.client.consuming.offset_store import OffsetStore
from ariane.client.delivery.delivery_strategy import DeliveryStrategy
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.membership.admin_requests import AdminRequestHandler
from ariane.client.membership.queue_locks import QueueLockClient
from ariane.client.membership.rebalancer import RebalanceContext, Rebalancer
from ariane.model.message import MessageQueue
from ariane.net.connection import HandlerResult
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.command import Command
from ariane.protocol.requests.callbacks import ConsumeStatus
from ariane.protocol.requests.clients import ConsumerData, SubscriptionData
from ariane.protocol.requests.messaging import SQL92


class GroupMembership:
    """One consumer group at one client. Use it within `async with`, in an open `ClientInstance`."""

    def __init__(
        self,
        *,
        instance: ClientInstance,
        options: GroupOptions,
        subscriptions: dict[str, SubscriptionData],
        offsets: OffsetStore,
        delivery: DeliveryStrategy,
        rates: ConsumeRates,
    ) -> None:
        locks = None
        if options.needs_locks:
            locks = QueueLockClient(
                instance.peers, instance.routes, options.group, instance.client_id, instance.namespace
            )
        context = RebalanceContext(
            instance=instance,
            options=options,
            subscriptions=subscriptions,
            offsets=offsets,
            delivery=delivery,
            rates=rates,
            locks=locks,
        )
        self._instance = instance  # connections, routes and heartbeats, which other groups of the process share
        self._options = options  # group, settings, and how queues are assigned
        # Shared with the consumer and the fetch loops: a change of subscriptions takes effect with the next pull.
        self._subscriptions = subscriptions
        self._rates = rates  # counters for tools and metrics
        self._delivery = delivery  # passes fetched messages on: to a listener, or to `poll`
        self.offsets = offsets
        """Consumed and committed offsets."""
        self.rebalancer = Rebalancer(context)
        """Assigned queues."""
        # Answers tools that ask brokers about this member.
        self._admin_requests = AdminRequestHandler(context, self.rebalancer)
        self._commits = BackgroundTasks("offsets")  # the periodic commit of offsets
        # Admin requests are refused while the membership opens and closes.
        self._is_active = False
        self._open = AsyncExitStack()  # what `__aexit__` has to close, in reverse order

    def rates(self) -> dict[str, ConsumeStatus]:
        """Return the rates of the last minute by subscribed topic."""
        return {topic: self._rates.status(topic) for topic in list(self._subscriptions)}

    async def __aenter__(self) -> Self:
        instance, settings = self._instance, self._options.settings
        async with AsyncExitStack() as opening:
            instance.register_consumer(self._options.group, self)
            opening.push_async_callback(instance.unregister, consumer_group=self._options.group)
            await self.offsets.load()
            await instance.routes.refresh(self._subscriptions)
            # The broker compiles the expressions, so this is where the application learns of a mistake in one.
            for subscription in self._subscriptions.values():
                await self._check(subscription)
            await instance.heartbeat()
            opening.push_async_callback(self._close)
            self._delivery.start()
            self.rebalancer.start()
            self._commits.repeat(settings.commit_interval, self._commit, "commit")
            self._is_active = True
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._open.aclose()

    # --- subscriptions and assignment ---

    async def subscribe(self, subscription: SubscriptionData) -> None:
        """Add a topic, or replace its expression.

        Raises:
            ReplyError: the broker does not accept the expression; the subscriptions are unchanged.
        """
        if subscription.expression_type == SQL92:
            await self._instance.routes.refresh([subscription.topic])
            await self._check(subscription)
        self._subscriptions[subscription.topic] = subscription
        await self._announce()

    async def unsubscribe(self, topic: str) -> None:
        """Remove a topic."""
        self._subscriptions.pop(topic, None)
        await self._announce()

    async def assign(self, queues: Iterable[MessageQueue], subscriptions: Iterable[SubscriptionData]) -> None:
        """Read exactly these queues; `subscriptions` are those of their topics."""
        self.rebalancer.set_manual(queues)
        self._subscriptions.clear()
        self._subscriptions.update({subscription.topic: subscription for subscription in subscriptions})
        await self._announce()

    async def _announce(self) -> None:
        """Fetch the routes of new topics, send the subscriptions to the brokers and rebalance."""
        await self._instance.refresh_routes()
        await self._instance.heartbeat()
        self.rebalancer.wake()

    async def _check(self, subscription: SubscriptionData) -> None:
        if subscription.expression_type == SQL92:
            await self._instance.check_subscription(self._options.group, subscription)

    # --- what the client instance calls (GroupRegistration) ---

    def describe(self) -> ConsumerData:
        """Return the group's entry in heartbeats."""
        return self._options.describe(self._subscriptions.values())

    def topics(self) -> list[str]:
        """Return the topics whose routes have to be current."""
        return list(self._subscriptions)

    def on_members_changed(self) -> None:
        """Rebalance: a member joined or left."""
        self.rebalancer.wake()

    def on_routes_changed(self, topics: list[str]) -> None:
        """Rebalance: queues or brokers of `topics` changed."""
        self.rebalancer.wake()

    def handle_admin_request(self, command: Command) -> HandlerResult | None:
        """Handle a request of a broker or tool; None if it is not supported or the consumer is not running."""
        return self._admin_requests.handle(command) if self._is_active else None

    # --- close ---

    async def _commit(self) -> None:
        await self.offsets.commit(self.rebalancer.committable)

    async def _close(self) -> None:
        self._is_active = False
        await self.rebalancer.stop()
        await self._delivery.close(self._options.settings.close_timeout)
        await self._commits.close()
        await self.rebalancer.leave()
