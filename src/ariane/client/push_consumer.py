"""Push consumer: messages are passed to a listener. [DefaultMQPushConsumer]

    async def listener(messages):
        for message in messages: …            # returning acknowledges; raising delivers the messages again later

    async with PushConsumer("127.0.0.1:9876", "stock", {"orders": "paid || shipped"}, listener, start="first"):
        await stopped.wait()

Delivery is at least once: only consumed offsets are committed, so messages may repeat after a crash or a rebalance, and none is
skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from ariane.client import validation
from ariane.client.assignment_strategy import AssignmentStrategy, average
from ariane.client.client_instance import ClientInstance
from ariane.client.concurrent_delivery import ConcurrentDelivery
from ariane.client.group_membership import GroupMembership
from ariane.client.group_options import Assignment, GroupOptions
from ariane.client.hooks import ConsumeHook
from ariane.client.listener_invoker import Listener, ListenerInvoker
from ariane.client.local_offsets import DropFailed, LocalOffsets, offsets_path
from ariane.client.offset_store import OffsetStore
from ariane.client.orderly_delivery import OrderlyDelivery
from ariane.client.rates import ConsumeRates
from ariane.client.send_back import SendBack, SendBackStrategy
from ariane.client.sender import MessageSender
from ariane.client.settings import ClientSettings, ConsumerSettings, ProducerSettings, TraceSettings
from ariane.client.subscriptions import Sql, subscription_data
from ariane.client.telemetry import NO_TELEMETRY, ClientTelemetry
from ariane.client.trace_dispatcher import TraceDispatcher, trace_settings
from ariane.client.validation import StartPosition
from ariane.errors import ClientClosed, ConfigError
from ariane.filter import tags
from ariane.model.message import MessageQueue
from ariane.model.topic import retry_topic
from ariane.protocol.requests.callbacks import ConsumeStatus
from ariane.protocol.requests.clients import SubscriptionData

INNER_PRODUCER = "CLIENT_INNER_PRODUCER"  # producer group under which every client sends its retries
RECONSUME_MAX = 16  # redeliveries of a concurrent listener's messages, unless max_reconsume_times is set
UNLIMITED = 2**31 - 1


class PushConsumer:
    """A member of a consumer group whose messages are passed to a listener.

    The members of a group share the queues of the subscribed topics; with
    `ConsumerSettings(message_model="broadcasting")` each member reads all of them.

    Args:
        namesrv: Name server addresses, `"host:port;host:port"` or a list; or an open `ClientInstance` to share.
        group: Name of the consumer group. All members must use the same subscriptions.
        subscriptions: Tag expression of each topic (`"*"`, or tags joined by `||`), or `Sql(…)`.
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

    Raises:
        ConfigError: an argument cannot be used; raised before anything is connected.

    Example:
        async with PushConsumer("127.0.0.1:9876", "stock", {"orders": "*"}, listener, start="first"):
            await stopped.wait()
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | ClientInstance,
        group: str,
        subscriptions: Mapping[str, str | Sql],
        listener: Listener,
        *,
        start: StartPosition = "last",
        orderly: bool = False,
        strategy: AssignmentStrategy = average,
        settings: ConsumerSettings | None = None,
        client: ClientSettings | None = None,
        trace: TraceSettings | bool = False,
        hooks: Sequence[ConsumeHook] = (),
        telemetry: ClientTelemetry = NO_TELEMETRY,
    ) -> None:
        self.group = validation.group_name(group)
        self.settings = validation.optional("settings", settings, ConsumerSettings) or ConsumerSettings()
        self._listener: Listener = validation.callback("listener", listener, "messages")
        topics = validation.subscriptions(subscriptions)
        validation.of_kind("orderly", orderly, bool)
        self._instance = ClientInstance.shared_or_new(namesrv, client)  # connections, routes and heartbeats
        self._owns_instance = self._instance is not namesrv  # whether to open and close the instance with this consumer
        # Group, settings, and how queues are assigned.
        self._options = GroupOptions(
            group=self.group,
            settings=self.settings,
            start=validation.start(start),
            assignment=Assignment.ALL if self._is_broadcasting else Assignment.SHARED,
            strategy=validation.callback("strategy", strategy, "client_id", "members", "queues"),
            is_orderly=orderly,
        )
        self._trace_settings = trace_settings(trace)  # None: calls are not traced
        self._hooks: tuple[ConsumeHook, ...] = validation.callbacks("hooks", hooks, "event")
        self._telemetry = telemetry  # opens a span around each call of the listener
        self._subscriptions = {topic: self._subscription(topic, expression) for topic, expression in topics.items()}
        if self._is_broadcasting:
            self._check_instance_name()
        else:
            # Redelivered messages arrive in the group's own topic.
            retry = retry_topic(self.group)
            self._subscriptions[retry] = self._subscription(retry, tags.ALL)
        self._membership: GroupMembership | None = None  # None unless the consumer is open
        self._open = AsyncExitStack()  # what `__aexit__` has to close, in reverse order
        self.trace: TraceDispatcher | None = None
        """Trace queue with the counters `sent`, `dropped` and `failed`; None unless `trace` is set."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            if self._owns_instance:
                await opening.enter_async_context(self._instance)
            hooks = self._hooks
            if self._trace_settings is not None:
                tracer = TraceDispatcher.of_client(self._instance, self.group, "CONSUME", self._trace_settings)
                self.trace = await opening.enter_async_context(tracer)
                hooks = (*hooks, self.trace.on_consume)
            self._membership = await opening.enter_async_context(self._new_membership(hooks))
            self._open = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._membership = None
        await self._open.aclose()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues assigned to this member, sorted.

        Raises:
            ClientClosed: the consumer is not open.
        """
        return self._running().rebalancer.queues

    @property
    def client_id(self) -> str:
        """Id of the client instance, unique in the cluster."""
        return self._instance.client_id

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
            ConfigError: the topic or the expression cannot be used.
            ReplyError: the broker does not accept the SQL92 expression; the subscriptions are unchanged.
        """
        await self._running().subscribe(self._subscription(topic, expression))

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic.

        Raises:
            ClientClosed: the consumer is not open.
        """
        await self._running().unsubscribe(topic)

    # --- wiring ---

    def _new_membership(self, hooks: Sequence[ConsumeHook]) -> GroupMembership:
        instance = self._instance
        rates = ConsumeRates(instance.clock.monotonic)
        invoker = ListenerInvoker(
            self._listener,
            options=self._options,
            instance=instance,
            hooks=hooks,
            telemetry=self._telemetry,
            rates=rates,
        )
        offsets = self._offsets()
        delivery_class = OrderlyDelivery if self._options.is_orderly else ConcurrentDelivery
        return GroupMembership(
            instance=instance,
            options=self._options,
            subscriptions=self._subscriptions,
            offsets=offsets,
            delivery=delivery_class(invoker, offsets, self._send_back(), self.settings, instance.clock),
            rates=rates,
        )

    def _offsets(self) -> OffsetStore:
        instance, timeout_ms = self._instance, self._instance.settings.request_timeout * 1000
        if not self._is_broadcasting:
            return OffsetStore(instance.peers, instance.routes, self.group, timeout_ms=timeout_ms)
        path = offsets_path(self.settings.offsets_dir, instance.client_id, self.group)
        return LocalOffsets(instance.peers, instance.routes, self.group, timeout_ms=timeout_ms, path=path)

    def _send_back(self) -> SendBackStrategy:
        if self._is_broadcasting:
            return DropFailed(self.group)
        times_max = self.settings.max_reconsume_times
        if times_max < 0:
            times_max = UNLIMITED if self._options.is_orderly else RECONSUME_MAX
        sender = MessageSender(self._instance, INNER_PRODUCER, ProducerSettings())
        return SendBack(self._instance.peers, self._instance.routes, sender, self.group, times_max)

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
        return subscription_data(topic, expression, self._instance.clock.now_ms())

    def _running(self) -> GroupMembership:
        if self._membership is None:
            raise ClientClosed(f"consumer {self.group} is not open: use it within `async with`")
        return self._membership
